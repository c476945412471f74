"""Experiments on a GPU that is not there: times beside a rival, samples kept, skipped, repeated; many launches checked."""

import json

import pytest
from fake_gpu import GPU
from test_timings import gpu  # noqa: F401

import harness
from harness import definition, measuring, ncu, record, sanitize, toolchain
from harness import stage as stages
from harness.errors import TilescopeError
from harness.gpu import repeated
from harness.problem import Problem

TEXT = """
question = "What share of cuBLAS?"
sources = ["sim", "timing"]
metrics = ["time_ms", "rival_ratio", "time_over_bound"]
limit_s = 0.05
repeats = 2

[[points]]
stages = ["naive", "tiled", "cublas"]
sizes = [32]

[[claims]]
says = "naive reaches a tenth of cuBLAS"
metric = "rival_ratio"
of = { stage = "naive" }
equals = 0.1
tolerance = 0.01
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(toolchain.cache_root()))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/experiment.toml").write_text(TEXT)
    return tmp_path / "mine"


def test_times_are_taken_recorded_and_known_again(gpu, folder):  # noqa: F811
    found = harness.experiment(folder)
    assert found.backend == "gpu" and found.ok and len(found.points) == 6 and not found.troubles
    run = record.load(found.path)
    assert (
        set(run.runs.uuid) == {GPU.uuid} and set(run.runs.device) == {"h200"} and run.runs.repeat.tolist() == [0, 1] * 3
    )
    assert set(run.table("samples").run) == set(run.runs.run) and len(run.table("telemetry"))
    assert found.table["rival_ratio [timing]"].tolist()[:2] == pytest.approx([0.1, 0.4])
    assert (found.table["time_over_bound [timing]"][:2] > 0).all()
    assert harness.experiment(folder).path == found.path
    again = harness.reproduce(found.path)
    assert again.ok and len(again.times) == 6 and again.same_code == 6


def test_a_kernel_that_is_wrong_or_crashes(gpu, folder):  # noqa: F811
    gpu.fault, gpu.on = "wrong", {"naive"}
    wrong = harness.experiment(folder)
    assert record.load(wrong.path).runs.ok.tolist()[:3] == [False, False, True]
    gpu.fault = "illegal"
    crashed = harness.experiment(folder, fresh=True)
    assert len(crashed.troubles) == 2 and "illegal memory access" in next(iter(crashed.troubles.values()))
    gpu.fault = ""
    assert harness.experiment(folder).ok


def test_without_counters_the_reason_is_kept(gpu, folder, monkeypatch):  # noqa: F811
    def unavailable(*args, **kwargs):
        raise ncu.Unavailable("no permission.", "Ask for it.")

    monkeypatch.setattr(ncu, "collect", unavailable)
    (folder / "experiment.toml").write_text(TEXT.replace('"timing"]', '"ncu"]').replace(', "cublas"', ""))
    assert "no permission" in record.load(harness.experiment(folder).path).runs.ncu_missing[0]


def test_racecheck(gpu, folder, monkeypatch):  # noqa: F811
    found = sanitize.Issue("racecheck", "error", "Race reported", file="x.cu", line=3)
    result = sanitize.Result("racecheck", Problem(32, 32, 32), sanitize.FOUND_SOME, (found,), 7)
    monkeypatch.setattr(
        sanitize, "sanitize", lambda *a, **k: sanitize.Sanitized(stages.find("naive"), {}, "1", [result])
    )
    (folder / "experiment.toml").write_text(
        'question = "?"\nsources = ["racecheck"]\n[[points]]\nstages = ["naive"]\nsizes = [32]\n'
        '[[claims]]\nsays = "x"\nmetric = "racecheck_hazards"\nequals = 7\n'
    )
    run = harness.experiment(folder)
    assert run.ok and "x.cu:3" in record.load(run.path).runs.racecheck[0]


@pytest.mark.parametrize("fault, wrong", [("", 0), ("wrong", 5)])
def test_many_launches(fake, fault, wrong):
    fake.fault = fault
    problem = Problem(33, 34, 35, distribution="integers")
    code = toolchain.compile(stages.find("naive"), {}, 90).cubin
    found = repeated.count("naive", problem, {}, code, 5, GPU.uuid)
    assert (found["launches"], found["wrong"]) == (5, wrong) and (found["most_wrong_cells"] > 0) == bool(wrong)


def test_the_process_that_launches_many_times(monkeypatch, fake, capsys):
    monkeypatch.setattr(repeated.watched, "run", lambda words, limit: ("...\n" + json.dumps({"launches": 5}) + "\n", 0))
    assert repeated.run("naive", Problem(8, 8, 8), {}, b"", 5, "") == {"launches": 5}
    monkeypatch.setattr(repeated.watched, "run", lambda words, limit: ("it crashed\n", 1))
    with pytest.raises(TilescopeError, match="it crashed"):
        repeated.run("naive", Problem(8, 8, 8), {}, b"", 5, "")


def test_tools_of_a_gpu(monkeypatch):
    how = definition.How(("sim", "ncu", "timing", "racecheck"))
    assert set(measuring.tools(how, GPU)) == {"simulator", "gpu", "driver", "ncu", "cublas", "compute-sanitizer"}
