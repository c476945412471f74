"""Claims of experiments: selectors, ratios, formulas, verdicts."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from harness import experiment_report
from harness.errors import TilescopeError
from harness.expectations import FAILS, HOLDS, UNCHECKED, Claim, Measured, Verdict


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


@pytest.mark.parametrize(
    "table, quantity",
    [
        ({"equals": 1}, "tflops"),
        ({"source": "ncu", "equals": 1}, "tflops [ncu]"),
        ({"against": {"stage": "naive"}, "equals": 1}, "tflops of naive over its own"),
        ({"against": {"stage": ["naive", "tiled"], "TILE": 2}, "inverse": True, "equals": 1}, "tflops over that of naive or tiled TILE=2"),
        ({"against": {"highest": "time_ms"}, "equals": 1}, "tflops of the point with the highest time_ms over its own"),
        ({"against": {"TILE": 2}, "equals": 1}, "tflops of points TILE=2 over its own"),
    ],
)  # fmt: skip
def test_what_is_compared_is_said(table, quantity):
    assert verdict(**table).quantity == quantity


def test_a_verdict_comes_back_from_a_manifest():
    found = verdict(most=1, holds=False, why="it is 5")
    kept = asdict(found) | {"readings": [asdict(r) for r in found.readings]}
    assert Verdict.of(kept) == found and found.relation == "most"
    del kept["quantity"], kept["relation"]  # of a run recorded before there were these
    assert experiment_report.readings(Verdict.of(kept)).startswith(
        "tflops: 1 of 4 points agree; furthest off: 5 for tiled"
    )


def test_claims_in_words():
    holds, fails, surprise, unknown = (
        verdict(least=1),
        verdict(most=1, holds=False),
        verdict(most=1),
        verdict(source="x", most=1),
    )
    assert experiment_report.tally([unknown, holds, holds, fails, surprise]) == (
        "5 claims: 2 hold; 1 does not hold, as expected; 1 does not hold, NOT as expected; 1 not measured"
    )
    assert experiment_report.tally([surprise, surprise]) == "2 claims: 2 do not hold, NOT as expected"
    assert (
        experiment_report.readings(holds)
        == "tflops: all 4 points agree, for example 5 for tiled TILE=4 at 128, claimed at least 1"
    )
    single = verdict(of={"size": 128}, most=4)
    assert experiment_report.readings(single) == "tflops: 5 for tiled TILE=4 at 128, claimed at most 4"


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
