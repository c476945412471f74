"""Build the C engine once per source and CPU, and run a launch's blocks in it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from ..errors import TilescopeError
from ..toolchain import cache_root
from .decode import Ins

SOURCE = Path(__file__).with_name("engine.c")
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
COUNTERS = (
    "executed",
    "threads",
    "threads_on",
    "requests",
    "sectors",
    "lines",
    "sectors_ideal",
    "wavefronts",
    "wavefronts_ideal",
    "predicted",
    "predicted_ideal",
    "data_wavefronts",
)

FAULTS = ("none", "global", "misaligned", "shared", "uninitialised", "race", "async", "barrier", "budget", "twice", "unknown",
          "deadlock", "local", "memory", "stopped", "return")  # fmt: skip


class FaultRecord(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_int32) for n in "kind pc warp lane other_pc other_warp other_lane hazard".split()),
        ("block", ctypes.c_int64),
        ("address", ctypes.c_uint64),
    ]


class Job(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_void_p), ("ncode", ctypes.c_int32), ("nslots", ctypes.c_int32),
        ("constants", ctypes.c_void_p),
        ("bank0", ctypes.c_void_p), ("bank0_bytes", ctypes.c_uint32),
        ("memory", ctypes.c_void_p), ("shadow", ctypes.c_void_p), ("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64),
        ("grid", ctypes.c_int32 * 3), ("block", ctypes.c_int32 * 3),
        ("shared_low", ctypes.c_int32), ("shared_high", ctypes.c_int32), ("local_words", ctypes.c_int32),
        ("blocks", ctypes.c_void_p), ("weights", ctypes.c_void_p), ("nblocks", ctypes.c_int64),
        ("budget", ctypes.c_int64),
        ("nworkers", ctypes.c_int32),
        ("stop", ctypes.c_int32), ("next", ctypes.c_int64), ("done", ctypes.c_int64),
        ("trace", ctypes.c_void_p), ("ntrace", ctypes.c_int64), ("traced", ctypes.c_int64),
    ]  # fmt: skip


TRACE = np.dtype(
    [("pc", "i4"), ("warp", "i4"), ("epoch", "u4"), ("mask", "u4"), ("address", "u8", 32), ("value", "u4", (4, 32))]
)
"""One executed memory access: what each lane addressed, and the words it loaded or stored."""


class Engine:
    """The loaded library. `ops` are its opcodes in order."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.engine_ops.restype = ctypes.c_char_p
        sizes = (ctypes.c_int32 * 5)()
        library.engine_sizes(sizes)
        expected = [
            ctypes.sizeof(Ins),
            ctypes.sizeof(Job),
            8 * len(COUNTERS),
            ctypes.sizeof(FaultRecord),
            TRACE.itemsize,
        ]
        if list(sizes) != expected:
            raise TilescopeError(
                f"the simulator's engine does not fit this Python code ({list(sizes)} != {expected}).",
                "Run `make clean`.",
            )
        self.ops = tuple(library.engine_ops().decode().split())
        self._run = library.engine_run
        self._access = library.engine_access

    def access(self, addresses: np.ndarray, mask: int, width: int, kind: str) -> dict[str, int]:
        """What one warp instruction costs. addresses: 32 byte addresses; width in bytes; kind: 'global', 'load' or 'store' (shared)."""
        out = (ctypes.c_int32 * 9)()
        lanes = np.ascontiguousarray(addresses, np.uint32)
        self._access(
            lanes.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint32(mask),
            width,
            ("global", "load", "store").index(kind),
            out,
        )
        return dict(zip(COUNTERS[3:], out, strict=True))

    def run(self, job: Job, progress: Callable[[float], None] | None = None) -> tuple[np.ndarray, FaultRecord]:
        """Execute a job: (counts of shape (instructions, counters), fault). Ctrl-C stops it and is raised again."""
        counts = np.zeros((job.ncode, len(COUNTERS)), np.int64)
        fault = FaultRecord()
        finished = threading.Event()  # Thread.join, once interrupted, takes a running thread for a finished one

        def work() -> None:
            self._run(ctypes.byref(job), counts.ctypes.data_as(ctypes.c_void_p), ctypes.byref(fault))
            finished.set()

        threading.Thread(target=work, daemon=True).start()
        try:
            while not finished.wait(0.05):
                if progress:
                    progress(job.done / max(1, job.nblocks))
        except BaseException:
            job.stop = 1
            while not finished.is_set():  # the buffers must outlive the C code, whatever else arrives
                try:
                    finished.wait()
                except KeyboardInterrupt:
                    pass
            raise
        return counts, fault


def _compiler() -> list[str]:
    for name in (os.environ.get("CC", ""), "gcc", "cc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    if shutil.which("g++"):
        return ["g++", "-x", "c"]
    raise TilescopeError("no C compiler for the simulator's engine.", "Install gcc (Debian: apt install g++).")


def _cpu() -> str:
    """What identifies the CPU that -march=native compiles for."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(wanted)}))


@cache
def load() -> Engine:
    """The engine, compiled if this source has not been compiled for this CPU yet. Raises TilescopeError where it cannot be."""
    compiler = _compiler()
    source = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join([source, _cpu().encode(), " ".join((*compiler, *FLAGS)).encode()])).hexdigest()[:24]
    library = cache_root() / "engine" / f"{key}.so"
    if not library.exists():
        _build(compiler, library)
    try:
        return Engine(ctypes.CDLL(str(library)))
    except OSError as e:
        raise TilescopeError(f"cannot load the simulator's engine: {e}.", "Run `make clean`.") from e


def _build(compiler: list[str], library: Path) -> None:
    native = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        handle, work = tempfile.mkstemp(prefix=".engine-", dir=library.parent)
    except OSError as e:
        raise TilescopeError(
            f"cannot write the cache {library.parent}: {e.strerror}.", "Set TILESCOPE_CACHE to a writable folder."
        ) from e
    os.close(handle)
    try:
        for tuning in ([native], []):
            run = subprocess.run(
                [*compiler, *FLAGS, *tuning, str(SOURCE), "-o", work, "-lpthread", "-lm"],
                capture_output=True,
                text=True,
            )
            if run.returncode == 0:
                os.replace(work, library)
                return
        raise TilescopeError(
            f"the simulator's engine does not compile with {' '.join(compiler)}:\n{run.stderr[:600]}", "Install gcc."
        )
    finally:
        Path(work).unlink(missing_ok=True)
