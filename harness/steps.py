"""`make steps`: each rung of the ladder beside its parent: what the change aimed at, what the simulator predicts of it, and
what moved on a GPU.

Counters and bounds are simulated, from one block of each class; times are those of the newest recorded ladder, and what the
schedulers waited for comes from the newest recorded profiles of the same size, where there are any.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from . import bounds, environment, profiling, record, roofs, sim
from . import metrics as table_of
from . import stage as stages
from .device import Device
from .errors import TilescopeError
from .ledger import Evidence
from .problem import Problem
from .stage import Stage

SIZE = 4096
MOVED = 0.01
"""Of a counter or a bound: a smaller change does not count. Times must differ by more than their intervals."""
TIME, ISSUING = "time_ms", "smsp__issue_active.avg.pct_of_peak_sustained_active"
QUANTITIES = {
    TIME: "ms",
    table_of.SHARED: "shared wavefronts",
    table_of.SHARED_EXCESS: "bank conflicts",
    table_of.L2_SECTORS: "sectors",
    "register_reads_per_ffma": "register reads per FFMA",
    "inst_executed": "warp instructions",
    "launch__registers_per_thread": "registers",
    "sm__maximum_warps_per_active_cycle_pct": "occupancy %",
    ISSUING: "issuing %",
}
"""What every step shows beside its aims: metric -> heading."""
COLUMNS = ("stage", "parent", "quantity", "source", "before", "after", "ratio", "aim", "verdict")
"""Of the table. before, after: values, bounds in ms; ratio: after / before; aim: whether the stage declares it; verdict: of an aim, else empty."""
LOST = ("stage", "against", "conflicts", "bound_ms", "without_ms", "predicted_ms", "before_ms", "after_ms", "gained_ms")
"""Of what conflicts cost. conflicts: wavefronts; bound_ms: largest bound, without_ms: were there no conflicts, predicted_ms:
their difference; before_ms, after_ms, gained_ms: times as recorded."""
BETTER, STUCK, WORSE, UNKNOWN = "moved", "did not move", "moved the wrong way", "not recorded"


@dataclass
class Rung:
    """A stage of the ladder on the problem: values by metric or bound name (in ms), and where each comes from ('sim', 'ncu', 'timing').

    ms   time in ms with its 95 % interval, or NaN; stalls: reason -> warps waiting per instruction issued
    """

    stage: Stage
    values: dict[str, float]
    sources: dict[str, str]
    bounds: list[bounds.Bound]
    ms: tuple[float, float, float] = (math.nan,) * 3
    stalls: dict[str, float] = field(default_factory=dict)

    @property
    def bottleneck(self) -> bounds.Bound:
        return bounds.bottleneck(self.bounds)

    @property
    def stall(self) -> str:
        """The two largest reasons to wait."""
        largest = sorted(self.stalls.items(), key=lambda x: -x[1])[:2]
        return ", ".join(f"{name} {value:.3g}" for name, value in largest)


@dataclass
class Steps:
    """The rungs of a ladder on a device.

    table  columns COLUMNS; lost: columns LOST; missing: stages that could not be counted, and why; times: the ladder's run
    """

    id: str
    device: str
    size: int
    rungs: list[Rung]
    table: pd.DataFrame
    lost: pd.DataFrame
    missing: dict[str, str] = field(default_factory=dict)
    times: str = ""
    path: Path | None = None

    @property
    def flagged(self) -> pd.DataFrame:
        """Of the table, what a stage aimed at and did not get."""
        return self.table[self.table.verdict.isin((STUCK, WORSE))]

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.id, "device": self.device, "size": self.size, "times": self.times or None, "missing": self.missing,
            "steps": self.table.to_dict("records"), "conflicts": self.lost.to_dict("records"),
            "bounds": {r.stage.name: {b.name: b.seconds for b in r.bounds} for r in self.rungs},
            "stalls": {r.stage.name: r.stalls for r in self.rungs if r.stalls}, "path": str(self.path) if self.path else None,
        }  # fmt: skip


def verdict(name: str, before: float, after: float, spread: float | None = None) -> str:
    """Whether what a stage aimed at got better: BETTER, STUCK, WORSE or UNKNOWN. A metric that is better high should rise.

    spread: what a difference must exceed; MOVED of the larger value where it is not given.
    """
    if not (math.isfinite(before) and math.isfinite(after)):
        return UNKNOWN
    known = table_of.METRICS.get(name)
    gain = after - before if known and known.better == "higher" else before - after
    least = MOVED * max(abs(before), abs(after)) if spread is None else spread
    return STUCK if abs(gain) <= least else BETTER if gain > 0 else WORSE


def run(
    device: str = "h200",
    size: int = SIZE,
    out: str | Path | None = None,
    nvcc: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Steps:
    """Count every rung on size^3 and set each beside its parent; with `out`, record it there as a run with steps.csv.

    Raises TilescopeError for an unknown device or a stage's aim that is no metric and no bound.
    """
    note = progress or (lambda fraction, text: None)
    started = time.time()
    if size < 1:
        raise TilescopeError(f"SIZE={size} is less than 1.")
    problem = Problem(size, size, size, distribution="zeros")
    name = record.new_id("steps", device, size)
    path = record.destination(out, "steps", name) if out else None
    evidence = Evidence(device)
    target, widths = evidence.device, roofs.recorded_widths(evidence.device)
    arena = sim.Arena(problem, problem.operands())
    ladder = stages.ladder()
    rungs, missing = [], {}
    for n, stage in enumerate(ladder):
        note(n / len(ladder), stage.name)
        try:
            rungs.append(_rung(stage, problem, target, arena, evidence, nvcc, widths))
        except TilescopeError as e:
            if target.cc >= stage.least_arch:
                raise
            missing[stage.name] = e.what
    result = compared(name, target.name, size, rungs)
    result.missing = missing
    if any(math.isfinite(r.ms[0]) for r in rungs) and evidence.ladder:
        result.times = evidence.ladder[1]
    if path:
        _record(result, path, started)
    return result


def _rung(
    stage: Stage,
    problem: Problem,
    device: Device,
    arena: sim.Arena,
    evidence: Evidence,
    nvcc: str | None,
    widths: Mapping[str, float] | None,
) -> Rung:
    try:
        _, parts = profiling.count(stage, stage.configure(), problem, device, arena, nvcc, widths)
    except sim.Fault as e:
        raise TilescopeError(str(e)) from e
    limits = bounds.total(problem, [p.bounds for p in parts], device, widths)
    values = table_of.totals([p.metrics for p in parts], device) | {b.name: b.seconds * 1e3 for b in limits}
    rung = Rung(stage, values, dict.fromkeys(values, "sim"), limits)
    counted = evidence.counters(stage.name, problem.m)
    for metric, value in (counted[0] if counted else {}).items():
        if metric not in values:
            values[metric], rung.sources[metric] = value, "ncu"
    rung.stalls = evidence.stalls(stage.name, problem.m)
    timed = evidence.times(stage.name)
    timed = timed[timed.m == problem.m]
    if len(timed):
        rung.ms = tuple(float(timed[c].iloc[0]) for c in ("ms", "ms_lo", "ms_hi"))
        values[TIME], rung.sources[TIME] = rung.ms[0], "timing"
    return rung


def compared(run: str, device: str, size: int, rungs: list[Rung]) -> Steps:
    """Rungs beside their parents. Raises TilescopeError for an aim that is no metric and no bound."""
    known = {r.stage.name: r for r in rungs}
    rows: list[tuple] = []
    for rung in rungs:
        if parent := known.get(rung.stage.parent or ""):
            rows += _step(parent, rung)
    lost = [row for rung in rungs if table_of.SHARED_EXCESS in rung.stage.aims for row in _lost(rung, known)]
    return Steps(run, device, size, rungs, pd.DataFrame(rows, columns=list(COLUMNS)), pd.DataFrame(lost, columns=list(LOST)))  # fmt: skip


def _step(parent: Rung, rung: Rung) -> list[tuple]:
    """Rows of COLUMNS: the aims, then the bounds of either's bottleneck and the rest of QUANTITIES."""
    names = dict.fromkeys([*rung.stage.aims, parent.bottleneck.name, rung.bottleneck.name, *QUANTITIES])
    limits = {b.name for b in rung.bounds}
    rows = []
    for name in names:
        if name not in limits and name not in table_of.METRICS:
            raise TilescopeError(f"stage {rung.stage.name} aims at {name!r}, which is no metric and no bound.")
        before, after = parent.values.get(name, math.nan), rung.values.get(name, math.nan)
        spread = None
        if name == TIME:  # the intervals must not meet
            spread = (parent.ms[2] - parent.ms[1] + rung.ms[2] - rung.ms[1]) / 2
        aim = name in rung.stage.aims
        ratio = after / before if before else math.nan
        source = rung.sources.get(name, "")
        rows.append((rung.stage.name, parent.stage.name, name, source, before, after, ratio, aim, verdict(name, before, after, spread) if aim else ""))  # fmt: skip
    return rows


