"""Counters that cannot be are marked; those that can are not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import metrics, ncu, stage
from harness.ncu.reading import Counted
from harness.problem import Problem
from harness.stage import Launch

PROBLEM = Problem(512, 512, 512)
LAUNCHES = [Launch("tiled2d", (8, 8, 1), (64, 1, 1), (64, 64))]
GOOD = {
    metrics.FFMA: 512.0**3,
    "inst_executed": 6531584.0,
    "thread_inst_executed": 209010688.0,
    "thread_inst_executed_true": 208744448.0,
    metrics.SHARED: 3276800.0,
    metrics.SHARED_IDEAL: 1179648.0,
    metrics.REQUESTS_LD: 131072.0,
    metrics.SECTORS_LD: 524288.0,
    "dram__bytes_read.sum": 2.2e6,
    "gpu__time_duration.sum": 54000.0,
    "sm__warps_active.avg.pct_of_peak_sustained_active": 11.5,
}


def marks(
    problem: Problem = PROBLEM, launches: list[Launch] = LAUNCHES, cache: str = "all", **values: float
) -> ncu.Marks:
    table = {**GOOD, **{k.replace("__dot__", "."): v for k, v in values.items()}}
    return ncu.check([Counted("tiled2d", values=table, label="main")], problem, launches, ncu.Options(cache=cache))


def test_what_an_h200_counted_is_plausible() -> None:
    assert marks() == {}


@pytest.mark.parametrize(
    "bad, why",
    [(math.nan, "not a number"), (math.inf, "not a number"), (-1.0, "negative"), (2.5, "not a whole number")],
)
def test_values_that_are_no_counts(bad: float, why: str) -> None:
    found = marks(inst_executed=bad)
    assert ncu.why(found, "main", "inst_executed") == why
    assert not ncu.why(found, "main", metrics.SECTORS_LD)


def test_more_than_a_hundred_per_cent() -> None:
    name = "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert "100 %" in ncu.why(
        ncu.check([Counted("k", values={name: 180.0}, label="main")], PROBLEM, LAUNCHES, ncu.Options()), "main", name
    )


def test_the_most_of_a_hundred_per_cent_of_the_average_may_be_more() -> None:
    """vectorized at 512 keeps 64 of 132 SMs busy: an H200's ncu puts the busiest scheduler above 105 % of the average's cycles."""
    values = {
        "smsp__issue_active.max.pct_of_peak_sustained_active": 125.0,
        "sm__throughput.max.pct_of_peak_sustained_elapsed": 125.0,
    }
    found = ncu.check([Counted("k", values=values, label="main")], PROBLEM, LAUNCHES, ncu.Options())
    assert [metric for _, metric in found] == ["sm__throughput.max.pct_of_peak_sustained_elapsed"]


def test_counts_that_contradict_each_other() -> None:
    assert "ideal" in ncu.why(marks(**{metrics.SHARED: 10.0}), "main", metrics.SHARED)
    assert "requests" in ncu.why(marks(**{metrics.SECTORS_LD: 10.0}), "main", metrics.SECTORS_LD)
    assert "32 threads" in ncu.why(marks(inst_executed=5.0), "main", "inst_executed")


@pytest.mark.parametrize("ffma", [512.0**3 - 1, 3 * 512.0**3])
def test_the_wrong_number_of_multiply_adds_condemns_everything(ffma: float) -> None:
    found = marks(**{metrics.FFMA: ffma})
    assert "multiply-adds" in ncu.why(found, "main", metrics.SECTORS_LD)


def test_a_stage_without_ffma_is_not_judged_by_it() -> None:
    assert marks(**{metrics.FFMA: 0.0}) == {}


@pytest.mark.parametrize(
    "problem, bk, padded, parts", [(Problem(1000, 999, 1001), 8, 1008, 4), (Problem(1024, 1024, 1024), 7, 1029, 1)]
)
def test_padding_is_no_fault(problem: Problem, bk: int, padded: int, parts: int) -> None:
    """Tiles of 64, every one in full, K rounded up: 126 steps of 8, or 147 of 7."""
    tiled = stage.find("tiled2d")
    launches = tiled.plan(problem, tiled.configure({"BK": bk}))
    counts = [
        Counted(x.entry, values={metrics.FFMA: float(x.blocks * 64 * 64 * padded)}, label=x.label) for x in launches
    ]
    assert len(launches) == parts and ncu.check(counts, problem, launches, ncu.Options()) == {}


def test_a_launch_missing_is_not_held_against_the_others() -> None:
    part = [Counted("tiled2d", values={metrics.FFMA: 10.0}, label="main")]
    assert ncu.check(part, PROBLEM, LAUNCHES * 2, ncu.Options()) == {}


def test_cold_caches_cannot_read_less_than_a_and_b() -> None:
    low = {"dram__bytes_read.sum": 1e6}
    assert "A and B alone" in ncu.why(marks(**low), "main", "dram__bytes_read.sum")
    assert not ncu.why(marks(**low), "main", metrics.SHARED)
    assert marks(cache="none", **low) == {}
    with_c = Problem(512, 512, 512, beta=1.0)
    assert marks(with_c, **{"dram__bytes_read.sum": 2.2e6}) != {}


@given(m=st.integers(1, 300), n=st.integers(1, 300), k=st.integers(1, 300), tile=st.sampled_from([2, 8, 32, 64]))
def test_exact_work_with_any_tile_is_plausible(m: int, n: int, k: int, tile: int) -> None:
    """From M*N*K itself to every tile in full with K rounded up to the tile."""
    problem = Problem(m, n, k)
    blocks = (-(-n // tile), -(-m // tile), 1)
    launch = Launch("k", blocks, (32, 1, 1), (tile, tile))
    for work in (m * n * k, launch.blocks * tile * tile * (-(-k // tile) * tile)):
        assert (
            ncu.check(
                [Counted("k", values={metrics.FFMA: float(work)}, label="main")], problem, [launch], ncu.Options()
            )
            == {}
        )
