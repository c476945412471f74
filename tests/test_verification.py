"""harness.verify: right stages pass, each bug is a failed verdict, Ctrl-C keeps what is finished."""

from __future__ import annotations

import json

import pytest

import harness
from harness import report, verification
from harness.errors import TilescopeError
from harness.problem import Problem


def test_a_right_stage_passes():
    done = harness.verify("tiled", count=5, backend="sim", tile=8)
    assert done.ok and len(done.verdicts) == done.planned and done.tunables == {"TILE": 8}
    assert sum(v.case.group == "random" for v in done.verdicts) == 5
    assert all(v.accuracy.wrong == 0 for v in done.verdicts if v.case.exact)
    words = report.render_verification(done)
    assert f"{done.planned} of {done.planned} problems correct" in words and max(map(len, words.splitlines())) <= 100


@pytest.mark.parametrize("kernel", ["naive_mixed_axes", "tiled_no_second_barrier"])
def test_a_bug_is_a_failed_verdict_and_the_rest_still_runs(kernel):
    done = harness.verify(kernel, count=0, backend="sim")
    assert not done.ok and len(done.verdicts) == done.planned
    assert done.failed[0].why
    assert "more failures" in report.render_verification(done)
    json.dumps(harness.verify(kernel, count=0, backend="sim").to_json()["verdicts"][0])


def test_the_pack_covers_what_it_says():
    cases = list(verification.pack({"BM": 64, "BN": 64, "BK": 8}))
    problems = [c.problem for c in cases]
    squares = [c.problem for c in cases if c.group == "squares from 1"]
    assert squares == [Problem(n, n, n, seed=n) for n in range(1, 65)]
    assert any(p.k < 8 and p.m > 64 for p in problems)
    assert any(p.beta for p in problems) and any(p.ldc > p.n for p in problems)
    assert any(c.exact for c in cases)
    assert len({c.group for c in cases}) == 11


@pytest.mark.parametrize("tunables", [{}, {"TILE": 2}, {"BM": 8, "BN": 128, "BK": 1}])
def test_the_pack_is_legal_for_any_tile(tunables):
    assert len(list(verification.pack(tunables))) > 50


def test_random_cases_are_seeded():
    assert list(verification.random_cases(9, 1)) == list(verification.random_cases(9, 1))
    assert list(verification.random_cases(9, 1)) != list(verification.random_cases(9, 2))


def test_interrupted(monkeypatch):
    real, calls = verification._judge, []

    def judge(*args):
        calls.append(args)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(verification, "_judge", judge)
    done = harness.verify("naive", count=0, backend="sim")
    assert done.interrupted and len(done.verdicts) == 3
    assert f"interrupted: {done.planned - 3} were not run" in report.render_verification(done)


def test_bad_input():
    with pytest.raises(TilescopeError, match="COUNT"):
        harness.verify("tiled", count=-1)
    with pytest.raises(TilescopeError, match="unknown tunable"):
        harness.verify("tiled", bm=3)
