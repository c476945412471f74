"""The timer: CUDA events around launches that queue behind a blocking kernel, A B A B in one process, until the ratio is known.

A sample is a batch of products between two events. While a kernel of one thread spins on a flag in host memory, the events
and all launches of the batch are queued behind it; then the flag is set, and the GPU runs the batch without waiting for the
host: what launching costs the host is not in the time, however small the product. The spin ends by itself after a while, so
that a batch which cannot be queued ends too, and is told apart (after NVIDIA's nvbench, detail/blocking_kernel).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .. import statistics
from ..problem import Problem
from .driver import Buffers, Session, _explained

TARGET_MS = 2.0
"""A sample lasts at least about this long, where queueing so many launches is possible."""
MAX_QUEUED = 512
"""Launches in a batch: the driver's queue holds about twice as many before a launch blocks."""
HOLD_S = 2.0
"""The blocking kernel gives up after this."""
LEAST_ROUNDS = 5
"""Rounds measured whatever the time limit, unless a product takes so long that 2 must do."""
CHECK_EVERY = 5
WARM_S = 0.3
"""Least time of a warm-up: an idle GPU takes about this long to reach its clock."""
WARM_LIMIT_S = 3.0
MAX_SETS = 2048
"""Sets of buffers that are rotated at most: below about 70^3 they then fill less than twice the L2."""

_HOLD = """.version 6.3
.target sm_75
.address_size 64
.visible .entry hold(.param .u64 flags, .param .u64 limit)
{
    .reg .pred %p<3>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [flags];
    ld.param.u64 %rd2, [limit];
    mov.u64 %rd3, %globaltimer;
WAIT:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.u64 %rd4, %globaltimer;
    sub.u64 %rd4, %rd4, %rd3;
    setp.lt.u64 %p2, %rd4, %rd2;
    @%p2 bra WAIT;
    mov.u32 %r2, 1;
    st.volatile.global.u32 [%rd1+4], %r2;
DONE:
    ret;
}
"""
"""flags[0]: set by the host to end the spin; flags[1]: set by the kernel that gave up after `limit` ns. PTX, so that the driver
compiles it for any GPU and no nvcc is needed."""

Product = Callable[[], None]


