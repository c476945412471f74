"""What the notebooks ask of many stages at once: tables from the simulator, beside what is recorded on a GPU.

All of it takes a harness.ledger.Evidence: the device, profiles simulated once, and the newest recorded runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import pandas as pd

from . import bounds, roofs
from . import stage as stages
from .device import Device
from .errors import TilescopeError
from .frames import claims
from .ledger import Evidence
from .metrics import SHARED
from .profiling import Profile

LOOPS = "FMA"
"""Roofs of loops of multiply-adds begin so."""


def stage_row(profile: Profile) -> dict[str, object]:
    """A profile in a row: stage, tunables that differ from the stage's own, bound and limits, and every total."""
    usual = profile.stage.tunables
    first = profile.parts[0]
    return {
        "stage": profile.stage.name, "parent": profile.stage.parent or "",
        "tunables": " ".join(f"{k}={v}" for k, v in profile.tunables.items() if usual.get(k) != v),
        "bottleneck": bounds.bottleneck(profile.bounds).name, "attainable": bounds.attainable_tflops(profile.problem, profile.bounds),
        "occupancy": first.occupancy.percent, "limiter": first.occupancy.limiter, **profile.totals,
    }  # fmt: skip


def ladder(evidence: Evidence, size: int = 4096) -> pd.DataFrame:
    """A row a stage of the ladder on a square problem, parents first: stage_row, and ms with its interval, tflops and ratio as recorded.

    A stage that the simulator or the device cannot run is left out; what was not timed is NaN.
    """
    rows = []
    for stage in stages.ladder():
        try:
            row = stage_row(evidence.profile(stage.name, size=size))
        except TilescopeError:
            continue
        timed = evidence.times(stage.name)
        timed = timed[timed.m == size]
        known = {
            name: float(timed[name].iloc[0]) if len(timed) else math.nan
            for name in ("ms", "ms_lo", "ms_hi", "tflops", "ratio")
        }
        rows.append(row | known)
    return pd.DataFrame(rows)


def variants(evidence: Evidence, choices: Sequence[tuple[str, Mapping[str, int]]], size: int = 4096) -> pd.DataFrame:
    """stage_row for stages with tunables of one's own; choices that break a stage's rules are left out."""
    rows = []
    for stage, tunables in choices:
        try:
            rows.append(stage_row(evidence.profile(stage, size=size, **tunables)))
        except TilescopeError:
            continue
    return pd.DataFrame(rows)


def caption(device: Device, size: int, run: str = "") -> str:
    """What a picture of many stages rests on."""
    source = f"times of run {run}" if run else "simulated; bounds, not times"
    return f"{device.title} ({device.arch}), {size:,} x {size:,} x {size:,}; {source}"


def roofline(table: pd.DataFrame) -> pd.DataFrame:
    """name, intensity, tflops and kind for harness.plots.roofline, from `ladder`."""
    rows = []
    for row in table.to_dict("records"):
        for kind, value in (("bound", row["attainable"]), ("measured", row["tflops"])):
            rows.append((row["stage"], row["arithmetic_intensity_sectors"], value, kind))
    return pd.DataFrame(rows, columns=["name", "intensity", "tflops", "kind"]).dropna()


def widths(evidence: Evidence) -> dict[str, float]:
    """Measured roofs for harness.plots.roofline: DRAM and L2 (reads, GB/s) and FMA pipe; empty where none are recorded."""
    if not evidence.roofs:
        return {}
    found, _ = evidence.roofs
    known = roofs.widths(list(found.values()))
    reads = [r.value for name, r in found.items() if name.startswith("L2 read")]
    return {k: v for k, v in known.items() if k in ("DRAM", "FMA pipe")} | ({"L2": min(reads)} if reads else {})


@cache
def _loops(device: Device) -> dict[str, tuple[float, float]]:
    """(registers read per multiply-add, share of the peak that the model leaves) of each loop of multiply-adds."""
    binary = roofs.compile(device)
    found = {}
    for probe in roofs.PROBES:
        if probe.name.startswith(f"{LOOPS},"):
            loop = roofs.Loop.of(binary.kernels[probe.kernel])
            found[probe.name] = (loop.reads_per_ffma, loop.ffma_share)
    return found


def register_reads(evidence: Evidence, table: pd.DataFrame) -> pd.DataFrame:
    """name, kind, reads, model and measured for harness.plots.register_reads: the roofs' loops, and stages of `ladder`.

    model: share of the FMA peak that issue and register banks leave; measured: share reached, NaN where nothing is
    recorded. Of the stages, those that read no more than registers' width allows are bound by something else.
    """
    device = evidence.device
    measured = {name: r.value / device.fma_lanes for name, r in evidence.roofs[0].items()} if evidence.roofs else {}
    rows = [
        (name.removeprefix(f"{LOOPS}, "), "loop", reads, share, measured.get(name, math.nan))
        for name, (reads, share) in _loops(device).items()
    ]
    for row in table.to_dict("records"):
        profile = evidence.profile(row["stage"], size=_size(row))
        limits = {b.name: b.seconds for b in profile.bounds}
        slowest = max(limits[n] for n in ("issue", "register bank 0", "register bank 1"))
        rows.append((
            row["stage"], "stage", row["register_reads_per_ffma"], min(1.0, limits["FMA pipe"] / slowest) if slowest else math.nan,
            row["tflops"] / device.peak_tflops,
        ))  # fmt: skip
    return pd.DataFrame(rows, columns=["name", "kind", "reads", "model", "measured"])


def _size(row: Mapping[str, float]) -> int:
    return round(row["fma_useful"] ** (1 / 3))


def all_claims(evidence: Evidence, size: int = 512) -> pd.DataFrame:
    """harness.frames.claims of every stage of the ladder, with what Nsight Compute counted where that is recorded."""
    parts = []
    for stage in stages.ladder():
        if not stage.claims:
            continue
        summary = evidence.profile(stage.name, size=size).to_json()
        counted = evidence.counters(stage.name, size)
        parts.append(claims(summary | {"measured": {"totals": counted[0]} if counted else None}))
    return pd.concat(parts, ignore_index=True)


def disputed(table: pd.DataFrame) -> pd.DataFrame:
    """Of `all_claims`, those claims that hold for some metric and not for another, or for none; all their metrics."""
    off = table[(table.simulated / table.claimed - 1).abs() > 1e-3]
    return table[table.stage.isin(off.stage) & table.claim.isin(off.claim)]


def conflicts(table: pd.DataFrame) -> tuple[str, str]:
    """(stage with the largest share of bank conflicts, the stage after it on the ladder with the least); of `ladder`.

    Of those with the same share, the one with the fewest wavefronts; where no stage comes after it, of all others.

    Raises TilescopeError where no stage uses shared memory.
    """
    used = table.dropna(subset=["bank_conflict_share"]).reset_index(drop=True)
    if len(used) < 2:
        raise TilescopeError("fewer than two stages use shared memory.")
    before = used.stage[used.bank_conflict_share.idxmax()]
    parents = dict(zip(table.stage, table.parent, strict=True))

    def descends(name: str) -> bool:
        while name:
            name = parents.get(name, "")
            if name == before:
                return True
        return False

    later = used[[descends(s) for s in used.stage]]
    others = later if len(later) else used[used.stage != before]
    best = others.assign(each=others[SHARED] / others.fma_count).sort_values(["bank_conflict_share", "each"])
    return before, best.stage.iloc[0]
