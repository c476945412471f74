"""Verdicts on claims."""

import math
from types import SimpleNamespace

import pytest

from harness import claims, device
from harness.problem import Problem
from harness.stage import Claim, Stage

CONTEXT = SimpleNamespace(t=SimpleNamespace(TILE=16), p=Problem(64, 64, 64), d=device.find("h200"))
BYTES, SECTORS = "global_load_bytes", "global_load_sector_bytes"


def check(*found, metrics=None, baselines=None):
    stage = Stage("s", "", lambda p, t: [], claims=found)
    return claims.check(stage, CONTEXT, metrics or {BYTES: 100.0, SECTORS: 200.0}, baselines)


def claim(**changes):
    return Claim(**{"says": "says", "article": "2D, 1", "metrics": (BYTES,), "expect": lambda c: 100.0, **changes})


def test_holds():
    (v,) = check(claim(says="a {TILE} x {TILE} tile at K={K}", why="only if not"))
    assert (v.verdict, v.says, v.expected, v.why) == ("holds", "a 16 x 16 tile at K=64", 100.0, "")
    assert v.readings == (claims.Reading(BYTES, 100.0, True),) and v.holds


def test_holds_for_one_metric_and_not_for_the_other():
    (v,) = check(claim(metrics=(BYTES, SECTORS), why="lanes share sectors"))
    assert v.verdict == f"holds for {BYTES}, not for {SECTORS}"
    assert v.why == "lanes share sectors" and not v.holds
    assert [r.holds for r in v.readings] == [True, False]


def test_does_not_hold():
    (v,) = check(claim(expect=lambda c: 99.0, why="so"))
    assert (v.verdict, v.why) == ("does not hold", "so")


def test_against_a_baseline_is_baseline_over_this():
    (v,) = check(claim(expect=lambda c: c.t.TILE, against="naive"), baselines={"naive": {BYTES: 1600.0}})
    assert v.verdict == "holds" and v.readings[0].value == 16 and v.against == "naive"


def test_tolerance_is_relative():
    assert check(claim(expect=lambda c: 101.0, tolerance=0.02))[0].holds
    assert not check(claim(expect=lambda c: 101.0, tolerance=0.005))[0].holds
    assert check(claim(expect=lambda c: 0.0), metrics={BYTES: 0.0})[0].holds


def test_a_claim_that_does_not_speak_of_this_context_is_left_out():
    assert check(claim(when=lambda c: c.t.TILE == 32)) == []


@pytest.mark.parametrize(
    "broken, says",
    [
        (claim(expect=lambda c: c.t.BM), "formula fails: AttributeError"),
        (claim(expect=lambda c: 1 / 0), "ZeroDivisionError"),
        (claim(when=lambda c: c.q), "AttributeError"),
        (claim(metrics=("no_such",)), "no metric no_such"),
        (claim(metrics=()), "names no metric"),
        (claim(metrics=("inst_executed",)), "no value for inst_executed"),
        (claim(against="naive"), "naive, which was not profiled"),
    ],
)
def test_what_cannot_be_checked_is_said_and_is_not_fatal(broken, says):
    first, second = check(broken, claim())
    assert first.verdict == "cannot be checked" and says in first.why and first.readings == ()
    assert second.verdict == "holds"


def test_nan_does_not_hold():
    assert check(claim(), metrics={BYTES: math.nan})[0].verdict == "does not hold"
    (v,) = check(claim(against="naive"), metrics={BYTES: 0.0}, baselines={"naive": {BYTES: 1.0}})
    assert v.verdict == "does not hold" and math.isnan(v.readings[0].value)


def test_braces_that_name_nothing_stay():
    assert check(claim(says="{BM} of {0}"))[0].says == "{BM} of {0}"
