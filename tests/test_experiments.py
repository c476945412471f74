"""Experiments: resumed after anything, nothing measured twice, recorded whole; bad input and damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
from harness import cli, experiment_record, experiments, measuring, record
from harness.errors import TilescopeError
from harness.journal import KEPT

ROOT = Path(experiments.__file__).resolve().parent.parent
TEXT = """
question = "Does traffic fall by TILE?"
metrics = ["global_load_bytes", "right"]
sources = ["sim", "timing"]

[[points]]
stages = ["naive", "tiled"]
sizes = [32]

[[points]]
stages = ["tiled"]
tunables = { TILE = [4, 8] }
sizes = [32, 40]

[[claims]]
says = "the lanes' bytes fall by TILE"
metric = "global_load_bytes"
of = { stage = "tiled", size = 32 }
against = { stage = "naive" }
equals = "TILE"
"""
POINTS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/experiment.toml").write_text(TEXT)
    return tmp_path / "mine"


@pytest.fixture
def measured(monkeypatch) -> list:
    """The points that are measured, as they are."""
    points: list = []
    real = measuring.Task.run

    def run(task, progress=None):
        points.append(task.point)
        return real(task, progress)

    monkeypatch.setattr(measuring.Task, "run", run)
    return points


def run(folder: Path, **options) -> experiment_record.Experiment:
    return harness.experiment(folder, backend="sim", **options)


def test_a_run_holds_every_point_and_comes_back(folder, measured):
    found = run(folder)
    assert found.ok and len(found.points) == len(measured) == POINTS
    kept = record.load(found.path)
    assert kept.path.parent == folder / "runs" and kept.manifest["kind"] == "experiment"
    assert kept.runs.run.tolist() == [f"{found.id}/{n}" for n in range(POINTS)]
    assert set(kept.values.run) == set(kept.runs.run) and list(kept.values) == list(record.VALUES)
    binaries = kept.table("binaries")
    assert set(binaries.sass) == set(kept.runs.sass) and len(binaries) == 4
    assert all(code.startswith(b"\x7fELF") for code in binaries.cubin) and str(ROOT).encode() not in b"".join(
        binaries.cubin
    )
    assert "registers" in binaries.ptxas[0] and str(ROOT) not in "".join(binaries.ptxas)
    assert kept.text("experiment.toml") == TEXT and "holds: the lanes' bytes" in kept.text("profile.txt")
    again = experiment_record.loaded(kept)
    assert again.table.equals(found.table) and again.claims == found.claims
    assert [repr(m.values) for m in again.measurements] == [repr(m.values) for m in found.measurements]


def test_what_is_known_is_not_measured_again(folder, measured):
    first = run(folder)
    assert run(folder).path == first.path and len(measured) == POINTS and len(list((folder / "runs").iterdir())) == 1
    (folder / "experiment.toml").write_text(TEXT.replace("[4, 8]", "[4, 8, 16]"))
    second = run(folder)
    assert len(measured) == POINTS + 2 and second.taken.count(first.id) == POINTS
    (folder / "experiment.toml").write_text(TEXT.replace("right", "fault"))  # the same points, another table
    third = run(folder)
    assert len(measured) == POINTS + 2 and third.path not in (first.path, second.path)
    assert run(folder, fresh=True).taken == ["measured"] * POINTS


@pytest.mark.parametrize("change", ["tools", "source", "damaged"])
def test_what_could_differ_is_measured_again(folder, measured, monkeypatch, change, tmp_path):
    first = run(folder)
    if change == "tools":
        monkeypatch.setattr(measuring, "simulator_version", lambda: "another")
    elif change == "source":
        real = measuring.key
        monkeypatch.setattr(
            measuring, "key", lambda task, binary, tools: real(task, binary, {**tools, "sass": "other"})
        )
    else:
        (first.path / "values.parquet").write_bytes(b"PAR1")
    assert run(folder).taken == ["measured"] * POINTS


def test_ctrl_c_keeps_what_is_finished(folder, monkeypatch, capsys):
    real, done = measuring.Task.run, []

    def interrupted(task, progress=None):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(task)
        return real(task, progress)

    monkeypatch.setattr(measuring.Task, "run", interrupted)
    assert cli.main(["experiment", str(folder), "backend=sim"]) == 130
    assert "same command goes on" in capsys.readouterr().err
    assert [p.name for p in (folder / "runs").iterdir()] == [".journal-mine-sim.jsonl"]
    monkeypatch.setattr(measuring.Task, "run", real)
    found = run(folder)
    assert found.taken.count("journal") == 3 and [p.name for p in (folder / "runs").iterdir()] == [found.id]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_real_kill_loses_the_point_in_flight_at_most(folder, number):
    code = f"""
