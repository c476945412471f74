"""`make roofs`: what this card's resources give at most, measured with loops that keep one of them busy (roofs.cu).

Rates per SM and latencies come from the SM's own cycle counter, read at the start and the end of each warp's loop, so
neither launch overhead nor the reading of a clock enters them; bandwidths of L2 and DRAM come from event times.
How much work a time round a loop is, is counted in the machine code that runs. Bounds use the results where a run of
them is recorded for the device (`recorded`), else the widths in harness.device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import environment, isa, record, toolchain
from .device import Device
from .stage import Stage
from .toolchain import Binary, Instruction, Kernel

SOURCE = Path(__file__).with_suffix(".cu")
KIND = "roofs"
THREADS, LANES, WARPS = 256, 32, 8
CHASE = 16
"""Steps of a latency probe per time round its loop."""
UNROLL = 4
"""16-byte elements a thread of a streaming probe moves per time round its loop."""
INPUT = 16384
"""Elements of the probes' input: the largest index they read, rounded up."""


@dataclass(frozen=True)
class Loop:
    """The loop of a compiled probe: its instructions, and what one warp does in one time round."""

    body: tuple[Instruction, ...]

    @classmethod
    def of(cls, kernel: Kernel) -> Loop:
        """The longest innermost loop of a kernel. Raises ValueError if it has none."""
        found = _spans(kernel)
        inner = [a for a in found if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in found)]
        start, end = max(inner, key=lambda span: span[1] - span[0])
        return cls(tuple(kernel.instructions[start:end]))

    @classmethod
    def hottest(cls, kernel: Kernel) -> Loop:
        """The loop of a kernel with the most multiply-adds, the shortest such. Raises ValueError if it has none."""
        bodies = [cls(tuple(kernel.instructions[start:end])) for start, end in _spans(kernel)]
        return max(bodies, key=lambda loop: (loop.count("FFMA"), -loop.count()))

    def count(self, *bases: str) -> int:
        """Instructions of these opcodes, modifiers left out; of all, if none is named."""
        return sum(not bases or i.base in bases for i in self.body)

    @cached_property
    def reads(self) -> tuple[int, int]:
        """Registers fetched from the even and the odd bank, once the loop has gone round."""
        steady = isa.register_reads([*self.body, *self.body])[len(self.body) :]
        return sum(even for even, _ in steady), sum(odd for _, odd in steady)

    @property
    def reads_per_ffma(self) -> float:
        """Registers fetched per multiply-add."""
        return sum(self.reads) / self.count("FFMA")

    @property
    def ffma_share(self) -> float:
        """Share of the FMA peak that issue and register banks leave: time follows max(issued, reads of a bank)."""
        return self.count("FFMA") / max(self.count(), *self.reads)

    @property
    def bunched(self) -> float:
        """Share of the loads from shared memory that follow upon another one, with no instruction between; NaN without any."""
        loads = [i.base == "LDS" for i in self.body]
        return (
            sum(a and b for a, b in zip(loads, [*loads[1:], loads[0]], strict=True)) / sum(loads)
            if any(loads)
            else math.nan
        )

    def bytes(self, base: str) -> int:
        """Bytes that the lanes of a warp ask for with loads or stores of this opcode."""
        return sum(LANES * isa.access(i).width for i in self.body if i.base == base)


def _spans(kernel: Kernel) -> list[tuple[int, int]]:
    """Where the loops of a kernel begin and end, as numbers of instructions. Raises ValueError if it has none."""
    found: list[tuple[int, int]] = []
    for n, i in enumerate(kernel.instructions):
        target = int(i.operands[-1], 16) // 16 if i.base == "BRA" and i.operands[-1].startswith("0x") else n
        if target < n:
            found.append((target, n + 1))
    if not found:
        raise ValueError(f"{kernel.name} has no loop")
    return found


Work = Callable[[Loop], float]


