"""index: every run of any kind in one table, damaged ones left out, read once."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import harness
from harness import cli, experiment_report, indexing, record


def written(path: Path, run: str, count: int = 1, **manifest) -> Path:
    rows = [
        {"run": f"{run}/{n}", "kind": "experiment", "stage": "tiled", "m": 8, "n": 8, "k": n, "ok": True}
        for n in range(count)
    ]
    tables = {
        "runs": pd.DataFrame(rows),
        "values": record.frame(record.VALUES, []),
        "lines": record.frame(record.LINES, []),
    }
    return record.write(path, {"id": run, "kind": "profile", "started": run, **manifest}, tables)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    written(tmp_path / "profiles/tiled/2", "2", stage="tiled", device="h200", backend="sim", ok=True)
    written(tmp_path / "profiles/recorded/h200/tiled", "1", stage="tiled", device="h200", backend="gpu", ok=False)
    written(
        tmp_path / "experiments/traffic/runs/3",
        "3",
        5,
        kind="experiment",
        experiment="traffic",
        devices=["h200"],
        points=5,
    )
    written(tmp_path / "profiles/ladder/4", "4", 2, kind="ladder", points=[{"stage": "naive"}, {"stage": "tiled"}])
    (tmp_path / "profiles/broken").mkdir()
    (tmp_path / "profiles/broken/manifest.json").write_text('{"id":')
    return tmp_path


def test_every_run_is_listed_oldest_first(checkout):
    table = indexing.index(root=checkout)
    assert table.run.tolist() == ["1", "2", "3", "4"] and list(table) == list(indexing.COLUMNS)
    assert table.what.tolist() == ["tiled", "tiled", "traffic", "naive, tiled"] and table.points.tolist() == [
        1,
        1,
        5,
        2,
    ]
    assert table.path.tolist()[2] == "experiments/traffic/runs/3"


def test_points(checkout):
    table = indexing.index(points=True, root=checkout)
    assert len(table) == 9 and list(table) == list(indexing.POINTS) and set(table.stage) == {"tiled"}


def test_a_manifest_is_read_once_and_again_where_it_changed(checkout, monkeypatch):
    first = indexing.index(root=checkout)
    real, read = indexing._row, []
    monkeypatch.setattr(indexing, "_row", lambda path, root: read.append(path) or real(path, root))
    assert indexing.index(root=checkout).equals(first) and not read
    manifest = checkout / "profiles/tiled/2/manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"stage": "another"}))
    assert "another" in indexing.index(root=checkout).what.tolist() and read == [str(manifest)]


def test_a_cache_that_cannot_be_read_or_written_does_no_harm(checkout, monkeypatch):
    (checkout / "cache").mkdir(exist_ok=True)
    (checkout / "cache/index.json").write_text("[]")
    assert len(indexing.index(root=checkout)) == 4
    monkeypatch.setenv("TILESCOPE_CACHE", "/proc/x")
    assert len(indexing.index(root=checkout)) == 4


def test_a_checkout_without_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TILESCOPE_CACHE", str(tmp_path / "cache"))
    assert indexing.index(root=tmp_path).empty and indexing.index(points=True, root=tmp_path).empty


def test_what_cannot_be_read_and_runs_with_one_id_are_named(checkout, monkeypatch, capsys):
    (checkout / "profiles/empty").mkdir()
    (checkout / "profiles/empty/manifest.json").touch()
    written(checkout / "profiles/again", "2")
    (checkout / "profiles/ladder/4/runs.parquet").write_bytes(b"PAR1")
    warnings = [
        "profiles/broken/manifest.json cannot be read: its run is left out.",
        "profiles/empty/manifest.json cannot be read: its run is left out.",
        "2 is the id of profiles/again and of profiles/tiled/2.",
    ]
    table = indexing.index(root=checkout)
    assert [w.replace("profiles/tiled/2 and of profiles/again", "profiles/again and of profiles/tiled/2") for w in table.attrs["warnings"]] == warnings  # fmt: skip
    assert any("ladder/4/runs.parquet" in w for w in indexing.index(points=True, root=checkout).attrs["warnings"])
    monkeypatch.setattr(record, "ROOT", checkout)
    assert cli.main(["index", "JSON=-"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 5 and said.err.count("warning: ") == 3 and "profiles/empty" in said.err


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("width", [70, 80, 100])
def test_each_run_is_one_line_that_fits(checkout, width, points):
    id = "20261130T220921Z-db7195ff"
    sizes = {"m": 1024, "n": 1024, "k": 1024}
    written(checkout / "profiles/a", id, kind="tune", stage="warptiled", problem=sizes, device="h200", backend="gpu")
    stages = [{"stage": s} for s in ("naive", "naive_uncoalesced", "warptiled")]
    written(checkout / "profiles/b", f"{id[:-1]}0", kind="ladder", points=stages, started="2026-11-30T22:09:21.453Z")
    table = indexing.index(points, root=checkout)
    lines = experiment_report.render_index(table, width).splitlines()
    assert len(lines) == len(table) + 1 and max(map(len, lines)) <= width
    if not points:
        assert any(id in line and "warptiled 1024" in line for line in lines)
        assert any("naive, naive" in line and "..." in line for line in lines)
    if not points and width == 100:
        assert any(line.endswith("2026-11-30 22:09") for line in lines)


def test_on_the_command_line(checkout, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(record, "ROOT", checkout)
    assert cli.main(["index", f"CSV={tmp_path}/all.csv"]) == 0
    assert "traffic" in capsys.readouterr().out and len((tmp_path / "all.csv").read_text().splitlines()) == 5
    assert cli.main(["index", "POINTS=yes", "JSON=-"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 9
    assert len(harness.index()) == 4
    assert cli.main(["index", "CSV=/proc/x/y"]) == 2


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    """A file stands where the cache's folder must be."""
    (tmp_path / "cache").write_text("")
    indexing._keep(tmp_path / "cache" / "index.json", {})
    assert (tmp_path / "cache").read_text() == ""
