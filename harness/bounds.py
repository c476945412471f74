"""The least time each resource of a device needs for the work counted: bounds, not times.

A bound assumes that the resource is never idle and that work is spread evenly over the SMs that can have a block and
over their schedulers. A launch takes at least as long as its largest bound, which names the bottleneck; latency,
imbalance and contention come on top.

Widths are the device's (harness.device). Those of cc 9.0 were measured on an H200 with loops of one kind of
instruction, which ran at 0.90 to 1.00 of the bound: `verified` says so. For other architectures they are from NVIDIA's
documents, the CUDA Programming Guide's table of arithmetic throughput above all.

The data stage serves global memory as it does shared memory: 32 banks of 4 bytes, 128 bytes a cycle, at bank
(address / 4) mod 32 of the line in L1. Lines of one request that lie in different banks are served together, and
128-bit loads of one address by all lanes are not merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from .device import Device
from .metrics import SECTOR, joined
from .occupancy import WARP, Occupancy, occupancy
from .problem import Problem
from .stage import Launch
from .toolchain import Kernel

__all__ = ["Bound", "Occupancy", "attainable_tflops", "bottleneck", "bounds", "occupancy", "total"]

MEASURED_ROOF = "measured roof"
HEAVY_LANES = 64
"""fp32 lanes that can also multiply integers (FMAHeavy), per SM and cycle, cc 7.5 to 9.0."""


@dataclass(frozen=True)
class Bound:
    """The least time of one resource.

    cycles    SM cycles, nan where no width is known
    seconds   cycles at the device's clock, nan likewise
    formula   how the figure comes about, in words
    verified  whether the width was measured on this architecture
    work      what was counted, in the unit of the formula (bytes for memory)
    width     where the width comes from: 'measured roof', 'probed' (on this architecture), 'specified' or 'unknown'
    """

    name: str
    cycles: float
    seconds: float
    formula: str
    verified: bool
    work: float
    width: str = "specified"


def bounds(
    launch: Launch, kernel: Kernel, counts: pd.DataFrame, device: Device, roofs: Mapping[str, float] | None = None
) -> list[Bound]:
    """The bounds of one launch. `roofs`: measured widths by bound name, per SM and cycle (GB/s for L2), in place of the device's."""
    t = joined(kernel, counts)
    sms = max(1, min(device.sms, launch.blocks))
    on = t.executed.groupby(t["pipe"]).sum()
    fma, heavy, alu, lsu = (int(on.get(p, 0)) for p in ("fma", "fmaheavy", "alu", "lsu"))
    memory = t.space.isin(("global", "generic", "local"))
    # a request takes a cycle of the tag stage even where it has fewer lines than a cycle looks up
    at_once = (roofs or {}).get("tag stage", device.tag_tags)
    tags = t.lines.clip(lower=at_once * t.requests)[memory].sum()
    per_bank = [(t[bank] * t.executed).sum() for bank in ("even", "odd")]
    resources = (
        ("issue", t.executed.sum(), device.partitions, "warp instructions / {w:g} schedulers"),
        ("FMA pipe", (fma + heavy) * WARP, device.fma_lanes, "lanes of FMA, fp32 and integer-multiply instructions / {w:g}"),
        ("FMA heavy half", heavy * WARP, HEAVY_LANES, "lanes of integer-multiply and half-precision instructions / {w:g}"),
        ("ALU pipe", alu * WARP, device.alu_lanes, "lanes of integer, logic, compare and move instructions / {w:g}"),
        ("register bank 0", per_bank[0], device.partitions, "operands read from even registers, .reuse left out / {w:g} schedulers"),
        ("register bank 1", per_bank[1], device.partitions, "operands read from odd registers, .reuse left out / {w:g} schedulers"),
        ("LSU", lsu, device.lsu_instructions, "memory warp instructions / {w:g}"),
        ("data stage", t.wavefronts.sum() + t.data_wavefronts.sum(), device.data_wavefronts,
         "wavefronts of shared memory and of global requests / {w:g}"),
        ("tag stage", tags, device.tag_tags, "128-byte lines of global requests, at least {w:g} a request / {w:g}"),
    )  # fmt: skip
    found = []
    for name, work, width, formula in resources:
        roof = (roofs or {}).get(name)
        width = roof or width
        cycles = float(work) / width / sms
        verified = roof is not None or device.verified
        text = formula.format(w=width) + f" / {sms} SMs"
        source = MEASURED_ROOF if roof else "probed" if device.verified else "specified"
        found.append(Bound(name, cycles, cycles / (device.clock_mhz * 1e6), text, verified, float(work), source))
    return [*found, _l2(t, device, roofs)]


def _l2(t: pd.DataFrame, device: Device, roofs: Mapping[str, float] | None) -> Bound:
    """L2 traffic if nothing hits in L1, in bytes. Its width (GB/s) is not in any data sheet: it must be measured.

    Only stores must reach L2 (L1 writes through), so only they make a bound.
    """
    outside = t.space.isin(("global", "generic", "local"))
    store = SECTOR * float(t.sectors[outside & (t.kind == "store")].sum())
    asked = SECTOR * float(t.sectors[outside].sum())
    width = (roofs or {}).get("L2")
    seconds = store / (width * 1e9) if width else math.nan
    rate = f"{width:g} GB/s" if width else "a width nobody has verified: measure it with `make roofs`"
    formula = f"{store:,.0f} bytes stored / {rate}; {asked:,.0f} bytes in all if no load hits in L1"
    source = MEASURED_ROOF if width else "unknown"
    return Bound("L2", seconds * device.clock_mhz * 1e6, seconds, formula, width is not None, asked, source)


def total(
    problem: Problem, launches: Sequence[Sequence[Bound]], device: Device, roofs: Mapping[str, float] | None = None
) -> list[Bound]:
    """The bounds of launches that run one after another, with the least DRAM traffic of the whole problem."""
    found = []
    for parts in zip(*launches, strict=True):
        cycles, seconds, work = (sum(getattr(p, field) for p in parts) for field in ("cycles", "seconds", "work"))
        formula = parts[0].formula if len(parts) == 1 else f"sum over {len(parts)} launches of: {parts[0].formula}"
        found.append(
            Bound(parts[0].name, cycles, seconds, formula, all(p.verified for p in parts), work, parts[0].width)
        )
    width = (roofs or {}).get("DRAM", device.dram_gbs)
    seconds = problem.compulsory_bytes / (width * 1e9)
    formula = f"{problem.compulsory_bytes:,} bytes, each matrix once / {width:g} GB/s"
    measured = "DRAM" in (roofs or {})
    source = MEASURED_ROOF if measured else "specified"
    found.append(
        Bound("DRAM", seconds * device.clock_mhz * 1e6, seconds, formula, measured, problem.compulsory_bytes, source)
    )
    return found


def bottleneck(found: Sequence[Bound]) -> Bound:
    """The largest bound: nothing finishes sooner."""
    return max((b for b in found if not math.isnan(b.seconds)), key=lambda b: b.seconds)


def attainable_tflops(problem: Problem, found: Sequence[Bound]) -> float:
    """TFLOPS that the largest bound leaves possible. A bound, not a prediction."""
    seconds = bottleneck(found).seconds
    return problem.flops / seconds / 1e12 if seconds else math.inf