@dataclass(frozen=True)
class Probe:
    """A roof and how it is measured.

    name       of the roof
    kernel     that runs, in roofs.cu
    unit       'lanes/cycle', 'inst/cycle', 'regs/cycle', 'bytes/cycle', 'lines/cycle' (all per SM), 'GB/s',
               'cycles'
    meaning    one line
    work       per warp and time round the loop, in the unit (bytes for GB/s, steps for cycles)
    specified  what the device's data say, or the loop's model where `model`; None where nobody says
    resource   the bound (harness.bounds) whose width this is, after multiplication with `scale`
    blocks     blocks per SM wanted; 0: one block of 32 threads on the whole card
    set        for streams and chases, bytes gone through, from the device
    """

    name: str
    kernel: str
    unit: str
    meaning: str
    work: Work
    specified: Callable[[Device, Loop], float | None] = lambda device, loop: None
    resource: str = ""
    scale: float = 1.0
    blocks: int = 0
    set: Callable[[Device], int] | None = None
    model: bool = False


def _lanes(*bases: str) -> Work:
    return lambda loop: LANES * loop.count(*bases)


def _lines(loop: Loop) -> float:
    return LANES * loop.count("LDG")  # each lane in a line of its own


def _steps(loop: Loop) -> float:
    return CHASE


def _fma_model(device: Device, loop: Loop) -> float:
    return device.fma_lanes * loop.ffma_share


