"""Run directories: whole or not at all, never overwritten, damage found, on a disk that fills up too."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from harness import record
from harness.errors import TilescopeError

ROOT = Path(record.__file__).resolve().parent.parent


def tables(run: str, rows: int = 3) -> dict[str, pd.DataFrame]:
    values = [
        (run, "main", "smsp__inst_executed.sum", pc, 2.5, "inst", "sim") for pc in [None, *range(0, 16 * rows, 16)]
    ]
    return {
        "runs": pd.DataFrame([{"run": run, "stage": "tiled"}]),
        "values": record.frame(record.VALUES, values),
        "lines": record.frame(record.LINES, [("abc", "tiled", 0, "FFMA", "kernels/tiled.cu", 3, "x = y;")]),
    }


def written(path: Path, run: str = "20250101T000000Z-0123abcd", **manifest) -> Path:
    return record.write(
        path,
        {"id": run, "kind": "profile", **manifest},
        tables(run),
        {"sass.txt": "FFMA\n", "kernel.cubin": b"\x7fELF"},
    )


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(f"{record.PARTIAL}*"))


def test_a_run_comes_back_as_it_was_written(tmp_path):
    run = record.load(written(tmp_path / "run", tunables={"TILE": 16}))
    assert run.manifest["format"] == record.FORMAT
    assert run.manifest["tunables"] == {"TILE": 16}
    assert run.id == "20250101T000000Z-0123abcd"
    assert list(run.values) == list(record.VALUES)
    assert run.values.pc.isna().tolist() == [True, False, False, False]
    assert list(run.lines) == list(record.LINES)
    assert run.runs.stage.tolist() == ["tiled"]
    assert run.text("sass.txt") == "FFMA\n"
    assert leftovers(tmp_path) == []


def test_checksums_are_what_sha256sum_reads(tmp_path):
    path = written(tmp_path / "run")
    assert subprocess.run(["sha256sum", "-c", "--quiet", record.CHECKSUMS], cwd=path).returncode == 0


def test_manifest_holds_no_nan():
    assert record.plain({"a": float("nan"), "b": (1, float("inf")), "c": Path("x")}) == {
        "a": None,
        "b": [1, None],
        "c": "x",
    }
    assert record.plain({"a": pd.Series([1, 2]).to_numpy()}) == {"a": [1, 2]}


def test_the_default_place_is_under_profiles_and_ids_differ():
    ids = {record.new_id("tiled") for _ in range(50)}
    assert len(ids) == 50
    assert record.destination(None, "../x y", "id") == record.PROFILES / "_x_y" / "id"


@pytest.mark.parametrize("change", ["cut", "alter", "remove", "checksums", "manifest", "unlisted manifest"])
def test_damage_is_found(tmp_path, change):
    path = written(tmp_path / "run")
    values = path / "values.parquet"
    match change:
        case "cut":
            values.write_bytes(values.read_bytes()[:-20])
        case "alter":
            (path / "sass.txt").write_text("FADD\n")
        case "remove":
            values.unlink()
        case "checksums":
            (path / record.CHECKSUMS).unlink()
        case "manifest":
            (path / "manifest.json").write_text('{"format": 1, "id"')
        case "unlisted manifest":
            sums = (path / record.CHECKSUMS).read_text().splitlines()
            (path / record.CHECKSUMS).write_text("\n".join(s for s in sums if "manifest" not in s) + "\n")
    with pytest.raises(TilescopeError, match="damaged"):
        record.load(path)


def test_a_table_that_is_no_parquet_is_an_error_even_unchecked(tmp_path):
    path = written(tmp_path / "run")
    (path / "values.parquet").write_bytes(b"PAR1")
    with pytest.raises(TilescopeError, match="cannot be read"):
        record.load(path, check=False).values  # noqa: B018
    with pytest.raises(TilescopeError, match="no table samples"):
        record.load(path, check=False).table("samples")
    with pytest.raises(TilescopeError, match=r"no x\.txt"):
        record.load(path, check=False).text("x.txt")


def test_a_newer_format_is_refused_before_anything_else(tmp_path):
    path = written(tmp_path / "run")
    manifest = json.loads((path / "manifest.json").read_text()) | {"format": record.FORMAT + 1}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TilescopeError, match="newer Tilescope"):
        record.load(path)


@pytest.mark.parametrize("what", ["nothing", "empty folder", "file"])
def test_what_is_no_run_is_refused(tmp_path, what):
    path = tmp_path / "x"
    if what == "empty folder":
        path.mkdir()
    elif what == "file":
        path.write_text("")
    with pytest.raises(TilescopeError, match="no run|not a run"):
        record.load(path)


def test_runs_are_found_by_id_and_by_its_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PROFILES", tmp_path / "profiles")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    path = written(record.destination(None, "tiled", "20250101T000000Z-0123abcd"))
    other = written(tmp_path / "experiments/x/runs/20240101T000000Z-99999999", "20240101T000000Z-99999999")
    assert record.runs() == [other, path]
    assert record.locate("0123abcd") == record.locate("20250101T000000Z-0123abcd") == path
    written(tmp_path / "experiments/x/runs/20240101T000000Z-0123abcd")
    with pytest.raises(TilescopeError, match="several runs"):
        record.locate("0123abcd")


def test_never_over_another_run(tmp_path):
    path = written(tmp_path / "run")
    before = (path / record.CHECKSUMS).read_bytes()
    with pytest.raises(TilescopeError, match="not empty"):
        record.destination(path, "tiled", "id")
    with pytest.raises(TilescopeError, match="another run"):  # it came while this one was measuring
        written(path, "other")
    assert (path / record.CHECKSUMS).read_bytes() == before
    assert leftovers(tmp_path) == []


def test_an_empty_folder_and_a_link_to_one_can_become_the_run(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    path = record.destination(tmp_path / "link", "tiled", "id")
    assert record.load(written(path)).path == tmp_path / "empty"


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/x/y"])
def test_places_that_cannot_be_written_are_known_before_the_work(tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(TilescopeError, match="file|cannot write"):
        record.destination(tmp_path / out, "tiled", "id")


def test_no_permission(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(TilescopeError, match="cannot write .*: Permission denied"):
        record.destination(tmp_path / "a/b/run", "tiled", "id")
    assert list(tmp_path.iterdir()) == []


def test_a_mount_point_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda p: True)
    with pytest.raises(TilescopeError, match="mount point"):
        record.destination(tmp_path, "tiled", "id")


def test_a_full_disk_is_known_before_the_work(tmp_path, monkeypatch):
    def full(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(TilescopeError, match="full"):
        record.destination(tmp_path / "run", "tiled", "id")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, error):
    calls = []

    def fsync(fd):
        calls.append(fd)
        if len(calls) == 3:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TilescopeError, match="full" if error in (errno.ENOSPC, errno.EDQUOT) else "cannot write"):
        written(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_real_write_that_does_not_fit(tmp_path):
    code = f"""
