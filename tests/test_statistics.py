"""Statistics of times, on synthetic samples whose truth is known and on those an H200 gave."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import statistics
from harness.statistics import Estimate, median, ratio, settled, unpaired_ratio, verdict

times = st.lists(st.floats(0.1, 10), min_size=1, max_size=40)


@given(times)
def test_a_median_lies_in_its_interval(x):
    found = median(x)
    assert found.value == np.median(x) and min(x) <= found.lo <= found.hi <= max(x)
    assert found.lo <= found.value <= found.hi or len(x) < 5


@given(times, st.floats(0.1, 10))
def test_times_scale_and_so_do_their_intervals(x, factor):
    one, other = median(x), median(np.array(x) * factor)
    assert np.allclose([other.value, other.lo, other.hi], factor * np.array([one.value, one.lo, one.hi]))


def test_nothing_and_one_sample():
    assert math.isnan(median([]).value) and math.isnan(median([math.nan]).lo)
    assert median([2.0]) == Estimate(2.0, 2.0, 2.0)
    assert median([2.0, math.nan, 2.0]).value == 2.0
    assert statistics.NOTHING.half_width == math.inf


def test_the_same_samples_give_the_same_interval():
    x = np.random.default_rng(0).normal(1, 0.1, 50)
    assert median(x) == median(x)


def test_intervals_cover_the_truth():
    """In 19 of 20 experiments, about."""
    rng = np.random.default_rng(3)
    covered = sum((e := median(rng.normal(1, 0.02, 25))).lo <= 1 <= e.hi for _ in range(300))
    assert 0.91 <= covered / 300 <= 0.99


def test_a_paired_ratio_is_free_of_drift():
    """A clock that falls by a fifth during the measurement moves both members of a round."""
    rng = np.random.default_rng(1)
    drift = np.linspace(1, 1.2, 60)
    a = 2.0 * drift * rng.normal(1, 0.002, 60)
    b = 3.0 * drift * rng.normal(1, 0.002, 60)
    paired, apart = ratio(a, b), unpaired_ratio(a, b)
    assert paired.value == pytest.approx(1.5, rel=2e-3) and paired.half_width < 1e-3
    assert apart.half_width > 10 * paired.half_width


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError):
        ratio([1, 2], [1])


def test_an_unpaired_ratio():
    rng = np.random.default_rng(2)
    found = unpaired_ratio(rng.normal(2, 0.01, 40), rng.normal(1, 0.01, 30))
    assert found.lo < 0.5 < found.hi and found.half_width < 0.01
    assert math.isnan(unpaired_ratio([], [1.0]).value)


def test_a_measurement_is_the_same_as_itself_however_noisy():
    noisy = np.random.default_rng(4).normal(1, 0.5, 9)
    found = unpaired_ratio(noisy, noisy.copy())
    assert (found.value, found.lo, found.hi) == (1, 1, 1) and verdict(found) == "SAME"
    assert verdict(unpaired_ratio(noisy, noisy[1:])) == "AMBIGUOUS"


@pytest.mark.parametrize(
    "x, is_settled",
    [
        ([1.0] * 5, True),
        ([1.0] * 4, False),
        ([2.0, 1.5, 1.2, 1.1, 1.05, 1.02], False),
        ([5.0, 1.0, 1.001, 1.0, 0.999, 1.0], True),
        ([1.0, 1.003, 1.006, 1.009, 1.012], False),
        ([1.0, 1.0, math.nan, 1.0, 1.0], False),
        ([0.0] * 5, False),
    ],
)
def test_settled(x, is_settled):
    assert settled(x) is is_settled


@pytest.mark.parametrize(
    "lo, hi, word",
    [
        (1.02, 1.03, "FASTER"), (0.95, 0.98, "SLOWER"), (0.995, 1.005, "SAME"), (1.0, 1.0, "SAME"), (0.98, 1.005, "AMBIGUOUS"),
        (1.005, 1.02, "AMBIGUOUS"), (0.9, 1.1, "AMBIGUOUS"), (math.nan, math.nan, "AMBIGUOUS"),
    ],
)  # fmt: skip
def test_verdicts(lo, hi, word):
    assert verdict(Estimate((lo + hi) / 2, lo, hi)) == word


@given(st.floats(0.5, 2), st.floats(0, 0.2))
def test_who_is_faster_one_way_is_slower_the_other(middle, half):
    """Verdicts are symmetrical, since the tolerance is a factor."""
    other = {"FASTER": "SLOWER", "SLOWER": "FASTER", "SAME": "SAME", "AMBIGUOUS": "AMBIGUOUS"}
    lo, hi = middle / (1 + half), middle * (1 + half)
    edges = (1 + statistics.TOLERANCE, 1 / (1 + statistics.TOLERANCE))
    if any(abs(x - edge) < 1e-9 for x in (lo, hi, 1 / lo, 1 / hi) for edge in edges):
        return
    assert verdict(Estimate(1 / middle, 1 / hi, 1 / lo)) == other[verdict(Estimate(middle, lo, hi))]


def test_more_samples_give_narrower_intervals():
    x = np.random.default_rng(5).normal(1, 0.05, 800)
    widths = [median(x[:n]).half_width for n in (10, 50, 200, 800)]
    assert all(wide > narrow for wide, narrow in pairwise(widths))


RECORDED = sorted((Path(__file__).parents[1] / "profiles" / "recorded" / "h200").glob("ladder*/"))


@pytest.mark.skipif(not RECORDED, reason="no ladder has been recorded yet")
def test_recorded_samples_give_the_recorded_intervals():
    from harness import record

    for path in RECORDED:
        run = record.load(path)
        for n, p in enumerate(run.manifest["points"]):
            samples = run.table("samples")
            x = samples[samples.run == f"{run.id}/{n}"]
            if len(x):
                assert median(x.ms).value == pytest.approx(p["ms"]) and median(x.ms).lo == pytest.approx(p["ms_lo"])
                assert ratio(x.ms, x.rival_ms).value == pytest.approx(p["ratio"])
