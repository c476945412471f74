"""make bench, on toy sizes: figures, targets, the recorded run."""

from __future__ import annotations

import json

import pytest

from harness import bench, cli, readme, record, report
from harness import stage as stages
from harness.errors import TilescopeError


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(stages, "names", lambda: ["tiled"])
    patch.setattr(bench, "THROUGHPUT_SIZE", 64)
    yield bench.run(sizes=(32, 48), out=tmp_path_factory.mktemp("bench") / "run")
    patch.undo()


def test_figures(result):
    what = [f.what for f in result.figures]
    assert what[:4] == ["list", "profile tiled, 32^3", "profile tiled, 48^3", "peak memory, tiled, 48^3"]
    assert what[4].startswith("simulator, tiled2d 64^3, 1 core")
    assert all(f.value > 0 for f in result.figures)
    memory = result.figures[3]
    assert 20 < memory.value < 2048 and memory.met and memory.target == "under 2048 MiB"


def test_recorded(result):
    run = record.load(result.path)
    assert run.manifest["kind"] == "bench" and set(run.values.source) == {"timing"}
    assert run.text("profile.txt") == report.render_bench(result)
    json.dumps(result.to_json())


@pytest.mark.parametrize("sizes, words", [((64, 0), "M=0 is less than 1"), ((), "names no size")])
def test_bad_sizes_are_refused_before_the_work(tmp_path, monkeypatch, sizes, words):
    monkeypatch.setattr(bench, "_command", lambda *words: pytest.fail("it works already"))
    with pytest.raises(TilescopeError, match=words):
        bench.run(sizes=sizes, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_figures_that_are_not_recorded_are_printed(unrecorded, monkeypatch):
    figure = bench.Figure("list", 0.1, "s")
    monkeypatch.setattr(stages, "names", list)
    monkeypatch.setattr(bench, "_command", lambda *words: (0.1, 1.0))
    monkeypatch.setattr(bench, "_throughput", lambda doing: [figure])
    monkeypatch.setattr(bench, "_index", lambda doing: [figure])
    assert "Tilescope itself on" in unrecorded("bench", "SIZES=32", "README=yes")


def test_a_readme_that_cannot_be_written_does_not_lose_the_figures(result, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "run", lambda **options: result)
    monkeypatch.setattr(readme.fill, "__defaults__", (tmp_path / "none/README.md",))
    assert cli.main(["bench", "README=yes"]) == 2
    said = capsys.readouterr()
    assert "Tilescope itself on" in said.out and said.err.startswith(f"error: cannot read {tmp_path}/none/README.md: ")


def test_missed_targets_are_marked(result):
    slow = bench.Bench([bench._below("list", 1.0, "s", 0.4)], "a CPU", 2)
    assert "under 0.4 s: MISSED" in report.render_bench(slow)


def test_a_command_that_fails_is_named():
    with pytest.raises(TilescopeError, match="tild"):
        bench._command("profile", "tild")
