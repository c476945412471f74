"""`python -m harness launch ...` under a tool that watches it: ncu, compute-sanitizer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from . import stage as stages
from .errors import TilescopeError
from .problem import Problem
from .toolchain import ROOT


def launch_words(
    kernel: str | Path,
    problem: Problem,
    tunables: Mapping[str, int],
    cubin: str | Path | None = None,
    gpu: str | None = None,
) -> list[str]:
    """`python -m harness launch ...` for one problem: the process that ncu or compute-sanitizer watches."""
    given = {k: v for k, v in asdict(problem).items() if v != _default(problem, k)}
    words = [sys.executable, "-m", "harness", "launch", f"KERNEL={stages.anywhere(str(kernel))}"]
    words += [f"{k.upper()}={v}" for k, v in given.items()]
    words += [f"{k}={v}" for k, v in tunables.items()]
    if cubin:
        words.append(f"CUBIN={cubin}")
    if gpu:
        words.append(f"GPU={gpu}")
    return words


def _default(problem: Problem, field: str) -> object:
    """What `launch` takes where nothing is said; m, n and k are always said."""
    return {"m": 0, "n": 0, "k": 0, "lda": problem.k, "ldb": problem.n, "ldc": problem.n}.get(
        field, Problem.__dataclass_fields__[field].default
    )


def run(words: Sequence[str], limit: float, said: Callable[[str], None] | None = None) -> tuple[str, int]:
    """Run a command from the checkout's root: (what it printed, exit status, negative for a signal).

    It gets a process group of its own, which is ended as a whole: at the limit, and on Ctrl-C, which is raised again.
    said: called with all that it has printed so far. Raises TilescopeError at the limit, or where it does not start.
    """
    environ = os.environ | {"PYTHONUNBUFFERED": "1"}
    try:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as e:
        raise TilescopeError(f"{words[0]} does not start: {e.strerror}.") from e
    deadline = time.monotonic() + limit
    text = bytearray()
    try:
        with DefaultSelector() as selector:
            selector.register(process.stdout, EVENT_READ)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TilescopeError(
                        f"{Path(words[0]).name} ran past its limit of {limit:.0f} s and was ended: nothing was recorded.",
                        "Choose a smaller SIZE.",
                    )
                if selector.select(min(left, 1.0)):
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        break
                    text += chunk
                    if said:
                        said(text.decode(errors="replace"))
        return text.decode(errors="replace"), process.wait(max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TilescopeError(f"{Path(words[0]).name} does not end.", "Run it again.") from None
    finally:
        end(process)


def end(process: subprocess.Popen) -> None:
    """End a process and all of its group, politely first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    process.stdout.close()
