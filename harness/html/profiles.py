"""The page of a profile: findings, claims, bounds, the source with what each line costs, counters, times."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from .. import agreement, frames
from .. import device as devices
from ..environment import ROOT
from ..metrics import METRICS
from ..record import Run
from ..report import LEGEND, count, duration, figure, percent, size
from . import charts, timings
from .page import Content, Section, facts, folded, plot, say, table
from .parts import articles, end, idea, known, shape

GROUPS = {
    "coalescing": "global memory", "bank": "shared memory", "work": "work", "memory": "traffic", "pipes": "pipes", "occupancy": "occupancy",
    "launch": "launch", "spill": "local memory", "time": "time", "timing": "time",
}  # fmt: skip
"""Groups of metrics in the order of the page, and what they are called there."""


def page(run: Run) -> Content:
    m = run.manifest
    code = frames.instructions(run)
    by_line = frames.source_lines(code)
    sections = [
        Section(
            "Findings", "costliest first; beside each, its cost as a share of the bottleneck's time", _conclusions(m)
        )
    ]
    sections.append(Section("What was run", "", [what(m)]))
    if claimed := claims(m):
        sections.append(Section("What the articles claim", "beside what was simulated and measured", claimed))
    if m.get("bounds"):
        known = sorted((b for b in m["bounds"]["resources"] if b["seconds"] is not None), key=lambda b: -b["seconds"])
        rows = [(b["name"], duration(b["seconds"]), b["formula"], b["width"]) for b in known]
        blocks = [
            plot(charts.bounds(m["bounds"]["resources"])),
            folded("as a table", [table(["<resource", "at least", "<from", "<width"], rows)]),
        ]
        sections.append(Section("What bounds it", LEGEND, blocks))
    if len(by_line):
        sections.append(
            Section(
                "Source",
                "each line with what it costs: share of an SM's cycles, all lines added up",
                _source(run, code, by_line),
            )
        )
    if counters := _counters(m):
        sections.append(
            Section("Counters", "a value and, where Nsight Compute counted it too, what it counted", counters)
        )
    if m.get("timing"):
        sections += timings.times(run, m["timing"]["points"], m["timing"])
    sections += end(run)
    error, fault = m.get("error"), m.get("fault")
    because = (
        fault["message"]
        if fault
        else f"largest error {figure(error['max'])}, bound {figure(error['bound'])}, {error['checked']:,} cells checked"
        if error
        else ""
    )
    return Content(
        f"{m['stage']} on {shape(m['problem'])}, {m['device']}", idea(m["stage"]), f"run {run.id}", sections,
        "C is right" if m["ok"] else "stopped" if fault else "C is wrong", m["ok"], because,
    )  # fmt: skip


def _conclusions(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sentences on the bottleneck and the time, then the findings."""
    blocks = []
    device = devices.find(m["device"])
    if m.get("bounds"):
        top = next(b for b in m["bounds"]["resources"] if b["name"] == m["bounds"]["bottleneck"])
        blocks.append(say(
            f"Bottleneck: {top['name']}. It needs at least {duration(top['seconds'])}, so at most {figure(m['attainable_tflops'])} of"
            f" {figure(device.peak_tflops)} TFLOPS are attainable: a bound, not a time."
        ))  # fmt: skip
    for p in ((m.get("timing") or {}).get("points") or [])[:1]:
        if p["ms"] is not None:
            beside = (
                f", {percent(p['ratio'])} of {known(p['rival'])}'s speed"
                if p.get("rival") and p["ratio"] is not None
                else ""
            )
            blocks.append(say(f"Measured: {figure(p['ms'], 4)} ms, {figure(p['tflops'])} TFLOPS{beside}."))
    compared = (m.get("measured") or {}).get("comparisons") or []
    if compared:
        words = pd.Series([c["verdict"] for c in compared]).value_counts()
        blocks.append(say("Simulated against measured: " + ", ".join(f"{n} {word}" for word, n in words.items()) + "."))
    return [*blocks, findings(m)] + [say(f"Not done: {note}") for note in m.get("notes") or []]


def findings(m: Mapping[str, Any]) -> dict[str, Any]:
    items = [
        {"sentence": f["sentence"], "remedy": f["remedy"], "cost": percent(f["cost"])} for f in m.get("findings") or []
    ]
    none = (
        "Nothing here wastes more than 1 % of the bottleneck's time."
        if m.get("launches")
        else "Nothing was simulated, so nothing was found."
    )
    return {"kind": "findings", "found": items, "none": none}


def what(m: Mapping[str, Any]) -> dict[str, Any]:
    p, device, b = m["problem"], devices.find(m["device"]), m["binary"]
    spills = sum(b["spills"].values())
    launches = [
        f"{x['name']}: grid {'x'.join(map(str, x['grid']))}, block {'x'.join(map(str, x['block']))}, occupancy {figure(x['occupancy']['percent'], 4)} %"
        f" (limited by {x['occupancy']['limiter']})"
        for x in m.get("launches") or []
    ]
    return facts([
        ("problem", f"C[{p['m']:,} x {p['n']:,}] = {p['alpha']:g} A[{p['m']:,} x {p['k']:,}] B[{p['k']:,} x {p['n']:,}] + {p['beta']:g} C; {p['distribution']} inputs, seed {p['seed']}"),
        ("tunables", " ".join(f"{k}={v}" for k, v in m["tunables"].items()) or "none"),
        ("device", f"{device.title} ({m['arch']}): {device.sms} SMs at {device.clock_mhz:,} MHz, fp32 peak {figure(device.peak_tflops)} TFLOPS"),
        ("binary", f"{b['registers']} registers a thread, {size(b['shared_bytes'])} of shared memory, {f'{spills} bytes of spills' if spills else 'no spills'}"),
        ("backend", {"sim": "the simulator: machine code, executed on the CPU", "gpu": "the GPU, and the simulator for what it counts"}.get(m["backend"], m["backend"])),
        *[("launch", words) for words in launches],
    ])  # fmt: skip