def _lost(rung: Rung, known: Mapping[str, Rung]) -> list[tuple]:
    """Rows of LOST: what bounds say each ancestor with bank conflicts loses to them, beside the time that `rung` takes less."""
    rows, at = [], known.get(rung.stage.parent or "")
    while at:
        conflicts = at.values[table_of.SHARED_EXCESS]
        stage = next(b for b in at.bounds if b.name == "data stage")
        if conflicts and stage.work:
            others = max(b.seconds for b in at.bounds if b.name != "data stage" and math.isfinite(b.seconds))
            bound = at.bottleneck.seconds * 1e3
            without = max(others, stage.seconds * (1 - conflicts / stage.work)) * 1e3
            rows.append((
                rung.stage.name, at.stage.name, conflicts, bound, without, bound - without, at.ms[0], rung.ms[0], at.ms[0] - rung.ms[0]
            ))  # fmt: skip
        at = known.get(at.stage.parent or "")
    return rows


def heading(name: str) -> str:
    """A quantity in words: of QUANTITIES, a bound, or the metric's own meaning."""
    known = table_of.METRICS.get(name)
    return QUANTITIES.get(name) or (known.meaning.split(":")[0] if known else f"bound of {name} (ms)")


def render(steps: Steps, width: int = 100, colour: bool = False) -> str:
    """The steps for a terminal: a table a rung, and what bank conflicts cost."""
    from .report import Page, figure, percent

    page = Page(width, colour)
    for rung in steps.rungs:
        rows = steps.table[steps.table.stage == rung.stage.name]
        if not len(rows):
            continue
        page.section(f"{rows.parent.iloc[0]} -> {rung.stage.name}", rung.stage.idea)
        shown = [
            (heading(r.quantity), figure(r.before), figure(r.after), "-" if math.isnan(r.ratio) else f"{r.ratio:.3g}x", r.source, f"aim: {r.verdict}" if r.aim else "")
            for r in rows.itertuples()
        ]  # fmt: skip
        page.table(["<", "before", "after", "ratio", "<from", "<"], shown)
        top = rung.bottleneck
        share = f"; that is {percent(1e3 * top.seconds / rung.ms[0])} of its time" if math.isfinite(rung.ms[0]) else ""
        page.say(f"largest bound: {top.name}, {figure(top.seconds * 1e3)} ms{share}")
        if rung.stall:
            before = next(r.stall for r in steps.rungs if r.stage.name == rung.stage.parent)
            page.say(
                f"warps wait for: {rung.stall} (warps per instruction issued)"
                + (f"; before: {before}" if before else "")
            )
        if not rung.stage.aims:
            page.say("no aims are declared")
        for r in rows[rows.verdict.isin((STUCK, WORSE))].itertuples():
            page.say(f"WHAT IT AIMED AT {r.verdict.upper()}: {heading(r.quantity)}", "bold yellow")
    if len(steps.lost):
        page.section("What bank conflicts cost", "ms: by the bounds, and by the clock")
        page.table(
            ["<", "conflicts", "bound", "without", "predicted", "measured gain"],
            [(f"{r.against} -> {r.stage}", *map(figure, (r.conflicts, r.bound_ms, r.without_ms, r.predicted_ms, r.gained_ms))) for r in steps.lost.itertuples()],
        )  # fmt: skip
    for name, why in steps.missing.items():
        page.say(f"{name} was left out: {why}", "yellow")
    return page.text()


