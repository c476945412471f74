"""Simulated against what an H200 counted: equal where it must be, arbitration by its name, a difference with its line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from harness import agreement, device, metrics, sim, toolchain
from harness.agreement import ARBITRATION, DIFFERS, EQUAL, EXPLAINED, IMPLAUSIBLE
from harness.problem import Problem
from harness.stage import Launch
from harness.toolchain import Kernel

DATA = Path(__file__).parent / "data/article_kernels"
RECORDED = {f"{r['stage']}-{r['M']}": r for r in json.loads((DATA / "h200_counters.json").read_text())["launches"]}
H200 = device.find("h200")


@pytest.fixture(scope="module")
def tiled2d() -> tuple[dict, dict, Kernel, pd.DataFrame]:
    """(simulated, measured, kernel, counts) of the article's 2D kernel at 512."""
    r = RECORDED["tiled2d-512"]
    binary = toolchain.load(DATA / r["cubin"])
    launch = Launch(
        r["function"], tuple(r["grid"]), tuple(r["block"]), tuple(r["tile"]), args=("A", "B", "C", "M", "N", "K")
    )
    problem = Problem(r["M"], r["N"], r["K"])
    done = sim.run(binary, [launch], problem, problem.operands(), blocks="count").launches[0]
    measured = {name: float(v) for name, v in r["metrics"].items()}
    measured["launch__shared_mem_per_block_static"] *= 1000  # recorded in Kbyte
    simulated = metrics.launch_values(launch, binary.kernel(launch.entry), done.counts, problem, H200)
    return simulated, measured, binary.kernel(launch.entry), done.counts


def test_every_counter_of_an_h200_agrees(tiled2d) -> None:
    simulated, measured, kernel, counts = tiled2d
    found = {
        c.metric: c
        for c in agreement.compare("main", simulated, metrics.derived(measured), counts=counts, kernel=kernel)
    }
    assert all(c.ok for c in found.values()), [c for c in found.values() if not c.ok]
    for exact in (
        *metrics.COUNTED_IN_CODE,
        metrics.REQUESTS_LD,
        metrics.SECTORS_ST,
        metrics.FFMA,
        metrics.SHARED_EXCESS,
    ):
        assert found[exact].verdict == EQUAL
    assert found["sm__maximum_warps_per_active_cycle_pct"].verdict == EQUAL


def test_the_raw_counters_excess_is_called_arbitration(tiled2d) -> None:
    simulated, measured, *_ = tiled2d
    found = {c.metric: c for c in agreement.compare("main", simulated, measured)}
    stores = found[metrics.CONFLICTS_ST]
    assert (stores.simulated, stores.measured, stores.verdict) == (0, 1607, ARBITRATION)
    assert "1,607" in stores.why and "not conflicts" in stores.why
    assert found[metrics.CONFLICTS_LD].verdict == EQUAL
    assert agreement.arbitration(measured) == 1607


def test_arbitration_is_not_known_without_its_counters() -> None:
    assert math.isnan(agreement.arbitration({metrics.SHARED: 5.0}))
    below = {metrics.SHARED: 50.0, metrics.WAVEFRONTS_LD: 20.0, metrics.WAVEFRONTS_ST: 10.0}
    assert math.isnan(agreement.arbitration(below))
    assert agreement.arbitration(below, copies=25.0) == 5  # they are in the code's count and not in the pipe's


def test_a_counter_that_holds_waiting_is_not_called_bank_conflicts() -> None:
    assert agreement.label(metrics.CONFLICTS_LD) == "passes that bank conflicts or waiting add to shared loads"
    for exact in (metrics.SHARED_EXCESS, metrics.WAVEFRONTS_LD):
        assert agreement.label(exact) == metrics.METRICS[exact].meaning


@pytest.mark.parametrize("excess, verdict", [(0, EQUAL), (25, ARBITRATION), (26, DIFFERS), (-1, DIFFERS)])
def test_an_excess_has_limits(excess: int, verdict: str) -> None:
    simulated = {metrics.WAVEFRONTS_LD: 100.0, metrics.CONFLICTS_LD: 40.0}
    (_, c) = agreement.compare("main", simulated, {metrics.WAVEFRONTS_LD: 100.0, metrics.CONFLICTS_LD: 40.0 + excess})
    assert c.metric == metrics.CONFLICTS_LD and c.verdict == verdict and c.excess == excess


def test_a_difference_names_its_line(tiled2d) -> None:
    simulated, measured, kernel, counts = tiled2d
    per_pc = {"inst_executed": dict(counts.executed), metrics.SHARED: dict(counts.wavefronts)}
    at = next(i for i in kernel.instructions if i.base == "LDS")
    per_pc[metrics.SHARED][at.pc] += 1000
    changed = measured | {metrics.SHARED: measured[metrics.SHARED] + 1000}
    found = {
        c.metric: c
        for c in agreement.compare(
            "main", simulated, metrics.derived(changed), per_pc=per_pc, counts=counts, kernel=kernel
        )
    }
    c = found[metrics.SHARED]
    assert c.verdict == DIFFERS and not c.ok
    (line,) = c.lines
    assert (line.file, line.line) == (at.file, at.line) and line.measured - line.simulated == 1000
    assert found["inst_executed"].verdict == EQUAL
    assert found[metrics.SHARED_EXCESS].lines