import sys; sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from test_record import written
from harness.errors import TilescopeError
try:
    written(Path({str(tmp_path / "run")!r}))
except TilescopeError as e:
    print(e.what)
"""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    assert "ulimit -f" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_half_way_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(path, data):
        path.write_bytes(data[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "_write_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_temporaries_of_dead_writers_are_swept_and_those_of_living_ones_kept(tmp_path):
    names = {name: tmp_path / f"{record.PARTIAL}{name}" for name in ("dead", "living", "young")}
    for folder in names.values():
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
    old = time.time() - 2 * record.STALE_SECONDS
    for name in ("dead", "living"):
        os.utime(names[name], (old, old))
    lock = record._lock(names["living"])
    written(tmp_path / "run")
    os.close(lock)
    assert sorted(leftovers(tmp_path)) == sorted([names["living"], names["young"]])


def test_a_writer_killed_outright_leaves_no_run(tmp_path):
    code = f"""
import os, sys; sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
import harness.record as record
from test_record import written
record.os.rename = lambda *a: os.kill(os.getpid(), 9)
written(Path({str(tmp_path / "run")!r}))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == -9
    [stale] = leftovers(tmp_path)
    assert record.runs is not None and not (tmp_path / "run").exists()
    os.utime(stale, (0, 0))
    written(tmp_path / "run")
    assert leftovers(tmp_path) == []
