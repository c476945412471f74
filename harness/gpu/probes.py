"""Run the probes of harness/roofs.cu on a GPU: warm, launch after launch without a gap, the clock watched meanwhile."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import roofs
from ..device import Device
from ..errors import TilescopeError
from ..measurement import Telemetry
from ..occupancy import occupancy
from ..problem import Problem
from ..roofs import CHASES, STREAMS, THREADS, Loop, Probe, Roof, Timed
from ..stage import Launch
from ..toolchain import Binary
from .clocks import REASONS, Monitor, Sampler
from .driver import Hang, Module, Session

SECONDS = 0.010
"""What one launch should take: long beside its start and end, short enough for several in a blink."""
LAUNCHES = 20
WARM = 0.3
"""Seconds of the same probe before its launches count."""
FIRST = 1.0
"""Seconds of multiply-adds before the first probe: from idle to the clock that it settles at."""
PLACES = 2**20
"""Most places of a ring of pointers."""
NONE = Problem(1, 1, 1)


class Bench:
    """The compiled probes on a GPU, with the memory they use."""

    def __init__(self, session: Session, binary: Binary, device: Device) -> None:
        self.session, self.binary, self.device = session, binary, device
        self.monitor = Monitor(session.gpu)
        self.module = Module(session, binary.cubin, "roofs")
        self.large = max(p.set(device) for p in roofs.PROBES if p.set)
        self.warps = device.sms * 8 * roofs.WARPS
        session.need(2 * self.large + LAUNCHES * 24 * self.warps, "make roofs")
        self.arrays = [session.allocate(self.large) for _ in range(2)]
        self.input = session.allocate(4 * roofs.INPUT)
        self.out = session.allocate(4 * device.sms * 8 * THREADS)
        self.ticks = session.allocate(LAUNCHES * 24 * self.warps)
        self.order = session.allocate(4 * PLACES)
        rng = np.random.default_rng(0)
        session.cuda.memcpy_htod(self.input, rng.standard_normal(roofs.INPUT, dtype=np.float32))

    def free(self) -> None:
        for memory in (*self.arrays, self.input, self.out, self.ticks, self.order):
            memory.free()

    def fill(self) -> None:
        """As good as random numbers into both large arrays."""
        for target in self.arrays:
            self._sweep("stream_write", int(self.arrays[0]), int(target))

    def flush(self) -> None:
        """Read the second large array once, which leaves nothing else in L2."""
        self._sweep("stream_read", int(self.arrays[1]), int(self.arrays[1]))

    def _sweep(self, kernel: str, source: int, target: int) -> None:
        per_round = self.device.sms * 8 * THREADS * roofs.UNROLL * 16
        rounds = math.ceil(self.large / per_round)
        args = (source, target, int(self.out), rounds, self.large // 16 - 1, 0)
        self._prepared(kernel, self.device.sms * 8, THREADS, args)()
        self.session.wait(f"running {kernel}")

    def _prepared(self, kernel: str, blocks: int, threads: int, args: Sequence[int]) -> Callable[[], None]:
        return self.module.prepare(Launch(kernel, (blocks, 1, 1), (threads, 1, 1), args=tuple(args)), NONE, {})

    def grid(self, probe: Probe) -> tuple[int, int]:
        """(blocks, threads): one wave over all SMs, or one small block."""
        if probe.kernel in CHASES:
            return 1, 1
        if not probe.blocks:
            return 1, roofs.LANES
        launch = Launch(probe.kernel, (1, 1, 1), (THREADS, 1, 1))
        held = occupancy(self.binary.kernel(probe.kernel), launch, self.device)
        return self.device.sms * min(probe.blocks, *held.limits.values()), THREADS

    def run(self, probe: Probe) -> tuple[Timed, Telemetry]:
        """LAUNCHES launches of a probe, after a warm-up."""
        blocks, threads = self.grid(probe)
        warps = blocks * max(1, threads // roofs.LANES)
        ring = _Ring(self, probe) if probe.kernel in CHASES else None

        def prepared(rounds: int, ticks: int) -> Callable[[], None]:
            if probe.kernel in STREAMS:
                a, b = map(int, self.arrays)
                args: tuple[int, ...] = (a, b, int(self.out), rounds, probe.set(self.device) // 16 - 1, ticks)
            else:
                args = (ring.enter(rounds) if ring else int(self.input), int(self.out), rounds, ticks)
            return self._prepared(probe.kernel, blocks, threads, args)

        rounds = self._calibrate(probe, prepared)
        if ring:
            rounds = min(rounds, ring.rounds)
        started = time.monotonic()
        while time.monotonic() - started < WARM:
            prepared(rounds, 0)()
            self.session.wait(f"running {probe.kernel}")
            if ring and ring.once:
                break
        calls = [prepared(rounds, int(self.ticks) + n * 24 * warps) for n in range(LAUNCHES)]
        seconds, telemetry = self._launches(probe, calls)
        if ring:
            ring.check()
        ticks = np.empty((LAUNCHES, warps, 3), np.int64)
        self.session.cuda.memcpy_dtoh(ticks, self.ticks)
        return Timed(ticks, seconds, rounds), telemetry

    def _calibrate(self, probe: Probe, prepared: Callable[[int, int], Callable[[], None]]) -> int:
        """Times round the loop that take about SECONDS."""
        rounds = 16
        while True:
            (seconds,), _ = self._launches(probe, [prepared(rounds, 0)])
            if seconds > SECONDS / 20 or rounds >= 2**24:
                return max(1, round(rounds * SECONDS / max(seconds, 1e-6)))
            rounds *= 4

    def _event(self) -> Any:
        return self.session.cuda.Event()

    def _launches(self, probe: Probe, calls: Sequence[Callable[[], None]]) -> tuple[list[float], Telemetry]:
        """Event time in seconds of each call, queued without a gap; NVML is read until the last has ended."""
        events = [(self._event(), self._event()) for _ in calls]
        for call, (start, end) in zip(calls, events, strict=True):
            start.record(self.session.stream)
            call()
            end.record(self.session.stream)
        with Sampler(self.monitor, period=0.005) as sampler:
            self.session.wait(f"running {probe.kernel}", events[-1][1])
        return [start.time_till(end) / 1e3 for start, end in events], sampler.telemetry


class _Ring:
    """Places in the first large array tied into a ring of pointers in random order; launches follow on from one another."""

    def __init__(self, bench: Bench, probe: Probe) -> None:
        self.bench, self.at = bench, 0
        size = probe.set(bench.device)
        self.places = min(PLACES, size // 128)
        self.stride = size // self.places
        self.once = size > 2 * bench.device.l2_bytes  # no place may be visited twice: it would be in L2
        self.order = np.random.default_rng(1).permutation(self.places).astype(np.uint32)
        bench.session.cuda.memcpy_htod(bench.order, self.order)
        args = (int(bench.arrays[0]), int(bench.order), self.places, self.stride)
        bench._prepared("link", bench.device.sms, THREADS, args)()
        bench.session.wait("running link")
        if self.once:
            bench.flush()

    @property
    def rounds(self) -> int:
        """The most times round the loop that leave enough places for all launches."""
        return (self.places - self.at) // roofs.CHASE // (LAUNCHES + 2) if self.once else 2**30

    def enter(self, rounds: int) -> int:
        """The address where the next launch starts."""
        here = self._address()
        self.at = (self.at + rounds * roofs.CHASE) % self.places
        return here

    def _address(self) -> int:
        return int(self.bench.arrays[0]) + int(self.order[self.at]) * self.stride

    def check(self) -> None:
        """Raise TilescopeError unless the last launch ended where it must."""
        left = np.empty(1, np.uint64)
        self.bench.session.cuda.memcpy_dtoh(left, self.bench.out)
        if int(left[0]) != self._address():
            raise TilescopeError("a chain of pointers was not followed to its end: the latency is not to be trusted.")


def measure(
    session: Session, binary: Binary, device: Device, progress: Callable[[float, str], None] | None = None
) -> list[Roof]:
    """Every roof of a GPU, in the order of roofs.PROBES.

    Raises TilescopeError where the memory does not suffice, or a probe fails or does not do what it must.
    """
    bench = Bench(session, binary, device)
    try:
        found = _measure(bench, progress or (lambda fraction, text: None))
    except Hang:
        raise  # freeing memory would wait for the kernel
    except BaseException:
        bench.free()
        raise
    bench.free()
    return found


def _measure(bench: Bench, note: Callable[[float, str], None]) -> list[Roof]:
    bench.fill()
    note(0.0, "warming up")
    began = time.monotonic()
    while time.monotonic() - began < FIRST:
        bench.run(roofs.PROBES[0])
    found: list[Roof] = []
    runs: dict[tuple[str, int], Any] = {}
    for n, probe in enumerate(roofs.PROBES):
        note(n / len(roofs.PROBES), probe.name)
        key = probe.kernel, probe.set(bench.device) if probe.set else 0
        if key not in runs:
            runs[key] = bench.run(probe)
        timed, telemetry = runs[key]
        state = {
            "clock_mhz": _median(telemetry.clock_mhz),
            "power_w": _median(telemetry.power_w),
            "flags": _flags(telemetry),
        }
        loop = Loop.of(bench.binary.kernel(probe.kernel))
        found.append(roofs.roof(probe, loop, bench.device, timed, **state))
    return found


def _median(values: Sequence[float]) -> float | None:
    finite = [v for v in values if math.isfinite(v)]
    return statistics.median(finite) if finite else None


def _flags(telemetry: Telemetry) -> tuple[str, ...]:
    """What held the clock back during more than a twentieth of the readings, by the names of measurement.FLAGS."""
    if not any(math.isfinite(c) for c in telemetry.clock_mhz):
        return ("no-telemetry",)
    least = len(telemetry.reasons) / 20
    return tuple(
        dict.fromkeys(name for bit, name in REASONS.items() if sum(bool(r & bit) for r in telemetry.reasons) > least)
    )