MIB = 2**20
_FMA, _BYTES = "lanes/cycle", "bytes/cycle"
PROBES = (
    Probe("FMA", "fma_two_reads", _FMA, "fp32 multiply-adds, 2 registers to fetch for each", _lanes("FFMA"),
          lambda d, loop: d.fma_lanes, "FMA pipe", blocks=2),
    Probe("FMA, 1 register read", "fma_one_read", _FMA, "c = c * y + w", _lanes("FFMA"), _fma_model, "FMA pipe", blocks=2, model=True),
    Probe("FMA, 2 register reads", "fma_two_reads", _FMA, "c = x * y + c", _lanes("FFMA"), _fma_model, blocks=2, model=True),
    Probe("FMA, 3 register reads", "fma_three_reads", _FMA, "c = x * z + c", _lanes("FFMA"), _fma_model, blocks=2, model=True),
    Probe("FMA, 8x8 outer product by rows", "outer_rows", _FMA, "cells visited row by row", _lanes("FFMA"), _fma_model, blocks=1, model=True),
    Probe("FMA, 8x8 outer product in a snake", "outer_snake", _FMA, "rows in alternating direction", _lanes("FFMA"), _fma_model, blocks=1,
          model=True),
    Probe("FMA, 8x8 outer product by columns", "outer_columns", _FMA, "cells visited column by column", _lanes("FFMA"), _fma_model, blocks=1,
          model=True),
    Probe("register bank", "fma_three_reads", "regs/cycle", "operands read from the busier of the two register banks",
          lambda loop: max(loop.reads), lambda d, loop: d.partitions, "register bank", blocks=2),
    Probe("issue", "issue", "inst/cycle", "warp instructions issued: 3 multiply-adds to 1 logic instruction",
          lambda loop: loop.count(), lambda d, loop: d.partitions, "issue", blocks=2),
    Probe("ALU", "alu", "lanes/cycle", "logic instructions", _lanes("LOP3"), lambda d, loop: d.alu_lanes, "ALU pipe", blocks=4),
    Probe("LSU", "shared_uniform", "inst/cycle", "shared loads of one word for all lanes", lambda loop: loop.count("LDS"),
          lambda d, loop: d.lsu_instructions, "LSU", blocks=4),
    Probe("LSU, shuffles", "shuffle", "inst/cycle", "shuffles between lanes", lambda loop: loop.count("SHFL"), blocks=4),
    Probe("shared, 32-bit loads", "shared_32", _BYTES, "no bank conflicts", lambda loop: loop.bytes("LDS"),
          lambda d, loop: 128 * d.data_wavefronts, "data stage", 1 / 128, blocks=4),
    Probe("shared, 64-bit loads", "shared_64", _BYTES, "no bank conflicts", lambda loop: loop.bytes("LDS"),
          lambda d, loop: 128 * d.data_wavefronts, "data stage", 1 / 128, blocks=4),
    Probe("shared, 128-bit loads", "shared_128", _BYTES, "no bank conflicts", lambda loop: loop.bytes("LDS"),
          lambda d, loop: 128 * d.data_wavefronts, "data stage", 1 / 128, blocks=4),
    Probe("L1, 32-bit loads", "l1_32", _BYTES, "coalesced global loads that hit", lambda loop: loop.bytes("LDG"),
          lambda d, loop: 128 * d.data_wavefronts, blocks=4),
    Probe("L1, 128-bit loads", "l1_128", _BYTES, "coalesced global loads that hit", lambda loop: loop.bytes("LDG"),
          lambda d, loop: 128 * d.data_wavefronts, blocks=4),
    Probe("tag stage", "l1_lines", "lines/cycle", "uncoalesced loads that hit in L1: a line and a bank to each lane", _lines,
          lambda d, loop: d.tag_tags, "tag stage", blocks=4),
    Probe("L1, lines in one bank", "l1_lines_one_bank", "lines/cycle", "uncoalesced loads that hit in L1: a line to each lane, all in one bank",
          _lines, lambda d, loop: d.data_wavefronts, blocks=4),
    *(Probe(f"L2 read, up to {label} of it", "stream_read", "GB/s", "loads past L1 of a set that stays in L2", lambda loop: loop.bytes("LDG"),
            blocks=8, set=lambda d, part=part: _power_of_two(d.l2_bytes // part))
      for label, part in (("an eighth", 8), ("a quarter", 4), ("half", 2))),
    Probe("L2 write", "stream_write", "GB/s", "stores to a set that stays in L2", lambda loop: loop.bytes("STG"), resource="L2", blocks=8,
          set=lambda d: _power_of_two(d.l2_bytes // 2)),
    Probe("DRAM read", "stream_read", "GB/s", "one sweep after the other over a large array", lambda loop: loop.bytes("LDG"),
          lambda d, loop: d.dram_gbs, "DRAM", blocks=8, set=lambda d: _large(d)),
    Probe("DRAM write", "stream_write", "GB/s", "one sweep after the other over a large array", lambda loop: loop.bytes("STG"),
          lambda d, loop: d.dram_gbs, "DRAM", blocks=8, set=lambda d: _large(d)),
    Probe("DRAM copy", "stream_copy", "GB/s", "from one large array to another, bytes read and written",
          lambda loop: loop.bytes("LDG") + loop.bytes("STG"), lambda d, loop: d.dram_gbs, "DRAM", blocks=8, set=lambda d: _large(d)),
    Probe("latency of FMA", "latency_fma", "cycles", "a multiply-add that waits for the one before", _steps),
    Probe("latency of shared memory", "latency_shared", "cycles", "a 32-bit load whose address is what the one before loaded", _steps),
    Probe("latency of L1", "latency_l1", "cycles", "a global load that hits in L1, from pointer to pointer", _steps, set=lambda d: 8192),
    Probe("latency of L2", "latency_l2", "cycles", "a global load that hits in L2, from pointer to pointer", _steps,
          set=lambda d: _power_of_two(d.l2_bytes // 8)),
    Probe("latency of DRAM", "latency_l2", "cycles", "a global load that misses in L2, pointers up to 512 MiB apart", _steps,
          set=lambda d: 512 * MIB),
    Probe("latency of DRAM, far apart", "latency_l2", "cycles", "the same with pointers all over the large array", _steps, set=lambda d: _large(d)),
)  # fmt: skip
STREAMS = ("stream_read", "stream_write", "stream_copy")
CHASES = ("latency_l1", "latency_l2")


def _power_of_two(at_most: int) -> int:
    return 1 << at_most.bit_length() - 1


def _large(device: Device) -> int:
    """Bytes of an array that L2 holds next to nothing of: 4 GiB where two of them fit well, else less."""
    return min(4096 * MIB, _power_of_two(device.memory_bytes // 8))


def stage() -> Stage:
    """roofs.cu as the toolchain wants it. It is no stage: it has no launches."""
    return Stage("roofs", "probes of a device's resources", lambda p, t: [], source=SOURCE)


def compile(device: Device, nvcc: str | None = None) -> Binary:
    """The probes compiled for a device."""
    return toolchain.compile(stage(), {}, device.cc, nvcc)


@dataclass(frozen=True)
class Timed:
    """Launches of a probe, all alike.

    ticks    int64, shape (launches, warps, 3): cycle at which a warp's loop started, at which it ended, and the SM that
             counted them
    seconds  event time of each launch
    rounds   times round the loop
    """

    ticks: np.ndarray
    seconds: Sequence[float]
    rounds: int

    @property
    def warps(self) -> int:
        return self.ticks.shape[1]

    def rates(self, work: float) -> list[float]:
        """Work per SM and cycle of each launch, the median over its SMs, given the work of a warp in one time round."""
        return [statistics.median(n * work * self.rounds / span for n, span in launch) for launch in self._sms]

    @property
    def clocks(self) -> list[float]:
        """MHz of each launch: the cycles of the SM that took longest, over the event time; the others were done before."""
        return [max(span for _, span in sms) / s / 1e6 for sms, s in zip(self._sms, self.seconds, strict=True)]

    @cached_property
    def _sms(self) -> list[list[tuple[int, int]]]:
        """Per launch and SM: (warps, cycles from the first start to the last end)."""
        found = []
        for launch in self.ticks:
            parts = [launch[launch[:, 2] == sm] for sm in np.unique(launch[:, 2])]
            found.append([(len(x), int(x[:, 1].max() - x[:, 0].min())) for x in parts])
        return found


@dataclass(frozen=True)
class Roof:
    """A measured ceiling.

    value      median of the samples; low and high: their least and largest
    specified  data-sheet or model figure, in the same unit, or None
    clock_mhz  SM clock by NVML while it ran (None where NVML gives none), cycles_mhz by the SM's counter
    power_w    by NVML, or None
    flags      what NVML says held the clock back, if anything
    """

    name: str
    kernel: str
    unit: str
    meaning: str
    value: float
    low: float
    high: float
    specified: float | None
    model: bool
    resource: str
    scale: float
    clock_mhz: float | None
    cycles_mhz: float
    power_w: float | None
    flags: tuple[str, ...] = ()
    samples: tuple[float, ...] = field(default=(), repr=False)

    @property
    def share(self) -> float | None:
        """Value / specified."""
        return self.value / self.specified if self.specified else None


def roof(probe: Probe, loop: Loop, device: Device, timed: Timed, **state: Any) -> Roof:
    """A probe's roof. state: clock_mhz, power_w, flags."""
    work = probe.work(loop)
    if probe.unit == "GB/s":
        values = [work * timed.rounds * timed.warps / s / 1e9 for s in timed.seconds]
    elif probe.unit == "cycles":
        values = [1 / rate for rate in timed.rates(work)]
    else:
        values = timed.rates(work)
    return Roof(
        probe.name, probe.kernel, probe.unit, probe.meaning, statistics.median(values), min(values), max(values),
        probe.specified(device, loop), probe.model, probe.resource, probe.scale,
        cycles_mhz=statistics.median(timed.clocks), samples=tuple(values), **state,
    )  # fmt: skip


def widths(roofs: Sequence[Roof]) -> dict[str, float]:
    """Widths for harness.bounds by the bound's name: the largest that any probe of a resource reached."""
    found: dict[str, float] = {}
    for r in roofs:
        for name in ("register bank 0", "register bank 1") if r.resource == "register bank" else (r.resource,):
            if name:
                found[name] = max(found.get(name, 0.0), r.value * r.scale)
    return found


def from_manifest(manifest: Mapping[str, Any]) -> list[Roof]:
    """The roofs of a recorded run."""
    return [Roof(**{**r, "flags": tuple(r["flags"]), "samples": tuple(r["samples"])}) for r in manifest["roofs"]]


def recorded(device: Device) -> record.Run | None:
    """The newest run of roofs for a device: a person's own under profiles/roofs/, else the one that came with Tilescope."""
    own = sorted((record.PROFILES / KIND).glob("*/manifest.json"), reverse=True)
    for path in (*own, record.PROFILES / "recorded" / device.name / KIND / "manifest.json"):
        if not path.is_file():
            continue
        run = record.load(path.parent)
        if run.manifest.get("kind") == KIND and run.manifest.get("device") == device.name:
            return run
    return None


def recorded_widths(device: Device) -> dict[str, float]:
    """Widths for harness.bounds from the recorded roofs of a device; empty where none are recorded."""
    run = recorded(device)
    return widths(from_manifest(run.manifest)) if run else {}


@dataclass
class Result:
    """What `make roofs` gives: the roofs of one GPU, in the order of PROBES. path: the run directory, or None."""

    id: str
    device: Device
    gpu: str
    roofs: list[Roof]
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.id, "device": self.device.name, "gpu": self.gpu, "roofs": [asdict(r) for r in self.roofs],
            "widths": widths(self.roofs), "path": str(self.path) if self.path else None,
        }  # fmt: skip


def run(
    gpu: str | int | None = None,
    out: str | Path | None = None,
    nvcc: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Result:
    """Measure every roof of a GPU and record the run.

    gpu: index or UUID, the first one for None. out: the run directory (default profiles/roofs/RUN). Raises TilescopeError
    where there is no GPU or PyCUDA, memory does not suffice, or the run cannot be recorded.
    """
    from .gpu import devices, probes
    from .gpu.driver import Session

    started = time.time()
    id = record.new_id(KIND, gpu)
    path = record.destination(out, KIND, id)
    toolchain.check(nvcc)
    chosen = devices.find(gpu)
    binary = compile(chosen.device, nvcc)
    chosen.check_runs(binary.compiler)
    with Session(chosen) as session:
        found = probes.measure(session, binary, chosen.device, progress=progress)
    result = Result(id, chosen.device, chosen.name, found)
    _record(result, path, binary, started)
    return result


def _record(result: Result, path: Path, binary: Binary, started: float) -> None:
    summary = result.to_json()
    del summary["path"], summary["run"]
    where = environment.describe()
    manifest = {
        "id": result.id, "kind": KIND, "started": record.timestamp(started), "ended": record.timestamp(time.time()), "environment": where,
        "sass": binary.hash, "nvcc": binary.compiler, **summary,
    }  # fmt: skip
    row = {
        "run": result.id, "kind": KIND, "arch": result.device.arch, "device": result.device.name, "nvcc": binary.compiler,
        "sass": binary.hash, "started": manifest["started"], "ended": manifest["ended"],
    }  # fmt: skip
    rows = [(result.id, r.kernel, r.name, None, r.value, r.unit, "timing") for r in result.roofs]
    samples = [(result.id, r.name, n, value) for r in result.roofs for n, value in enumerate(r.samples)]
    tables = {
        "runs": pd.DataFrame([row]),
        "values": record.frame(record.VALUES, rows),
        "samples": pd.DataFrame(samples, columns=["run", "roof", "sample", "value"]),
    }
    files = {"roofs.txt": render(result), "sass.txt": binary.sass(), "kernel.cubin": binary.portable_cubin()}
    record.save(result, path, manifest, tables, files)


def render(result: Result, width: int = 100, colour: bool = False) -> str:
    """The roofs as a table."""
    from .report import Page, figure

    page = Page(width, colour)
    page.section("Roofs", f"what {result.gpu} gives at most; per SM where the unit says cycle")
    rows = []
    for r in result.roofs:
        beside = "-" if r.specified is None else f"{'model ' if r.model else ''}{figure(r.specified)}"
        share = "-" if r.share is None else f"{r.share:.1%}"
        spread = f"{(r.high - r.low) / r.value:.1%}"
        rows.append((r.name, figure(r.value, 4), r.unit, spread, beside, share, f"{r.clock_mhz or r.cycles_mhz:,.0f}"))
    page.table(["<roof", "value", "<unit", "spread", "specified", "share", "MHz"], rows)
    page.say("spread: largest less least of the launches; MHz: SM clock by NVML, else by the SM's own counter", "dim")
    for flag in dict.fromkeys(flag for r in result.roofs for flag in r.flags):
        page.say(f"{flag}: {', '.join(r.name for r in result.roofs if flag in r.flags)}", "yellow")
    return page.text()
