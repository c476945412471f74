"""Each rung beside its parent: every aim is known, flags follow from the values, and README's table is the program's."""

import math

import pandas as pd
import pytest

from harness import bounds, cli, metrics, record, stage, steps
from harness.errors import TilescopeError
from harness.ledger import Evidence


@pytest.fixture(scope="module")
def small():
    return steps.run(size=256)


def test_every_rung_beside_its_parent(small):
    parents = {s.name: s.parent for s in stage.ladder() if s.parent}
    assert small.table.groupby("stage").parent.first().to_dict() == parents and not small.missing
    assert set(small.table.columns) == set(steps.COLUMNS)
    for s in stage.ladder():
        mine = small.table[small.table.stage == s.name]
        assert list(mine[mine.aim].quantity) == list(s.aims if s.parent else ())
        assert not s.parent or set(steps.QUANTITIES) <= set(mine.quantity)
    text = steps.render(small)
    assert "TILED2D -> VECTORIZED" in text and "WHAT IT AIMED AT MOVED THE WRONG WAY: shared wavefronts" in text


def test_what_conflicts_cost(small):
    lost = small.lost.set_index("against")
    assert set(lost.index) == {"tiled2d", "vectorized"} and set(lost.stage) == {"bankfree"}
    assert (lost.predicted_ms > 0).all() and (lost.without_ms < lost.bound_ms).all()
    known = {r.stage.name: r for r in small.rungs}
    assert lost.conflicts["vectorized"] == known["vectorized"].values[metrics.SHARED_EXCESS]


@pytest.mark.parametrize(
    "name, before, after, spread, expected",
    [
        ("issue", 2.0, 1.0, None, steps.BETTER),
        ("issue", 1.0, 1.005, None, steps.STUCK),
        ("issue", 1.0, 1.5, None, steps.WORSE),
        ("arithmetic_intensity", 1.0, 2.0, None, steps.BETTER),
        ("arithmetic_intensity", 2.0, 1.0, None, steps.WORSE),
        ("time_ms", 1.0, 0.95, 0.1, steps.STUCK),
        ("time_ms", 1.0, 0.95, 0.01, steps.BETTER),
        ("time_ms", math.nan, 0.95, None, steps.UNKNOWN),
        ("inst_executed", 5.0, 0.0, None, steps.BETTER),
    ],
)
def test_verdict(name, before, after, spread, expected):
    assert steps.verdict(name, before, after, spread) == expected


def rung(name, parent=None, aims=(), seconds=1.0, ms=math.nan, **values):
    s = stage.Stage(name, name, lambda p, t: [], parent=parent, aims=aims)
    found = [bounds.Bound("data stage", 1, seconds, "", True, 10.0), bounds.Bound("issue", 1, 0.5, "", True, 1.0)]
    have = {"data stage": seconds * 1e3, "issue": 500.0, metrics.SHARED_EXCESS: 0.0, "time_ms": ms} | values
    return steps.Rung(s, have, dict.fromkeys(have, "sim"), found, (ms, ms * 0.99, ms * 1.01))


def test_flags_and_conflicts_on_made_up_rungs():
    a = rung("a", ms=2000.0, **{metrics.SHARED_EXCESS: 8.0})
    b = rung("b", "a", ("time_ms", "issue", metrics.SHARED_EXCESS), seconds=0.2, ms=1200.0)
    b.stalls = {"barrier": 0.5, "wait": 1.0, "x": 0.1}
    done = steps.compared("r", "h200", 64, [a, b])
    assert list(done.flagged.quantity) == ["issue"] and list(done.flagged.verdict) == [steps.STUCK]
    row = done.lost.iloc[0]  # a tenth of the data stage's work is left: less than issue
    assert (row.predicted_ms, row.without_ms, row.gained_ms) == (500.0, 500.0, 800.0)
    page = steps.markdown(done)
    assert "`a` to `b`" in page and "bound of issue (ms) did not move" in page and "wait 1, barrier 0.5" in page
    with pytest.raises(TilescopeError, match="no metric and no bound"):
        steps.compared("r", "h200", 64, [a, rung("c", "a", ("nonsense",))])


def test_verb(tmp_path, capsys, monkeypatch, small):
    monkeypatch.setattr(record, "PROFILES", tmp_path / "none")
    assert cli.main(["steps", "--size", "64", "--out", str(tmp_path / "run"), "--device", "t4"]) == 0
    printed = capsys.readouterr().out
    assert "NAIVE -> TILED" in printed and "warptiled was left out" in printed
    run = record.load(tmp_path / "run")
    assert run.manifest["kind"] == "steps" and "warptiled" in run.manifest["missing"]
    assert list(pd.read_csv(run.path / "steps.csv").columns) == list(steps.COLUMNS)
    assert len(run.table("steps")) == len(pd.read_csv(run.path / "steps.csv"))


def test_steps_that_are_not_recorded_are_printed(unrecorded, monkeypatch):
    monkeypatch.setattr(stage, "ladder", lambda: [stage.find("naive"), stage.find("tiled")])
    assert "NAIVE -> TILED" in unrecorded("steps", "SIZE=64")


def test_what_warps_wait_for_as_recorded():
    """Only profiles with every section of Nsight Compute have it; the others say nothing."""
    evidence = Evidence("h200")
    found = evidence.stalls("tiled2d", 512)
    assert max(found, key=found.get) == "long_scoreboard" and "selected" not in found
    assert evidence.stalls("tiled2d", 123) == {}


def test_a_size_that_is_none():
    with pytest.raises(TilescopeError, match="SIZE=0 is less than 1"):
        steps.run(size=0)