class Timer:
    """Times batches of products on a session's stream."""

    def __init__(self, session: Session) -> None:
        cuda = session.cuda
        self.session = session
        with _explained("loading the blocking kernel"):
            self._module = cuda.module_from_buffer(_HOLD.encode() + b"\0")
            self._hold = self._module.get_function("hold")
            self._hold.prepare("PQ")
            self._flags = cuda.pagelocked_zeros(2, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
            self._address = int(self._flags.base.get_device_pointer())
            self._start, self._end = cuda.Event(), cuda.Event()
        self.unheld = 0
        """Batches whose launches outlasted the blocking kernel."""

    def batch(self, products: Sequence[Product], doing: str) -> float:
        """ms for each of the products, queued together. NaN where the host could not queue them before the blocking kernel gave up."""
        session = self.session
        self._flags[:] = 0
        try:
            with _explained(doing):
                self._hold.prepared_async_call((1, 1), (1, 1, 1), session.stream, self._address, int(HOLD_S * 1e9))
                self._start.record(session.stream)
            for product in products:
                product()
            with _explained(doing):
                self._end.record(session.stream)
        finally:
            self._flags[0] = 1
        session.wait(doing, self._end, timeout=session.timeout + HOLD_S)
        if self._flags[1]:
            self.unheld += 1
            return math.nan
        with _explained(doing):
            return self._end.time_since(self._start) / len(products)

    def close(self) -> None:
        """Free the flags. The session must still be open."""
        self._flags.base.free()


class Rotation:
    """Products of one contender on several sets of buffers; all contenders walk the sets in one common order."""

    def __init__(self, contender: object, problem: Problem, sets: Sequence[Buffers]) -> None:
        self.name = contender.name
        self.products = [contender.bind(problem, s) for s in sets]
        self.launches = self.products[0].launches

    def next(self, start: int, count: int) -> list[Product]:
        return [self.products[(start + i) % len(self.products)] for i in range(count)]


@dataclass
class Rounds:
    """Samples of two contenders (or one) taken in turns: ms per product, one of each a round."""

    samples: list[float] = field(default_factory=list)
    rival: list[float] = field(default_factory=list)
    batch: int = 0
    settled: bool = True
    precise: bool = False


def sets_needed(problem: Problem, l2_bytes: int, cold: bool) -> int:
    """Sets of A, B and C that together are at least twice the L2, at least 2 and at most MAX_SETS; one where they may stay in cache."""
    if not cold:
        return 1
    return min(MAX_SETS, max(2, math.ceil(2 * l2_bytes / problem.bytes)))


def batch_size(ms: float, launches: int) -> int:
    """Products in a sample of about TARGET_MS."""
    return max(1, min(math.ceil(TARGET_MS / ms) if ms > 0 else MAX_QUEUED, MAX_QUEUED // max(1, launches)))


def alternate(
    first: Callable[[int], float],
    second: Callable[[int], float] | None,
    batches: tuple[int, int],
    limit: float,
    precision: float = statistics.PRECISION,
    clock: Callable[[], float] = time.monotonic,
    tick: Callable[[int], None] = lambda rounds: None,
) -> Rounds:
    """Rounds of A B A B until the 95 % interval of the paired ratio (alone: of the median) is within `precision`, or `limit` s are over.

    first, second: take the number of products and give ms for each. A round with a NaN is dropped. Interrupted by Ctrl-C or
    an error, nothing is kept.
    """
    found = Rounds(batch=batches[0])
    start = clock()
    dropped = 0
    while True:
        a = first(batches[0])
        b = second(batches[1]) if second else math.nan
        if math.isfinite(a) and (second is None or math.isfinite(b)):
            found.samples.append(a)
            found.rival.append(b)
        else:
            dropped += 1
        rounds, spent = len(found.samples), clock() - start
        tick(rounds)
        if rounds >= 2 * LEAST_ROUNDS and rounds % CHECK_EVERY == 0 and _precise(found, second is not None, precision):
            found.precise = True
            break
        each = spent / max(1, rounds + dropped)
        if rounds + dropped >= (LEAST_ROUNDS if each < limit / 2 else 2) and spent + each > limit:
            found.precise = rounds > 1 and _precise(found, second is not None, precision)
            break
    if second is None:
        found.rival = []
    return found


def _precise(found: Rounds, paired: bool, precision: float) -> bool:
    estimate = statistics.ratio(found.samples, found.rival) if paired else statistics.median(found.samples)
    return estimate.half_width <= precision


def warm_up(
    contenders: Sequence[Callable[[int], float]],
    batches: Sequence[int],
    least: float = WARM_S,
    limit: float = WARM_LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Run everyone in turns until everyone's times have settled; whether they did before the limit (s)."""
    start = clock()
    times: list[list[float]] = [[] for _ in contenders]
    while True:
        for run, batch, seen in zip(contenders, batches, times, strict=True):
            seen.append(run(batch))
        spent = clock() - start
        if spent >= least and all(statistics.settled(t, tolerance=0.02) for t in times):
            return True
        if spent >= limit:
            return all(statistics.settled(t, tolerance=0.05) for t in times) or len(times[0]) < 5


def duel(
    timer: Timer,
    problem: Problem,
    sets: Sequence[Buffers],
    first: object,
    second: object | None,
    limit: float,
    tick: Callable[[int], None],
) -> Rounds:
    """Time a contender beside a rival (or alone) on sets of buffers that they walk in turns."""
    rotations = [Rotation(c, problem, sets) for c in (first, second) if c is not None]
    position = 0

    def runner(rotation: Rotation) -> Callable[[int], float]:
        def run(count: int) -> float:
            nonlocal position
            products = rotation.next(position, count)
            position += count
            return timer.batch(products, f"timing {rotation.name}")

        return run

    runs = [runner(r) for r in rotations]
    single = [_single(run) for run in runs]
    batches = [batch_size(ms, r.launches) for ms, r in zip(single, rotations, strict=True)]
    settled = warm_up(runs, batches, WARM_S, WARM_LIMIT_S)
    found = alternate(runs[0], runs[1] if second is not None else None, (batches[0], batches[-1]), limit, tick=tick)
    found.settled = settled
    return found


def _single(run: Callable[[int], float]) -> float:
    """ms of one product by itself, the faster of two unless that would take long. NaN where it could not be held back."""
    first = run(1)
    return float(np.nanmin([first, run(1)])) if not first > 500 else first
