"""A run of ncu: what comes back, and every way it can go wrong leaving nothing behind."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harness import metrics, ncu, watched
from harness.errors import TilescopeError
from harness.ncu import failures, reading
from harness.stage import Launch

from .fakes import FakeAction, FakeMetric, FakeNcu, module

LAUNCH = Launch("tiled2d", (8, 8, 1), (64, 1, 1), (64, 64))
BASE = 0x7F0000001000


def action(**more: FakeMetric) -> FakeAction:
    values = {
        "inst_executed": FakeMetric(96, "inst", {BASE: 64, BASE + 16: 32}),
        metrics.FFMA: FakeMetric(1024, "inst"),
        "gpu__time_duration.sum": FakeMetric(1500, "nsecond"),
    }
    return FakeAction(
        "tiled2d",
        values | more,
        ("stage tiled2d", "launch main"),
        {BASE: ("tiled2d.cu", 10), BASE + 16: ("tiled2d.cu", 11)},
    )


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, to see that nothing stays in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_module", lambda folders=(): module([action()]))


def collect(fake: FakeNcu, **more: object) -> ncu.Collection:
    return ncu.collect("tiled2d", ["true"], [LAUNCH], ncu.Options(("bank",)), ncu=fake.ncu, **more)


def test_what_comes_back(tmp_path: Path, reads: None, scratch: Path) -> None:
    told = []
    found = collect(FakeNcu(tmp_path), progress=lambda fraction, words: told.append(words))
    (one,) = found.launches
    assert one.label == "main" and one.values[metrics.FFMA] == 1024
    assert found.report == b"NVR\0 a report" and found.version == "2025.3.1" and found.passes == 8
    assert "ncu: tiled2d" in told
    assert not list(scratch.iterdir())


def test_what_was_asked_for_and_is_not_in_the_report_is_named(tmp_path: Path, reads: None) -> None:
    found = collect(FakeNcu(tmp_path))
    assert metrics.SHARED in found.missing and "inst_executed" not in found.missing


@pytest.mark.parametrize("plain", [True, False])
def test_a_metric_this_ncu_lacks_is_dropped_and_named(tmp_path: Path, reads: None, plain: bool) -> None:
    lacks = [metrics.CONFLICTS_LDGSTS, metrics.SHARED_IDEAL]
    fake = FakeNcu(tmp_path, unknown=lacks, plain=plain)
    found = collect(fake)
    assert set(lacks) <= set(found.missing)
    assert len(fake.calls) == 3
    asked = fake.calls[-1][fake.calls[-1].index("--metrics") + 1].split(",")
    assert not set(lacks) & set(asked) and metrics.SHARED in asked


def test_a_renamed_metric_is_found_under_its_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = action(**{"dram__bytes_op_read.sum": FakeMetric(5, "Mbyte")})
    monkeypatch.setattr(reading, "load_module", lambda folders=(): module([renamed]))
    fake = FakeNcu(tmp_path, unknown=["dram__bytes_read.sum"], plain=True)
    found = ncu.collect("tiled2d", ["true"], [LAUNCH], ncu.Options(("memory",)), ncu=fake.ncu)
    assert found.launches[0].values["dram__bytes_read.sum"] == 5e6
    assert "dram__bytes_read.sum" not in found.missing


def test_no_permission_gives_nvidias_remedy(tmp_path: Path, reads: None) -> None:
    with pytest.raises(ncu.Unavailable) as e:
        collect(FakeNcu(tmp_path, mode="permission"))
    assert "ERR_NVGPUCTRPERM" in e.value.what and "NVreg_RestrictProfilingToAdminUsers=0" in e.value.remedy


def test_no_ncu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.ncu.collecting.find", lambda ncu=None: None)
    with pytest.raises(ncu.Unavailable, match="not installed"):
        ncu.collect("tiled2d", ["true"], [LAUNCH], ncu.Options())


@pytest.mark.parametrize(
    "mode, words",
    [("application", "out of GPU memory: 12 GiB needed"), ("silent", "NVTX range"), ("killed", r"killed \(signal 9\)")],
)
def test_a_failed_run_is_an_error_and_leaves_nothing(
    tmp_path: Path, reads: None, scratch: Path, mode: str, words: str
) -> None:
    with pytest.raises(TilescopeError, match=words) as e:
        collect(FakeNcu(tmp_path, mode=mode))
    assert not isinstance(e.value, ncu.Unavailable)
    assert not list(scratch.iterdir())


def test_the_limit_ends_ncu(tmp_path: Path, reads: None, scratch: Path) -> None:
    start = time.monotonic()
    with pytest.raises(TilescopeError, match="limit"):
        collect(FakeNcu(tmp_path, mode="hang"), limit=1.0)
    assert time.monotonic() - start < 30
    assert not list(scratch.iterdir())


def test_an_unreadable_report_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_module", lambda folders=(): module([]))
    with pytest.raises(TilescopeError, match="cannot be read"):
        collect(FakeNcu(tmp_path))


def test_a_process_group_ends_as_a_whole(tmp_path: Path) -> None:
    """A child that outlives its parent would hold the GPU."""
    note = tmp_path / "child"
    script = f"sleep 300 & echo $! > {note}; sleep 300"
    with pytest.raises(TilescopeError, match="limit"):
        watched.run(["sh", "-c", script], 1.0)
    child = int(note.read_text())
    for _ in range(100):
        if _gone(child):
            return
        time.sleep(0.05)
    raise AssertionError("the child still runs")


def _gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    note = tmp_path / "started"
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), 2))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        watched.run(["sh", "-c", f"echo $$ > {note}; sleep 300"], 60.0)
    assert _gone(int(note.read_text()))


def test_a_program_that_does_not_start() -> None:
    with pytest.raises(TilescopeError, match="does not start"):
        watched.run(["/nowhere/ncu"], 5.0)


@pytest.mark.parametrize(
    "line, kind",
    [
        ("==ERROR== Cannot lock GPU clock frequencies on MIG! Try locking the clocks externally", "clock"),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. Check that a compatible driver library is loaded.",
            "library",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is",
            "busy",
        ),
        ("==ERROR== Cuda driver is not compatible with Nsight Compute.", "driver"),
        (
            "==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips option.",
            "unsupported",
        ),
        ("==ERROR== unrecognised option '--import-source'", "option"),
        ("==ERROR== Failed to prepare kernel for profiling: InterprocessLockFailed", "lock"),
    ],
)
def test_what_ncu_says_is_understood(line: str, kind: str) -> None:
    found = failures.diagnose(
        f"==PROF== Connected to process 1\n{line}\n==ERROR== The application returned an error code (9).\n", 9
    )
    assert found.kind == kind and found.remedy


def test_a_failure_it_does_not_know_is_quoted() -> None:
    found = failures.diagnose("==PROF== Connected\n==ERROR== Something new went wrong.\n", 1)
    assert found.kind == "other" and "Something new went wrong" in found.what
    assert failures.diagnose("==PROF== Disconnected from process 1\n", 0) is None


def test_metrics_in_ncus_complaints() -> None:
    asked = ["nvlrx__bytes.sum", "a__b.sum", "launch__x"]
    one = "==ERROR== Failed to access the following 2 metrics: nvlrx__bytes.sum, launch__x"
    assert failures.missing_metrics(one, asked) == ["nvlrx__bytes.sum", "launch__x"]
    assert failures.missing_metrics("==PROF== fine", asked) == []