import time
from harness import cli, measuring
real, done = measuring.Task.run, []
def run(task, progress=None):
    if len(done) == 2:
        print("two", flush=True)
        time.sleep(60)
    done.append(task)
    return real(task, progress)
measuring.Task.run = run
raise SystemExit(cli.main(["experiment", {str(folder)!r}, "backend=sim"]))
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    with child.stdout:
        assert child.stdout.readline() == "two\n"
        child.send_signal(number)
        child.wait(30)
    assert child.returncode == (130 if number == signal.SIGINT else -9)
    found = run(folder)
    assert found.taken.count("journal") == 2 and found.ok


def test_two_at_once(folder):
    from harness.journal import Journal

    with Journal(folder / "runs/.journal-mine-sim.jsonl"), pytest.raises(TilescopeError, match="another process"):
        run(folder)


def test_a_disk_that_fills_up_keeps_the_points(folder, monkeypatch, measured):
    real = record.write

    def full(*args, **kwargs):
        raise TilescopeError("the disk is full: the run was not recorded.")

    monkeypatch.setattr(record, "write", full)
    with pytest.raises(TilescopeError, match="full"):
        run(folder)
    monkeypatch.setattr(record, "write", real)
    assert run(folder).taken == ["journal"] * POINTS and len(measured) == POINTS


def test_an_experiment_that_is_not_recorded_is_printed_and_goes_on(folder, unrecorded, monkeypatch, measured):
    said = unrecorded("experiment", str(folder), "BACKEND=sim", remedy=KEPT, out=False)
    assert "1 hold" in said and len(measured) == POINTS
    assert [p.name for p in (folder / "runs").iterdir()] == [".journal-mine-sim.jsonl"]
    monkeypatch.undo()
    assert run(folder).taken == ["journal"] * POINTS
    assert len([*(folder / "runs").iterdir()]) == 1


def test_a_point_that_cannot_be_measured_leaves_the_others(folder, monkeypatch, capsys):
    real = measuring._simulate

    def fails(task, *args):
        if task.point.problem.m == 40:
            raise TilescopeError("out of something.")
        return real(task, *args)

    monkeypatch.setattr(measuring, "_simulate", fails)
    assert cli.main(["experiment", str(folder), "backend=sim"]) == 2
    said = capsys.readouterr()
    assert "2 of 6 points could not be measured: out of something" in said.err and "NOT MEASURED" in said.out
    monkeypatch.setattr(measuring, "_simulate", real)
    assert run(folder).taken.count("measured") == 2


def test_what_is_printed_explains_itself(folder):
    more = '\n[[claims]]\nsays = "it is fast"\nmetric = "time_ms"\nmost = 1\n'
    more += '[[claims]]\nsays = "no conflicts"\nmetric = "bank_conflict_share"\nof = { stage = "tiled", TILE = 4 }\nequals = 0\n'
    text = TEXT.replace('"right"', '"bound: issue", "bound_ms"') + more
    (folder / "experiment.toml").write_text(text)
    found = run(folder)
    said = str(found)
    assert "6 points, simulated for h200 (BACKEND=sim)" in said and "3 claims: 2 hold; 1 not measured" in said
    assert "Claims that were not measured need a GPU (sources timing)." in said
    assert "bank_conflict_share: shared-memory passes that are bank conflicts, share" in said  # not in the table
    assert "least time: issue, ms" in said  # as bound_ms beside it
    least = found.table["bound: issue [sim]"].iloc[0]
    assert f"{1e3 * least:.6g}" in said and least < found.table["bound_ms [sim]"].iloc[0] / 100


