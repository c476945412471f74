"""Claims of experiments: selectors, ratios, formulas, verdicts."""

from __future__ import annotations

import math

import pytest

from harness.errors import TilescopeError
from harness.expectations import FAILS, HOLDS, UNCHECKED, Claim, Measured


def point(
    stage: str, size: int = 64, device: str = "h200", source: str = "sim", tunables=None, **values: float
) -> Measured:
    return Measured(stage, device, size, size, size, tunables or {}, {name: {source: v} for name, v in values.items()})


POINTS = [
    point("naive", tflops=1.0, fault=0),
    point("tiled", tunables={"TILE": 2}, tflops=2.0, fault=0),
    point("tiled", tunables={"TILE": 4}, tflops=4.0, fault=0),
    point("tiled", 128, tunables={"TILE": 4}, tflops=5.0, fault=1),
]


def verdict(points=POINTS, **table):
    return Claim.read({"says": "x", "metric": "tflops", **table}).judge(points)


@pytest.mark.parametrize(
    "table, expected, count",
    [
        ({"of": {"stage": "tiled", "size": 64}, "equals": "TILE"}, HOLDS, 2),
        ({"of": {"stage": "tiled"}, "equals": "TILE"}, FAILS, 3),
        ({"of": {"TILE": [2, 4], "m": 64}, "against": {"stage": "naive"}, "equals": "1 / TILE"}, HOLDS, 2),
        ({"of": {"TILE": 4, "m": 64}, "against": {"stage": "naive"}, "inverse": True, "equals": 4}, HOLDS, 1),
        ({"of": {"size": 128}, "against": {"stage": "naive"}, "equals": 4}, UNCHECKED, 0),
        ({"of": {"highest": "tflops"}, "equals": 5}, HOLDS, 1),
        ({"of": {"stage": "tiled", "lowest": "tflops"}, "equals": 2}, HOLDS, 1),
        ({"of": {"lowest": "time_ms"}, "equals": 2}, UNCHECKED, 0),
        ({"least": 1}, HOLDS, 4),
        ({"most": 4.9}, FAILS, 4),
        ({"of": {"size": 128}, "equals": 5.2, "tolerance": 0.04}, HOLDS, 1),
        ({"of": {"size": 128}, "equals": "ceil(m / 100) + max(1, 3) - -k % 1"}, HOLDS, 1),
        ({"source": "timing", "equals": 1}, UNCHECKED, 0),
        ({"of": {"stage": "none"}, "equals": 1}, UNCHECKED, 0),
    ],
)
def test_verdicts(table, expected, count):
    found = verdict(**table)
    assert (found.verdict, len(found.readings)) == (expected, count)


def test_a_surprise_is_a_verdict_other_than_the_definition_says():
    assert verdict(most=1).surprise and not verdict(most=1, holds=False, why="it is 5").surprise
    assert verdict(most=9, holds=False).surprise and not verdict(source="ncu", most=1).surprise
    assert verdict(most=1, holds=False, why="it is 5").why == "it is 5"
    assert verdict(most=4).worst.value == 5.0


def test_the_simulated_value_goes_first_and_missing_ones_are_nan():
    both = Measured("x", "h200", 1, 1, 1, {}, {"tflops": {"ncu": 1.0, "sim": 2.0}})
    assert both.value("tflops") == 2.0 and both.value("tflops", "ncu") == 1.0 and math.isnan(both.value("fault"))


@pytest.mark.parametrize(
    "table, complaint",
    [
        ({"metric": "tflop", "equals": 1}, "unknown metric `tflop`. Did you mean tflops"),
        ({}, "needs one of `equals`"),
        ({"equals": 1, "most": 2}, "needs one of"),
        ({"equals": 1, "tolerance": "a"}, "`tolerance`"),
        ({"equals": "m.real"}, "no formula"),
        ({"equals": "[1]"}, "no formula"),
        ({"equals": "9**9**9"}, "no formula"),
        ({"equals": "open('x')"}, "no formula"),
        ({"equals": 1, "of": {"highest": "x"}}, "unknown metric `x`"),
        ({"equals": 1, "of": []}, "`of`"),
    ],
)
def test_bad_claims(table, complaint):
    with pytest.raises(TilescopeError, match=complaint):
        verdict(**table)


@pytest.mark.parametrize(
    "formula, complaint", [("BM", "names BM"), ("1 / (m - m)", "cannot be computed"), ("m // (k - m)", "cannot be")]
)
def test_formulas_that_fail_at_a_point(formula, complaint):
    with pytest.raises(TilescopeError, match=complaint):
        verdict(equals=formula)
