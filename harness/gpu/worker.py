"""The process that holds the GPU: it takes Requests, one after another, and sends back messages. client.py starts it, and ends it
if it hangs.

A crash of a kernel leaves a context that nothing works in any more; a hang leaves calls that never return. Both end here with
the process, after saying which contender on which problem it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .. import stage as stages
from ..accuracy import Accuracy
from ..errors import TilescopeError
from ..measurement import Point
from ..problem import Operands, Problem
from ..reference import EXACT_K, ExactReference, Reference, exact_problem
from . import checking, clocks, cublas, timing
from .checking import Checks
from .devices import Gpu
from .driver import (
    TIMEOUT,
    Buffers,
    CompileFailed,
    Hang,
    KernelFault,
    Session,
    StageContender,
    buffers,
    check_fit,
    compile,
)

Message = tuple[Any, ...]
Send = Callable[[Message], None]
Contender = StageContender | cublas.Cublas | cublas.CublasLt


@dataclass(frozen=True)
class Entry:
    """A contender: a stage (its name or path, tunables and cubin) or a library of cublas.NAMES. `key` tells it from the others."""

    key: str
    kernel: str
    tunables: tuple[tuple[str, int], ...] = ()
    code: bytes = b""
    sass: str = ""

    @property
    def library(self) -> bool:
        return self.kernel in cublas.NAMES


@dataclass(frozen=True)
class Request:
    """What to time.

    entries    the contenders; each is timed beside the one whose key is `rival`, or alone for None
    todo       (index of the problem, key of the entry), in order; the rival's own point is that of its longest duel
    cold       rotating sets of inputs, or one set
    limit      seconds a duel may take; timeout: seconds one product may take
    cool       wait before each duel until the GPU is at most this warm, degrees C; None: do not wait
    nvcc       compile through SourceModule with this compiler, and compare; None: load each entry's cubin as it is
    """

    gpu: Gpu
    problems: tuple[Problem, ...]
    entries: tuple[Entry, ...]
    todo: tuple[tuple[int, str], ...]
    rival: str | None = None
    cold: bool = True
    limit: float = 5.0
    timeout: float = TIMEOUT
    cool: float | None = None
    nvcc: Path | None = None


def serve(requests: Iterable[Request | Checks], send: Send, leave: Callable[[], None] = lambda: None) -> None:
    """Do what is asked, all of it on the GPU of the first request and in one context, sending messages:

    ('doing', words, seconds it may take)       ('progress', words)        ('warning', words)
    ('gpu', facts)                              what NVML says of the GPU and its driver
    ('refused', key, words, remedy)             that entry cannot take part
    ('unable', problem index, words, remedy)    that problem cannot be done, or no further: memory does not suffice
    ('point', problem index, key, Point)        done, or found to be wrong
    ('fault', problem index, key, words, remedy)   a crash or a hang
    ('done',)                                   with a request

    or, for Checks, those of checking.serve, and 'done'.

    After a fault `leave` is called, which in a process of its own ends that; else KernelFault or Hang is raised.
    """
    requests = iter(requests)
    request = next(requests, None)
    if request is None:
        return
    with Session(request.gpu, request.timeout) as session:
        while request is not None:
            session.timeout = request.timeout
            if isinstance(request, Checks):
                checking.serve(request, session, send, leave)
            else:
                _Server(request, session, send, leave).run()
            send(("done",))
            request = next(requests, None)


@lru_cache(maxsize=2)
def _inputs(problem: Problem, exact: bool) -> tuple[Operands, Reference | ExactReference]:
    """Inputs and what C must be: requests that follow each other often have the same problem."""
    operands = problem.operands()
    return operands, (ExactReference if exact else Reference)(operands)


class _Server:
    def __init__(self, request: Request, session: Session, send: Send, leave: Callable[[], None]) -> None:
        self.request, self.session, self.send, self.leave = request, session, send, leave
        self.monitor = clocks.Monitor(request.gpu)
        self.contenders: dict[str, Contender] = {}
        self.entries = {e.key: e for e in request.entries}

    def run(self) -> None:
        self.busy = self.monitor.busy()
        if self.busy:
            self.send(("warning", f"{self.busy}: times will suffer"))
        facts = {
            "driver": self.monitor.driver(),
            "max_clock_mhz": self.monitor.max_clock_mhz(),
            "nvml": self.monitor.trouble or "ok",
        }
        self.send(("gpu", facts))
        with ExitStack() as stack:
            try:
                self._open_all(stack)
                todo = [(i, key) for i, key in self.request.todo if key in self.contenders]
                for index in dict.fromkeys(i for i, _ in todo):
                    try:
                        self._problem(index, [key for i, key in todo if i == index])
                    except (Hang, KernelFault):
                        raise
                    except TilescopeError as e:
                        self.send(("unable", index, e.what, e.remedy))
            except (Hang, KernelFault):
                stack.pop_all()  # nothing can be released now; the process ends
                raise

    def _open_all(self, stack: ExitStack) -> None:
        self.send(("doing", "loading the blocking kernel", 60.0))
        self.timer = timing.Timer(self.session)
        stack.callback(self.timer.close)
        for entry in self.request.entries:
            self.send(("doing", f"loading {entry.kernel}", 300.0))
            try:
                self.contenders[entry.key] = contender = self._open(entry)
            except KernelFault:
                raise
            except TilescopeError as e:
                self.send(("refused", entry.key, e.what, e.remedy))
                continue
            if entry.library:
                stack.callback(contender.close)

    def _open(self, entry: Entry) -> Contender:
        if entry.library:
            return cublas.open_library(self.session, entry.kernel)
        stage, tunables, r = stages.find(entry.kernel), dict(entry.tunables), self.request
        code = entry.code
        if r.nvcc:
            try:
                code = compile(self.session, stage, tunables, r.gpu.cc, entry.sass, r.nvcc)
            except CompileFailed as e:
                if not code:
                    raise
                self.send(
                    (
                        "warning",
                        f"PyCUDA cannot compile {entry.kernel} here; the toolchain's machine code is used. {e.what}",
                    )
                )
        return StageContender(self.session, stage, tunables, code)

    def _problem(self, index: int, keys: list[str]) -> None:
        """Verify and time these contenders, and the rival with them, on one problem."""
        r, problem = self.request, self.request.problems[index]
        count = timing.sets_needed(problem, max(r.gpu.l2_bytes, r.gpu.device.l2_bytes), r.cold)
        check_fit(self.session, problem, count)
        self.send(("doing", f"making inputs of {problem}", 600.0))
        work = _Work(index, problem, *_inputs(problem, False))
        taking = list(dict.fromkeys([*keys, *([r.rival] if r.rival in self.contenders else [])]))
        with buffers(self.session, problem, count) as sets:
            exact = self._exact(work, taking, sets[0])
            self.send(("doing", f"copying inputs of {problem}", 120.0))
            sets[0].put(work.operands)
            for other in sets[1:]:
                other.copy(sets[0])
            self.session.wait("copying the inputs")
            points = {key: self._verified(work, key, sets[0], exact.get(key)) for key in taking}
            rival = points.get(r.rival) if r.rival else None
            beside = rival if rival is not None and rival.ok else None
            known = list(rival.flags) if rival is not None else []
            for key in keys:
                point = points[key]
                if point is rival:
                    continue
                if point.ok:
                    self._duel(work, key, point, beside, sets)
                    if beside is not None and len(point.rival_samples) > len(beside.samples):
                        _mirror(point, beside, known)
                    self._after(work, key, point, sets)
                self.send(("point", index, key, point))
            if r.rival in keys:
                if rival.ok and not rival.samples:
                    self._duel(work, r.rival, rival, None, sets)
                self.send(("point", index, r.rival, rival))

    @contextmanager
    def _blaming(self, index: int, key: str) -> Iterator[None]:
        """Says of a crash or a hang inside the block which contender and problem it was."""
        try:
            yield
        except (Hang, KernelFault) as e:
            self.send(("fault", index, key, e.what, e.remedy))
            self.leave()
            raise

    def _exact(self, work: _Work, keys: list[str], target: Buffers) -> dict[str, tuple[Accuracy, str]]:
        """(how integer inputs came out, what was damaged) for each contender; nothing where fp32 cannot hold the product."""
        if work.problem.k > EXACT_K:
            return {}
        problem = exact_problem(work.problem)
        self.send(("doing", f"making integer inputs of {problem}", 600.0))
        whole = _Work(work.index, problem, *_inputs(problem, True))
        target.put(whole.operands)
        found = {}
        for key in keys:
            c, damage = self._once(whole, key, target)
            found[key] = (whole.reference.check(c), damage)
        return found

    def _once(self, work: _Work, key: str, target: Buffers) -> tuple[np.ndarray, str]:
        """One product of a contender with C fresh: (C, damage)."""
        self.send(("doing", f"checking {self.entries[key].kernel} on {work.problem}", self.request.timeout + 60))
        target.matrices["C"].put(work.operands.c)
        with self._blaming(work.index, key):
            self.contenders[key].launch(work.problem, target)
        return target.read_back(work.operands)

    def _verified(self, work: _Work, key: str, target: Buffers, exact: tuple[Accuracy, str] | None) -> Point:
        """A point with no samples yet: verified, with the flags that are known by now."""
        entry, contender, problem = self.entries[key], self.contenders[key], work.problem
        if isinstance(contender, cublas.CublasLt):
            self.send(("doing", f"choosing cublasLt's algorithm for {problem}", 120.0))
            with self._blaming(work.index, key):
                contender.choose(problem, target, self._brief)
        c, damage = self._once(work, key, target)
        point = Point(
            contender.name, problem, contender.backend, dict(entry.tunables), entry.sass, cold=self.request.cold,
            accuracy=work.reference.check(c), exact=exact[0] if exact else None, detail=contender.detail,
            damage="; ".join(dict.fromkeys(filter(None, [damage, exact[1] if exact else ""]))),
        )  # fmt: skip
        for name, raised in (
            ("busy", self.busy),
            ("zeros", problem.distribution == "zeros"),
            ("accumulates", problem.beta),
        ):
            if raised:
                point.flag(name)
        point.flag_wrong()
        return point

    def _brief(self, product: Callable[[], None]) -> float:
        """ms of a product, roughly: the fastest of three batches, after one that loads it."""
        doing = "trying an algorithm of cublasLt"
        product()
        self.session.wait(doing)
        count = min(64, timing.batch_size(self.timer.batch([product], doing), 4))
        return min(self.timer.batch([product] * count, doing) for _ in range(3))

    def _duel(self, work: _Work, key: str, point: Point, rival: Point | None, sets: list[Buffers]) -> None:
        """Time a contender beside the rival, or alone, and fill in its point."""
        r = self.request
        doing = f"timing {point.stage} on {work.problem}" + (f" beside {rival.stage}" if rival else "")
        if r.cool is not None:
            self.send(("doing", "waiting for the GPU to cool", 300.0))
            if not self.monitor.cool(r.cool, lambda words: self.send(("progress", words))):
                self.send(("warning", f"the GPU did not cool to {r.cool:g} degrees C in time"))
        self.send(("doing", doing, 2 * r.limit + 20 * r.timeout))
        before = self.timer.unheld
        with self._blaming(work.index, key), clocks.Sampler(self.monitor) as sampler:
            other = self.contenders[r.rival] if rival is not None else None
            tick = lambda rounds: self.send(("progress", f"{doing}: {rounds} rounds"))  # noqa: E731
            found = timing.duel(self.timer, work.problem, sets, self.contenders[key], other, r.limit, tick)
        point.samples, point.batch, point.sets, point.telemetry = (
            found.samples,
            found.batch,
            len(sets),
            sampler.telemetry,
        )
        if rival is not None:
            point.rival, point.rival_samples = rival.stage, found.rival
        few = len(found.samples) < timing.LEAST_ROUNDS
        for name, raised in (
            ("unsettled", not found.settled), ("time-limit", not found.precise), ("few-rounds", few), ("unheld", self.timer.unheld > before),
            ("part-cold", r.cold and len(sets) == timing.MAX_SETS),
        ):  # fmt: skip
            if raised:
                point.flag(name)
        clocks.flag(point)

    def _after(self, work: _Work, key: str, point: Point, sets: list[Buffers]) -> None:
        """Look at the guard bands of every set, and check a fresh product again."""
        damage = [m.damage() for target in sets for m in target.matrices.values()]
        c, found = self._once(work, key, sets[0])
        again = work.reference.check(c)
        if not again.ok or again.share > point.accuracy.share:
            point.accuracy = again
        point.damage = "; ".join(dict.fromkeys(filter(None, [point.damage, *damage, found])))
        point.flag_wrong()


@dataclass(frozen=True)
class _Work:
    """A problem of the request with its inputs and what C must be."""

    index: int
    problem: Problem
    operands: Operands
    reference: Reference | ExactReference


def _mirror(point: Point, rival: Point, known: list[str]) -> None:
    """Give the rival the samples of a duel as its own; its ratio is then 1. known: the flags it had before any duel."""
    rival.samples, rival.rival_samples = list(point.rival_samples), list(point.rival_samples)
    rival.rival, rival.baseline = rival.stage, True
    rival.batch, rival.sets, rival.telemetry = point.batch, point.sets, point.telemetry
    rival.flags = [*known, *(f for f in point.flags if f not in known and f not in ("wrong", "damage"))]


def main() -> None:
    """Entry point of the process: file descriptors of the two pipes as arguments. Never returns: see the module's head.

    Requests come until one is None, or until the process that sends them is gone.
    """
    from multiprocessing.connection import Connection

    source, sink = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)
    status = 0
    try:
        serve(iter(source.recv, None), sink.send, leave=lambda: os._exit(3))
    except TilescopeError as e:
        sink.send(("error", e.what, e.remedy))
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        status = 130
    except MemoryError:
        sink.send(("error", "out of memory on the host.", "Choose a smaller size."))
    except BaseException as e:
        if os.environ.get("TILESCOPE_TRACEBACK"):
            import traceback

            traceback.print_exc()
        sink.send(
            ("error", f"a bug in Tilescope: {type(e).__name__}: {e}", "Set TILESCOPE_TRACEBACK=1 for the traceback.")
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