def test_a_fault_is_an_outcome(folder):
    (folder / "experiment.toml").write_text(
        'question = "Is it found?"\nmetrics = ["fault"]\n[[points]]\nstages = ["tiled_no_first_barrier"]\ntunables = { TILE = 8 }\n'
        'sizes = [16]\n[[claims]]\nsays = "it is"\nmetric = "fault"\nequals = 1\n'
    )
    found = run(folder)
    row = record.load(found.path).runs.iloc[0]
    assert found.ok and not row.ok and row.fault_kind == "race (read-after-write)" and row.fault_other_line > 0
    assert "race (read-after-write) at kernels/faulty/tiled_no_first_barrier.cu:25 shared" in " ".join(
        str(found).split()
    )
    assert str(found) == str(experiment_record.loaded(record.load(found.path)))


def test_status_1_where_a_claim_is_not_as_expected(folder, capsys):
    (folder / "experiment.toml").write_text(TEXT.replace('"TILE"', '"TILE + 1"'))
    assert cli.main(["experiment", str(folder), "backend=sim", f"JSON={folder}/x.json"]) == 1
    assert "NOT as expected" in capsys.readouterr().out
    assert json.loads((folder / "x.json").read_text())["claims"][0]["verdict"] == "does not hold"


BAD = {
    "experiment trafic": "unknown experiment 'trafic'. Did you mean traffic?",
    "experiment traffic BACKEND=gpu": "BACKEND=gpu cannot work here",
    "experiment hello_4x4 BACKEND=gpu": "does not run with BACKEND=gpu",
    "experiment traffic BACKEND=sim GPU=1": "needs BACKEND=gpu",
    "experiment traffic WORKERS=x": "WORKERS='x' is not an integer",
    "experiment traffic WORKERS=-1": "WORKERS=-1",
    "experiment traffic OUT=/proc/x/y BACKEND=sim": "cannot write",
    "experiment traffic NVCC=/nonexistent BACKEND=sim": "no such compiler",
    "reproduce": "reproduce needs EXP=",
    "reproduce /nonexistent": "no run /nonexistent",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_two_clear_lines(capsys, monkeypatch, line):
    monkeypatch.setattr("harness.backends.gpu_missing", lambda: "no GPU")
    assert cli.main(line.split()) == 2
    said = capsys.readouterr().err
    assert BAD[line] in said and len(said.splitlines()) <= 2


def test_experiments_are_listed(capsys):
    assert cli.main(["experiment"]) == 0
    assert "ragged" in capsys.readouterr().out


def test_progress_says_how_long(folder):
    said = []
    run(folder, progress=lambda fraction, words: said.append((fraction, words)))
    assert any("3 of 6 done" in words and "left" in words for _, words in said)
    assert [experiments.span(x) for x in (5, 600, 7500)] == ["5 s", "10 min", "2 h 5 min"]


def test_measurements_travel_as_json(folder):
    found = run(folder)
    m = found.measurements[0]
    again = measuring.Measurement.of(json.loads(json.dumps(m.to_json(), default=str)))
    assert repr(again.values) == repr(m.values) and again.row == m.row


def test_the_same_gpu_is_held_by_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path))
    code = "from harness.measuring import exclusive\nwith exclusive('GPU-1'): print('in', flush=True)"
    with measuring.exclusive("GPU-1"):
        child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        time.sleep(1.0)
        assert child.poll() is None
    assert child.communicate(timeout=30)[0] == "in\n"
