"""reproduce: equal counters, other machine code, verdicts on times from recorded samples, claims that are lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import harness
from harness import cli, definition, experiment_record, measuring, record, reproduction
from harness.errors import TilescopeError
from harness.journal import KEPT
from harness.measuring import Measurement

TEXT = """
question = "Does it come out again?"
metrics = ["global_load_bytes"]

[[points]]
stages = ["naive", "tiled"]
sizes = [32]

[[claims]]
says = "the lanes' bytes fall by TILE"
metric = "global_load_bytes"
of = { stage = "tiled" }
against = { stage = "naive" }
equals = "TILE"
"""


@pytest.fixture
def recorded(tmp_path: Path) -> record.Run:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/experiment.toml").write_text(TEXT)
    return record.load(harness.experiment(tmp_path / "mine", backend="sim").path)


def changed(monkeypatch, change) -> None:
    """Let measurements be changed after they are made."""
    real = measuring.Task.run

    def run(task, progress=None):
        found = real(task, progress)
        change(task, found)
        return found

    monkeypatch.setattr(measuring.Task, "run", run)


def multiply(metric: str, factor: float, stage: str):
    def change(task, found: Measurement) -> None:
        if task.point.stage == stage:
            found.values = [(*v[:3], v[3] * factor, *v[4:]) if v[1] == metric else v for v in found.values]

    return change


def test_the_same_code_gives_the_same_counters(recorded, capsys):
    assert cli.main(["reproduce", f"EXP={recorded.path}"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 points run the same instructions" in out and " 0 different" in out and "reproduced" in out
    again = [record.load(p) for p in recorded.path.parent.iterdir() if p != recorded.path]
    assert [r.manifest["reproduces"] for r in again] == [recorded.id]
    assert record.load(recorded.path).id == recorded.id


def test_a_repetition_that_is_not_recorded_is_printed(recorded, unrecorded):
    said = unrecorded("reproduce", str(recorded.path), remedy=KEPT, out=False)
    assert "2 of 2 points run the same instructions" in said and "reproduced" in said
    kept = f".journal-reproduce-{recorded.id}.jsonl"
    assert sorted(p.name for p in recorded.path.parent.iterdir()) == [kept, recorded.path.name]


def test_a_counter_that_differs_is_not_reproduced(recorded, monkeypatch, capsys):
    changed(monkeypatch, multiply("smsp__inst_executed.sum", 1.5, "tiled"))
    assert cli.main(["reproduce", str(recorded.path), "--json", "-"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [d["metric"] for d in said["different"]] == ["smsp__inst_executed.sum"] and said["different"][0]["broken"]
    assert "1 counter differs" in said["why"]


def test_a_claim_that_no_longer_holds(recorded, monkeypatch):
    changed(monkeypatch, multiply("global_load_bytes", 2, "naive"))
    found = harness.reproduce(recorded.path)
    assert not found.ok and [c.lost for c in found.claims] == [True] and "no longer holds" in str(found)


def test_other_machine_code_may_count_otherwise(recorded, monkeypatch):
    runs = recorded.runs.copy()
    runs["sass"] = "another"
    recorded.__dict__["runs"] = runs
    found = reproduction.compare(
        experiment_record.loaded(recorded), experiment_record.loaded(record.load(recorded.path))
    )
    assert found.same_code == 0 and len(found.other_code) == 2 and found.ok
    later = experiment_record.loaded(record.load(recorded.path))
    later.measurements[0].values = [(*v[:3], v[3] + 1, *v[4:]) for v in later.measurements[0].values]
    found = reproduction.compare(experiment_record.loaded(recorded), later)
    assert found.different and not any(d.broken for d in found.different) and found.ok


@pytest.mark.parametrize(
    "factor, flags, verdict",
    [(1.0, "", "SAME"), (1.2, "", "SLOWER"), (0.8, "", "FASTER"), (0.8, "throttled", "AMBIGUOUS")],
)
def test_times_have_a_verdict_with_an_interval(recorded, factor, flags, verdict):
    rng = np.random.default_rng(0)

    def timed(scale: float, words: str) -> experiment_record.Experiment:
        found = experiment_record.loaded(record.load(recorded.path))
        for m in found.measurements:
            m.samples = [(i, scale * (1 + 0.001 * x), "", None) for i, x in enumerate(rng.standard_normal(50))]
            m.row["flags"] = words
        return found

    found = reproduction.compare(timed(1.0, ""), timed(factor, flags))
    assert [t.verdict for t in found.times] == [verdict] * 2
    assert all(t.lo < 1 / factor < t.hi or abs(t.ratio * factor - 1) < 0.01 for t in found.times)
    assert found.ok and f"{verdict}: tiled" in str(found)


def test_the_environment_that_differs_is_named(recorded):
    other = json.loads(json.dumps(recorded.manifest))
    other["environment"]["python"], other["tools"]["simulator"] = "2.7.18", "old"
    assert set(reproduction._environment(other, recorded.manifest)) == {
        ("python", "2.7.18", recorded.manifest["environment"]["python"]),
        ("simulator", "old", recorded.manifest["tools"]["simulator"]),
    }


@pytest.mark.parametrize("damage", ["truncated", "altered", "newer", "other kind", "gpu"])
def test_runs_that_cannot_be_repeated(recorded, monkeypatch, damage, tmp_path, capsys):
    monkeypatch.setattr("harness.backends.gpu_missing", lambda: "no GPU")
    path = tmp_path / "copy"
    shutil.copytree(recorded.path, path)
    manifest = json.loads((path / "manifest.json").read_text())
    expected = {"newer": "newer Tilescope", "other kind": "not an experiment", "gpu": "BACKEND=gpu cannot work"}
    if damage == "truncated":
        (path / "values.parquet").write_bytes((path / "values.parquet").read_bytes()[:-9])
    elif damage == "altered":
        (path / "experiment.toml").write_text(TEXT.replace("equals", "least"))
    else:
        manifest |= {"newer": {"format": 99}, "other kind": {"kind": "bench"}, "gpu": {"backend": "gpu"}}[damage]
        (path / "manifest.json").write_text(json.dumps(manifest))
        monkeypatch.setattr(record, "verify", lambda path: None)
    assert cli.main(["reproduce", str(path)]) == 2
    said = capsys.readouterr().err
    assert expected.get(damage, "damaged") in said and len(said.splitlines()) <= 2
    assert damage != "gpu" or "BACKEND=sim repeats what was simulated" in said


def test_what_was_simulated_of_a_gpu_run_is_repeated_on_the_simulator(recorded, monkeypatch):
    monkeypatch.setattr(record, "verify", lambda path: None)
    manifest = json.loads((recorded.path / "manifest.json").read_text()) | {"backend": "gpu"}
    (recorded.path / "manifest.json").write_text(json.dumps(manifest))
    found = harness.reproduce(recorded.path, backend="sim")
    assert found.ok and found.equal and ("backend", "gpu", "sim") in found.environment


def test_of_two_runs_the_one_that_can_be_measured_here(recorded, monkeypatch):
    folder = recorded.path.parent.parent
    other = folder / "runs" / "20990101T000000Z-00000000"
    shutil.copytree(recorded.path, other)
    manifest = json.loads((other / "manifest.json").read_text()) | {"backend": "gpu", "id": other.name}
    (other / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(reproduction.backends, "gpu_missing", lambda: "no driver")
    assert reproduction.find(folder).id == recorded.id
    monkeypatch.setattr(reproduction.backends, "gpu_missing", lambda: "")
    monkeypatch.setattr(
        reproduction.records, "load", lambda path, check=True, real=reproduction.records.load: real(path, check=False)
    )
    assert reproduction.find(folder).id == other.name


def test_an_experiment_with_one_run_means_that_run(recorded, monkeypatch, capsys):
    folder = recorded.path.parent.parent
    monkeypatch.setattr(definition, "EXPERIMENTS", folder.parent)
    for name in (folder.name, str(folder)):
        assert cli.main(["reproduce", f"EXP={name}"]) == 0
        assert f"repeats {recorded.id}" in capsys.readouterr().out  # and repetitions do not count
    again = harness.experiment(folder, backend="sim", fresh=True)
    assert cli.main(["reproduce", "EXP=mine"]) == 2
    said = capsys.readouterr().err
    assert f"experiment mine has 2 recorded runs: {again.id} (sim, h200), {recorded.id} (sim, h200)." in said
    assert f"Say which: EXP={again.id}" in said
    with pytest.raises(TilescopeError, match="no run min. Did you mean mine?"):
        harness.reproduce("min")
    shutil.rmtree(folder / "runs")
    with pytest.raises(TilescopeError, match="has no recorded run(.|\n)*make experiment NAME=mine"):
        harness.reproduce("mine")


def test_a_measurement_that_fails_is_not_reproduced(recorded, monkeypatch):
    def trouble(task, found: Measurement) -> None:
        found.values, found.trouble = [], "no"

    changed(monkeypatch, trouble)
    with pytest.raises(AssertionError):
        assert harness.reproduce(recorded.path).ok
    with pytest.raises(TilescopeError, match="no run"):
        harness.reproduce("/nonexistent")
