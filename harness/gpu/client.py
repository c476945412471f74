"""Starts the process that holds the GPU and listens to it. No PyCUDA here: a kernel that crashes or hangs cannot hurt this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from ..errors import TilescopeError
from ..measurement import Point
from ..problem import Problem
from ..toolchain import ROOT
from .worker import Entry, Request

GRACE_S = 30.0
"""Seconds that the process may overrun what it said a step takes."""
Progress = Callable[[float, str], None]


@dataclass
class Outcome:
    """What came of a request: points in the order they were done, warnings, and what NVML said of the GPU."""

    points: list[Point] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    gpu: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, TilescopeError] = field(default_factory=dict)
    unable: dict[int, TilescopeError] = field(default_factory=dict)


def run(request: Request, progress: Progress | None = None, outcome: Outcome | None = None) -> Outcome:
    """Do all of a request, in a new process after each crash or hang.

    outcome: filled as points come in, so that a caller who is interrupted has those that were finished. A contender that
    crashes or hangs gives a Point with a `fault`; one that cannot be opened is in `refused`, by its key; a problem that does
    not fit is in `unable`, by its index. Raises TilescopeError where
    nothing can be done: no context, PyCUDA missing.
    """
    outcome = outcome if outcome is not None else Outcome()
    note = progress or (lambda fraction, words: None)
    total = max(1, len(request.todo))
    entries = {e.key: e for e in request.entries}
    while request.todo:
        fault = None
        for message in _conversation(request):
            match message:
                case ("doing", str(words), _) | ("progress", str(words)):
                    note(1 - len(request.todo) / total, words)
                case ("warning", str(words)):
                    if words not in outcome.warnings:
                        outcome.warnings.append(words)
                case ("gpu", facts):
                    outcome.gpu = facts
                case ("refused", key, words, remedy):
                    outcome.refused[key] = TilescopeError(words, remedy)
                    request = _without(request, lambda i, k, gone=key: k == gone)
                case ("unable", index, words, remedy):
                    outcome.unable[index] = TilescopeError(words, remedy)
                    request = _without(request, lambda i, k, gone=index: i == gone)
                case ("point", index, key, point):
                    outcome.points.append(point)
                    request = _without(request, lambda i, k, done=(index, key): (i, k) == done)
                case ("fault", index, key, words, remedy):
                    fault = (index, key)
                    outcome.points.append(_faulty(request.problems[index], entries[key], words, remedy, request.cold))
                case ("error", words, remedy):
                    raise TilescopeError(words, remedy)
        if fault is None:
            break
        request = _without(request, lambda i, k, done=fault: (i, k) == done)
        if fault[1] == request.rival:
            request = replace(request, rival=None)
    return outcome


def _without(request: Request, gone: Callable[[int, str], bool]) -> Request:
    return replace(request, todo=tuple((i, k) for i, k in request.todo if not gone(i, k)))


def _faulty(problem: Problem, entry: Entry, words: str, remedy: str, cold: bool) -> Point:
    point = Point(
        _stage_name(entry),
        problem,
        entry.kernel if entry.library else "gpu",
        dict(entry.tunables),
        entry.sass,
        cold=cold,
        fault=f"{words}\n{remedy}",
    )
    point.flag("fault")
    return point


def _stage_name(entry: Entry) -> str:
    from .. import stage as stages

    return entry.kernel if entry.library else stages.find(entry.kernel).name


def _conversation(request: Request) -> Iterator[tuple]:
    """The messages of one process, to its end. A fault that it cannot report itself is reported in its stead."""
    doing, allowed, position = "starting", 120.0, (request.todo[0] if request.todo else (0, ""))
    with _process(request) as (process, source):
        deadline = time.monotonic() + allowed + GRACE_S
        faulted = False
        while True:
            try:
                if not source.poll(max(0.0, min(1.0, deadline - time.monotonic()))):
                    if time.monotonic() < deadline:
                        continue
                    process.kill()
                    if not faulted:
                        yield (
                            "fault",
                            *position,
                            f"{doing}: no sign of life for {allowed + GRACE_S:.0f} s; the process was ended.",
                            "Choose a smaller size.",
                        )
                    return
                message = source.recv()
            except (EOFError, OSError):
                break
            if message[0] == "doing":
                doing, allowed = message[1], message[2]
            if message[0] == "point":
                position = next(((i, k) for i, k in request.todo if (i, k) != message[1:3]), position)
            deadline = time.monotonic() + allowed + GRACE_S
            if message[0] == "done":
                return
            faulted |= message[0] == "fault"
            yield message
            if message[0] == "error":
                return
        process.wait()
        if not faulted:
            yield (
                "error",
                f"{doing}: the process that holds the GPU ended by itself (status {process.returncode}).",
                "Look at `dmesg` for NVRM messages; try again.",
            )


@contextmanager
def _process(request: Request) -> Iterator[tuple[subprocess.Popen, Connection]]:
    """The process, started and given its request, and what it says. It is ended with the block, whatever happens."""
    from_us, to_it = os.pipe()
    from_it, to_us = os.pipe()
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, map(str, sys.path))])
    command = [sys.executable, "-c", "from harness.gpu.worker import main; main()", str(from_us), str(to_us)]
    try:
        process = subprocess.Popen(
            command,
            pass_fds=(from_us, to_us),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as e:
        for fd in (from_us, to_it, from_it, to_us):
            os.close(fd)
        raise TilescopeError(f"cannot start the process that holds the GPU: {e}.") from e
    os.close(from_us)
    os.close(to_us)
    try:
        with Connection(to_it, readable=False) as sink, Connection(from_it, writable=False) as source:
            try:
                sink.send(request)
            except BrokenPipeError:
                pass  # it ended at once; reading says so
            yield process, source
    finally:
        if process.poll() is None:
            try:
                process.wait(5 if sys.exc_info()[0] is None else 0)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