def markdown(steps: Steps) -> str:
    """The steps as one Markdown table, a row a rung: each value, and in brackets the factor from the parent's."""
    from .report import figure

    shown = {k: v for k, v in QUANTITIES.items() if not steps.table[steps.table.quantity == k].after.isna().all()}
    waits = any(r.stall for r in steps.rungs)
    heads = ["step", "aimed at", *shown.values(), *(["warps wait for"] if waits else []), "largest bound"]
    lines = [
        f"| {' | '.join(heads)} | what it aimed at did not move |",
        f"|---|---|{'---:|' * len(shown)}{'---|' * waits}---|---|",
    ]
    for rung in steps.rungs:
        rows = steps.table[steps.table.stage == rung.stage.name].set_index("quantity")
        if not len(rows):
            continue
        cells = []
        for name in shown:
            row = rows.loc[name]
            factor = f" (x{figure(row.ratio)})" if math.isfinite(row.ratio) else ""
            cells.append(figure(row.after) + factor if math.isfinite(row.after) else "")
        aims = "; ".join(map(heading, rung.stage.aims)) or "-"
        flags = "; ".join(f"{heading(q)} {r.verdict}" for q, r in rows.iterrows() if r.verdict in (STUCK, WORSE))
        top = rung.bottleneck
        cells = [f"`{rows.parent.iloc[0]}` to `{rung.stage.name}`", aims, *cells, *([rung.stall] if waits else []), f"{top.name}, {figure(top.seconds * 1e3)} ms", flags]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    timed = f"times from run {steps.times}" if steps.times else "not timed"
    lines.append(
        f"{steps.size:,} cubed on {steps.device}; counters and bounds simulated, {timed}; in brackets the factor from the parent's."
    )
    for r in steps.lost.itertuples():
        measured = f"; `{r.stage}` takes {figure(r.gained_ms)} ms less" if math.isfinite(r.gained_ms) else ""
        lines.append(
            f"Of `{r.against}`, the bounds give {figure(r.predicted_ms)} ms to bank conflicts"
            f" ({figure(r.bound_ms)} ms with them, {figure(r.without_ms)} ms without){measured}."
        )
    return "\n".join(lines) + "\n"


def _record(steps: Steps, path: Path, started: float) -> None:
    manifest = {
        "id": steps.id, "kind": "steps", "started": record.timestamp(started), "ended": record.timestamp(time.time()),
        "environment": environment.describe(), **{k: v for k, v in steps.to_json().items() if k not in ("run", "path")},
    }  # fmt: skip
    row = {"run": steps.id, "kind": "steps", "device": steps.device, "m": steps.size, "n": steps.size, "k": steps.size,
           "started": manifest["started"], "ended": manifest["ended"]}  # fmt: skip
    files = {
        "steps.csv": steps.table.to_csv(index=False),
        "conflicts.csv": steps.lost.to_csv(index=False),
        "steps.md": markdown(steps),
        "profile.txt": render(steps),
    }
    record.save(steps, path, manifest, {"runs": pd.DataFrame([row]), "steps": steps.table}, files)
