"""Which ncu, and what to type: the command that profiles a stage's launches with Nsight Compute.

Options are those of the Nsight Compute CLI manual that ncu 2022.1 and later have.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import TilescopeError, nearest
from ..metrics import FFMA, METRICS, in_ncu

DOMAIN = "tilescope"
"""The NVTX domain of `python -m harness launch`."""
GROUPS = {
    "coalescing": ("coalescing",),
    "bank": ("bank",),
    "occupancy": ("occupancy", "launch"),
    "pipes": ("pipes", "work"),
    "memory": ("memory", "spill"),
    "stalls": (),
}
"""METRICS= -> the groups of harness.metrics that it asks ncu for."""
DEFAULT = ("coalescing", "bank", "occupancy")
ALWAYS = ("inst_executed", "thread_inst_executed_true", FFMA, "gpu__time_duration.sum", "sm__cycles_elapsed.max")
"""Time, and what the sanity gate looks at."""
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
"""Warps that wait for a reason, for each instruction issued."""
REASONS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "imc_miss", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar",
    "mio_throttle", "misc", "no_instruction", "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
"""To wait, as ncu names them on every GPU since sm_75."""
EXTRA = {
    "stalls": ("smsp__issue_active.avg.pct_of_peak_sustained_active", *map(STALL.format, REASONS)),
    "pipes": ("sass__inst_executed_per_opcode",),
    "bank": ("smsp__sass_data_bytes_mem_shared_op_ld.sum",),
    "coalescing": ("smsp__sass_data_bytes_mem_global_op_ld.sum", "smsp__sass_data_bytes_mem_global_op_st.sum"),
}
"""Recorded beside the metrics of the table."""
ALIASES = {
    "dram__bytes_read.sum": ("dram__bytes_op_read.sum",),
    "dram__bytes_write.sum": ("dram__bytes_op_write.sum",),
}
"""A metric's other names in other versions of ncu or on other GPUs, tried where the first is missing."""
CLOCKS, CACHES, SETS = ("none", "base"), ("all", "none"), ("", "full")


@dataclass(frozen=True)
class Options:
    """What to collect and under which conditions.

    groups  of GROUPS
    set     'full' for every section of ncu and the source view, '' for `groups` alone
    clock   'none' leaves the clock as it is; 'base' has ncu lock it to base, which makes counters per second comparable
            and every time longer
    cache   'all' flushes the caches before each pass; 'none' leaves them warm
    ncu     path of the Nsight Compute to use, where it is not the one found
    """

    groups: tuple[str, ...] = DEFAULT
    set: str = ""
    clock: str = "none"
    cache: str = "all"
    ncu: str | None = None

    def __post_init__(self) -> None:
        for name, value, words in (
            ("CLOCK", self.clock, CLOCKS),
            ("CACHE", self.cache, CACHES),
            ("SET", self.set, SETS),
        ):
            if value not in words:
                known = [w for w in words if w]
                raise TilescopeError(
                    f"unknown {name} {value!r}.{nearest(value, known)}", f"Choose {' or '.join(known)}."
                )
        for group in self.groups:
            if group not in GROUPS:
                raise TilescopeError(
                    f"unknown METRICS {group!r}.{nearest(group, list(GROUPS))}",
                    f"Known: {', '.join(GROUPS)}; with commas between.",
                )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names to ask ncu for, each once."""
        groups = tuple(GROUPS) if self.set else self.groups
        wanted = {group for name in groups for group in GROUPS[name]}
        table = [name for name, m in METRICS.items() if m.group in wanted and in_ncu(name)]
        return tuple(dict.fromkeys([*ALWAYS, *table, *(x for name in groups for x in EXTRA.get(name, ()))]))


def groups(words: str) -> tuple[str, ...]:
    """METRICS=bank,memory as names. Options refuses those it does not know."""
    return tuple(dict.fromkeys(w.strip().lower() for w in words.split(",") if w.strip())) or DEFAULT


@dataclass(frozen=True)
class Ncu:
    """An installed Nsight Compute: its command line program and version, such as (2025, 3, 1)."""

    path: Path
    version: tuple[int, ...]

    @property
    def title(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def python_folders(self) -> list[Path]:
        """Folders that may hold ncu's own ncu_report module, likeliest first."""
        home = self.path.resolve().parent
        beside = [
            home,
            home.parent,
            *sorted(home.parent.glob("nsight-compute-*"), reverse=True),
            *sorted(home.glob("nsight-compute*"), reverse=True),
        ]
        named = Path("/opt/nvidia/nsight-compute") / self.title
        return [p for folder in (*beside, named) if (p := folder / "extras/python").is_dir()]


def candidates(ncu: str | None = None, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where ncu may be: the one given; else on PATH, under CUDA_HOME, and NVIDIA's usual folders, newest first."""
    if ncu:
        return [Path(shutil.which(ncu) or ncu).expanduser()]
    found = [Path(p) for p in (shutil.which("ncu", path=environ.get("PATH")),) if p]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := environ.get(variable):
            found.append(Path(home) / "bin/ncu")
    for pattern in (
        "opt/nvidia/nsight-compute/*/ncu",
        "usr/local/cuda*/bin/ncu",
        "usr/local/NVIDIA-Nsight-Compute*/ncu",
    ):
        found += sorted(Path("/").glob(pattern), key=lambda p: _numbers(str(p)), reverse=True)
    return list(dict.fromkeys(p for p in found if p.is_file()))


@cache
def find(ncu: str | None = None) -> Ncu | None:
    """The Nsight Compute of this machine, or None. Raises TilescopeError where the one given by name does not run."""
    for path in candidates(ncu):
        if version := version_of(path):
            return Ncu(path, version)
    if ncu:
        raise TilescopeError(f"NCU={ncu}: no such Nsight Compute.", "Give the path of an ncu, or leave NCU out.")
    return None


def version_of(path: Path) -> tuple[int, ...]:
    """The version that `ncu --version` states, or () where it does not run."""
    try:
        out = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    m = re.search(r"^Version (\d{4}(?:\.\d+){1,2})", out.stdout, re.M)
    return _numbers(m[1]) if m and out.returncode == 0 else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def nvtx_filter(stage: str) -> str:
    """ncu's expression for kernels inside the range 'stage NAME', at any depth; what ncu reads as syntax is escaped."""
    escaped = re.sub(r"([@,/*+\[\]\\])", r"\\\1", stage)
    return f"{DOMAIN}@stage {escaped}/"


def command(
    ncu: str | Path,
    stage: str,
    launch: Sequence[str],
    options: Options,
    report: str | Path,
    metrics: Sequence[str] | None = None,
) -> list[str]:
    """The whole command line. report: the file to write, without .ncu-rep. metrics: in place of those of `options`."""
    names = options.metrics if metrics is None else metrics
    words = [
        str(ncu),
        "--config-file",
        "off",
        "--target-processes",
        "all",
        "--clock-control",
        options.clock,
        "--cache-control",
        options.cache,
    ]
    words += ["--nvtx", "--nvtx-include", nvtx_filter(stage)]
    if options.set:
        words += ["--set", options.set]
    if names:
        words += ["--metrics", ",".join(names)]
    return [*words, "--import-source", "yes", "-f", "-o", str(report), *launch]


def quoted(words: Sequence[str]) -> str:
    """A command as a person can paste it into a shell."""
    return shlex.join(words)
