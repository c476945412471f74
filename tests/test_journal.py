"""The journal: whole lines survive anything, half a line is cut off, one writer at a time, full disks."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from harness import journal
from harness.errors import TilescopeError
from harness.journal import Journal

ROOT = Path(journal.__file__).resolve().parent.parent


def test_entries_come_back(tmp_path):
    with Journal(tmp_path / "runs/j") as j:
        j.add("a", {"x": np.float64(1.5), "n": np.int64(3), "nan": float("nan")})
        j.add("b", {})
    with Journal(tmp_path / "runs/j") as j:
        assert j.entries["a"]["x"] == 1.5 and j.entries["a"]["n"] == 3 and list(j.entries) == ["a", "b"]
        j.done()
    assert not (tmp_path / "runs/j").exists()


@pytest.mark.parametrize("tail", [b'{"key": "c", "da', b'{"key": "c", "data": {}}', b"\x00" * 9, b"[]\n", b"null\n"])
def test_half_a_line_is_cut_off(tmp_path, tail):
    path = tmp_path / "j"
    with Journal(path) as j:
        j.add("a", {"x": 1})
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    with Journal(path) as j:
        assert list(j.entries) == ["a"]
        j.add("b", {})
    with Journal(path) as j:
        assert list(j.entries) == ["a", "b"]


def test_one_process_at_a_time(tmp_path):
    with Journal(tmp_path / "j"), pytest.raises(TilescopeError, match="another process"):
        Journal(tmp_path / "j").__enter__()
    with Journal(tmp_path / "j"):
        pass


def test_a_place_that_cannot_be_written():
    with pytest.raises(TilescopeError, match="cannot write"):
        Journal(Path("/proc/x/j")).__enter__()


def test_a_full_disk_keeps_what_was_there(tmp_path):
    code = f"""
from pathlib import Path
from harness.errors import TilescopeError
from harness.journal import Journal
with Journal(Path({str(tmp_path / "j")!r})) as j:
    j.add("a", {{"x": "y" * 500}})
    try:
        j.add("b", {{"x": "y" * 5000}})
    except TilescopeError as e:
        print(e)
    j.add("c", {{}})
"""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        preexec_fn=limit,
    )  # fmt: skip
    assert "ulimit -f" in done.stdout and "same command goes on" in done.stdout, done.stderr
    with Journal(tmp_path / "j") as j:
        assert list(j.entries) == ["a", "c"]
