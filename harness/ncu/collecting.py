"""Run ncu over a stage's launches and read what it counted: all of it, or an error and nothing."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import watched
from ..stage import Launch
from . import reading
from .failures import Failure, Unavailable, diagnose, missing_metrics
from .invocation import ALIASES, Ncu, Options, command, find
from .reading import Counted

TIME_LIMIT = 600.0
"""Seconds that one run of ncu may take."""
Progress = Callable[[float, str], None]


@dataclass
class Collection:
    """What ncu counted.

    launches  one Counted per launch of the stage, in order; a launch that ncu did not see is left out
    missing   metrics asked for that this ncu does not have on this GPU
    report    the .ncu-rep, as ncu wrote it
    notes     what a reader should know: launches not seen, the way the report was read
    passes    the most times that a launch was replayed
    """

    launches: list[Counted]
    missing: tuple[str, ...]
    report: bytes
    command: tuple[str, ...]
    version: str
    options: Options
    notes: list[str] = field(default_factory=list)
    passes: int = 0


def collect(
    stage: str,
    launch: Sequence[str],
    launches: Sequence[Launch],
    options: Options,
    *,
    ncu: Ncu | None = None,
    limit: float = TIME_LIMIT,
    progress: Progress | None = None,
) -> Collection:
    """Profile `launch` (the words of a `python -m harness launch` command) with ncu.

    launches: those the stage makes, in order, to name what ncu counted. limit: seconds.

    Raises Unavailable where this machine gives no counters (no ncu, no permission, a GPU it does not know), TilescopeError
    where the profiled launch fails, ncu is killed or runs past its limit, or its report cannot be read.
    """
    ncu = ncu or find(options.ncu)
    if ncu is None:
        raise Unavailable(
            "Nsight Compute (ncu) is not installed.",
            "Install it, or put it on PATH; NVIDIA ships it with the CUDA toolkit.",
        )
    with tempfile.TemporaryDirectory(prefix="tilescope-ncu-") as folder:
        report = Path(folder) / "report.ncu-rep"
        asked = list(options.metrics)
        missing: list[str] = []
        alias: dict[str, str] = {}
        deadline = time.monotonic() + limit
        while True:
            words = command(ncu.path, stage, launch, options, report.with_suffix(""), asked)
            said = (lambda text: _tell(text, len(launches), progress)) if progress else None
            output, status = watched.run(words, deadline - time.monotonic(), said)
            absent = missing_metrics(output, asked)
            if not absent:
                break
            for name in absent:
                asked.remove(name)
                ours = alias.pop(name, name)
                other = next((x for x in ALIASES.get(ours, ()) if x != name), None) if ours == name else None
                if other:
                    alias[other] = ours
                    asked.append(other)
                else:
                    missing.append(ours)
        if failure := diagnose(output, status):
            raise failure.error()
        try:
            data = report.read_bytes()
        except OSError:
            data = b""
        if not data:
            raise Failure(
                "no report", "ncu ended without writing its report: nothing was recorded.", "Run it again."
            ).error()
        found, notes = reading.read(report, ncu)
    counted, unseen = reading.match(found, launches)
    for one in counted:
        one.rename(alias)
        missing += [name for name in options.metrics if name not in one.values and name not in (*missing, *one.strings)]
    notes += unseen
    passes = max((int(n) for n in re.findall(r"- (\d+) pass", output)), default=0)
    return Collection(counted, tuple(dict.fromkeys(missing)), data, tuple(words), ncu.title, options, notes, passes)


def _tell(text: str, launches: int, progress: Progress) -> None:
    begun = re.findall(r'==PROF== Profiling "([^"]*)', text)
    if begun:
        progress(min(1.0, len(begun) / (launches + 1)), f"ncu: {begun[-1]}")
