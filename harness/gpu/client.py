"""Starts the process that holds the GPU and listens to it. No PyCUDA here: a kernel that crashes or hangs cannot hurt this process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from ..accuracy import Accuracy
from ..errors import TilescopeError
from ..measurement import Point
from ..problem import Problem
from ..toolchain import ROOT
from .checking import Checks
from .worker import Entry, Request

GRACE_S = 30.0
"""Seconds that the process may overrun what it said a step takes."""
PATIENCE_S = 5.0
"""Seconds that the process may take to end by itself."""
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
    """Do all of a request, after each crash or hang in a new process.

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
                case ("fault", *where, words, remedy) if where or request.todo:
                    index, key = fault = tuple(where) or request.todo[0]
                    outcome.points.append(_faulty(request.problems[index], entries[key], words, remedy, request.cold))
                case ("error", words, remedy):
                    raise TilescopeError(words, remedy)
        if fault is None:
            break
        request = _without(request, lambda i, k, done=fault: (i, k) == done)
        if fault[1] == request.rival:
            request = replace(request, rival=None)
    return outcome


def check(checks: Checks) -> Iterator[tuple[Accuracy | None, str]]:
    """Do checks, after each crash or hang in a new process. For each case in order: how C compares, or None where the kernel
    crashed or hung; and what went wrong besides a wrong C, in words, or nothing.

    Raises TilescopeError where nothing can be done: no context, PyCUDA missing, a launch that the GPU refuses.
    """
    while checks.cases:
        for message in _conversation(checks):
            match message:
                case ("checked", found, damage):
                    checks = replace(checks, cases=checks.cases[1:])
                    yield found, damage
                case ("fault", words, remedy):
                    checks = replace(checks, cases=checks.cases[1:])
                    yield None, f"{words}\n{remedy}"
                case ("error", words, remedy):
                    raise TilescopeError(words, remedy)


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


def _conversation(request: Request | Checks) -> Iterator[tuple]:
    """The messages that answer a request, to its end. What the process cannot report itself is reported in its stead: an error
    where it does not start, else a fault, without the place: it is in what was to be done next."""
    doing, allowed = "starting", 120.0
    with _process(request) as holder:
        deadline = time.monotonic() + allowed + GRACE_S
        faulted = False
        while True:
            try:
                if not holder.source.poll(max(0.0, min(1.0, deadline - time.monotonic()))):
                    if time.monotonic() < deadline:
                        continue
                    holder.process.kill()
                    if not faulted:
                        yield (
                            "error" if doing == "starting" else "fault",
                            f"{doing}: no sign of life for {allowed + GRACE_S:.0f} s; the process was ended.",
                            "Choose a smaller size.",
                        )
                    return
                message = holder.source.recv()
            except (EOFError, OSError):
                break
            if message[0] == "doing":
                doing, allowed = message[1], message[2]
            deadline = time.monotonic() + allowed + GRACE_S
            if message[0] == "done":
                holder.ready = True
                return
            faulted |= message[0] == "fault"
            yield message
            if message[0] == "error":
                return
        holder.process.wait()
        if not faulted:
            yield (
                "error",
                f"{doing}: the process that holds the GPU ended by itself (status {holder.process.returncode}).",
                "Look at `dmesg` for NVRM messages; try again.",
            )


@dataclass
class _Holder:
    """A process that holds a GPU, and the two ends of its pipes. ready: it has done all that it was asked."""

    process: subprocess.Popen
    sink: Connection
    source: Connection
    ready: bool = False

    def ask(self, request: Request | Checks | None) -> None:
        """Send a request, or None: that was all. A process that has ended says so where it is read from."""
        self.ready = False
        with suppress(OSError):
            self.sink.send(request)

    def end(self, patience: float) -> None:
        """End the process, after so many seconds by force."""
        self.ask(None)
        self.sink.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.source.close()


_waiting: dict[str, _Holder] | None = None
"""Processes that wait for another request, by the UUID of the GPU they hold; None where each ends with its request."""


def keep() -> None:
    """From now on the process that has done a request waits for the next one on its GPU, and ends with this process: starting one
    takes seconds."""
    global _waiting
    _waiting = _waiting or {}


@contextmanager
def keeping() -> Iterator[None]:
    """`keep` for the length of the block."""
    global _waiting
    before = _waiting
    keep()
    try:
        yield
    finally:
        if before is None:
            waiting, _waiting = _waiting, None
            for holder in waiting.values():
                holder.end(PATIENCE_S)


@contextmanager
def _process(request: Request | Checks) -> Iterator[_Holder]:
    """A process that was given the request. With the block it ends, whatever happens, unless it is kept."""
    holder = (_waiting or {}).pop(request.gpu.uuid, None)
    if holder is not None and holder.process.poll() is not None:
        holder.end(0)
        holder = None
    holder = holder or _start()
    try:
        holder.ask(request)
        yield holder
    finally:
        if holder.ready and _waiting is not None:
            _waiting[request.gpu.uuid] = holder
        else:
            holder.end(PATIENCE_S if sys.exc_info()[0] is None else 0)


def _start() -> _Holder:
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
    return _Holder(process, Connection(to_it, readable=False), Connection(from_it, writable=False))