def claims(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = frames.claims(m) if m.get("claims") else pd.DataFrame()
    if found.empty:
        return []
    rows = [
        (c.claim, c.article, METRICS[c.metric].meaning, figure(c.claimed, 4), figure(c.simulated, 4), figure(c.measured, 4) if c.measured == c.measured else "", c.verdict)
        for c in found.itertuples()
    ]  # fmt: skip
    why = [say(f"{c['says']}: {c['why']}") for c in m["claims"] if c.get("why")]
    columns = ["<claim", "<article", "<metric", "claimed", "simulated", "measured", "<verdict"]
    reasons = [folded("why, where one does not hold", why, open=True)] if why else []
    return [table(columns, rows), *articles(found.article), *reasons]


def _source(run: Run, code: pd.DataFrame, by_line: pd.DataFrame) -> list[dict[str, Any]]:
    blocks = [plot(charts.lines(by_line))]
    costs = {(x.file, x.line): x for x in by_line.itertuples()}
    machine = {key: part for key, part in code.groupby(["file", "line"])}
    worst = by_line.share.max()
    for file in dict.fromkeys(by_line.sort_values("cycles", ascending=False).file):
        text, note = _text(run, file)
        if text is None:
            known = code[code.file == file].groupby("line").text.first()
            numbered = [(int(n), t) for n, t in known.items() if n > 0]
        else:
            numbered = list(enumerate(text.splitlines(), 1))
        rows = [_row(n, t, costs.get((file, n)), machine.get((file, n)), worst) for n, t in numbered]
        blocks.append({"kind": "source", "name": file, "note": note, "rows": rows})
    return blocks


def _row(number: int, text: str, cost: Any, code: pd.DataFrame | None, worst: float) -> dict[str, Any]:
    row = {
        "no": number,
        "text": text or " ",
        "sass": "",
        "share": "",
        "shade": 0,
        "conflict": False,
        "scattered": False,
    }
    row |= dict.fromkeys(("executed", "wavefronts", "wavefronts_ideal", "sectors", "sectors_ideal"), "")
    if code is not None:
        row["sass"] = "\n".join(f"{x.pc:05x}  {count(x.executed):>13}  {x.sass}" for x in code.itertuples())
    if cost is not None:
        share = f"{100 * cost.share:.1f} %" if cost.share >= 0.0005 else "< 0.1 %"
        row |= {"share": share, "executed": compact(cost.executed), "shade": round(0.45 * cost.share / worst, 3)}
        for what in ("wavefronts", "sectors"):
            if value := getattr(cost, what):
                row |= {what: compact(value), f"{what}_ideal": compact(getattr(cost, f"{what}_ideal"))}
        row["conflict"] = cost.wavefronts > cost.wavefronts_ideal
        row["scattered"] = cost.sectors > cost.sectors_ideal
    return row


def compact(x: float) -> str:
    """A count in the unit that suits it: 268 M."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if x >= scale:
            return f"{figure(x / scale)} {unit}"
    return f"{x:.0f}"


def _text(run: Run, file: str) -> tuple[str | None, str]:
    """A source as it was compiled: the run's copy, or the checkout's where it is still the same; else None, and why."""
    wanted = run.manifest["binary"]["hashes"]["source"].get(file)
    for path in (run.path / Path(file).name, ROOT / file):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == wanted:
                return data.decode(), ""
    return (
        None,
        "Only lines with machine code: the run holds no copy of this file, and the checkout's has changed since.",
    )


def _counters(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    simulated, counted = m.get("totals") or {}, (m.get("measured") or {}).get("totals") or {}
    blocks = _unequal(m)
    for group, title in GROUPS.items():
        rows = []
        for name, metric in METRICS.items():
            a, b = simulated.get(name), counted.get(name)
            if metric.group != group or (not a and not b):
                continue
            known = a is not None and b is not None
            agree = (
                ""
                if not known
                else "equal"
                if math.isclose(a, b, rel_tol=1e-9)
                else f"{100 * (b / a - 1):+.2f} %"
                if a
                else "differs"
            )
            rows.append(
                (
                    agreement.label(name),
                    *(figure(x, 6) if x is not None else "" for x in (a, b)),
                    agree,
                    metric.unit,
                    name,
                )
            )
        if rows:
            blocks.append(
                folded(
                    title,
                    [table(["<what", "simulated", "measured", "measured against simulated", "<unit", "<name"], rows)],
                )
            )
    return blocks


def _unequal(m: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What Nsight Compute counted otherwise than the simulator, and why it may."""
    found = [c for c in (m.get("measured") or {}).get("comparisons") or [] if c["verdict"] != "equal"]
    rows = [
        (c["metric"], c["launch"], figure(c["simulated"], 6), figure(c["measured"], 6), c["verdict"], c["why"]) for c in found
    ]  # fmt: skip
    return [table(["<not equal", "<launch", "simulated", "measured", "<verdict", "<why"], rows)] if rows else []