def test_a_total_that_its_lines_do_not_bear_out(tiled2d) -> None:
    simulated, measured, kernel, counts = tiled2d
    per_pc = {"inst_executed": dict(counts.executed)}
    changed = measured | {"inst_executed": measured["inst_executed"] + 1, metrics.SECTORS_LD: 5.0}
    found = {
        c.metric: c
        for c in agreement.compare(
            "main", simulated, metrics.derived(changed), per_pc=per_pc, counts=counts, kernel=kernel
        )
    }
    assert found["inst_executed"].why == "must be equal, as every source line is"
    assert found[metrics.SECTORS_LD].why == "must be equal"


def test_a_difference_outside_the_kernel_is_on_no_line(tiled2d) -> None:
    *_, kernel, counts = tiled2d
    table = agreement.line_table(kernel, {"simulated": dict(counts.executed), "measured": {10**6: 5.0}})
    assert table.loc[("", 0), "measured"] == 5 and table.measured.sum() == 5
    assert table.simulated.sum() == counts.executed.sum()


def test_lines_of_a_whole_kernel(tiled2d) -> None:
    """Per line as the H200 counted it."""
    *_, kernel, counts = tiled2d
    recorded = RECORDED["tiled2d-512"]["per_line"]
    for name in (metrics.SHARED, metrics.L2_SECTORS_IDEAL, "inst_executed"):
        table = agreement.line_table(kernel, {"simulated": dict(agreement.per_instruction(name, counts))})
        lines = table.groupby(level="line").simulated.sum()
        for line, values in recorded.items():
            assert lines[int(line)] == values.get(name, 0)


def test_shared_limit_of_a_smaller_carveout() -> None:
    theoretical = "sm__maximum_warps_per_active_cycle_pct"
    simulated = {agreement.SHARED_LIMIT: 44.0, theoretical: 31.25}
    (c, _) = agreement.compare("main", simulated, {agreement.SHARED_LIMIT: 18.0, theoretical: 31.25})
    assert c.verdict == EXPLAINED and "driver" in c.why
    (c, _) = agreement.compare("main", simulated, {agreement.SHARED_LIMIT: 8.0, theoretical: 25.0})
    assert c.verdict == DIFFERS


@pytest.mark.parametrize(
    "achieved, verdict, words",
    [(31.0, EXPLAINED, "beside"), (10.0, EXPLAINED, "too few blocks"), (40.0, DIFFERS, "more warps")],
)
def test_achieved_beside_theoretical_occupancy(achieved: float, verdict: str, words: str) -> None:
    (c,) = agreement.compare("main", {agreement.THEORETICAL: 31.25}, {agreement.ACHIEVED: achieved})
    assert c.metric == agreement.ACHIEVED and c.verdict == verdict and words in c.why


def test_an_implausible_value_is_not_compared() -> None:
    (c,) = agreement.compare(
        "main", {metrics.FFMA: 5.0}, {metrics.FFMA: math.nan}, implausible=lambda m: "not a number"
    )
    assert c.verdict == IMPLAUSIBLE and c.why == "not a number" and not c.ok


def test_metrics_without_a_rule_are_left_out() -> None:
    assert agreement.compare("main", {"lts__t_sectors_op_read.sum": 5.0}, {"lts__t_sectors_op_read.sum": 6.0}) == []


def test_sectors_read_in_several_passes() -> None:
    """naive_uncoalesced at 512 among many metrics, as an H200 gave it, alone it counted 262,144; and what vectorized at 1024 gave."""
    simulated = {metrics.SECTORS_ST: 262144.0, agreement.SECTORS_IN_CODE: 138674176.0}
    for counted in (263709.0, 261955.0, 198972.0):
        measured = {metrics.SECTORS_ST: counted, agreement.SECTORS_IN_CODE: 138674176.0}
        found = {c.metric: c for c in agreement.compare("main", simulated, measured)}
        assert found[metrics.SECTORS_ST].verdict == "explained" and "different passes" in found[metrics.SECTORS_ST].why
    wrong = {metrics.SECTORS_ST: 263709.0, agreement.SECTORS_IN_CODE: 138674175.0}
    assert {c.metric: c for c in agreement.compare("main", simulated, wrong)}[metrics.SECTORS_ST].verdict == "differs"
    far = {metrics.SECTORS_ST: 400000.0, agreement.SECTORS_IN_CODE: 138674176.0}
    assert {c.metric: c for c in agreement.compare("main", simulated, far)}[metrics.SECTORS_ST].verdict == "differs"
