"""The page of a ladder or of timed stages; and the sections on time of any run that has times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..measurement import FLAGS
from ..record import Run
from ..report import figure, percent
from ..statistics import Estimate, verdict
from . import charts
from .page import Content, Head, Section, facts, plot, say, table
from .parts import contender, end, known, shape


def page(run: Run) -> Content:
    m = run.manifest
    points = [p for p in m["points"] if p["ms"] is not None]
    found = []
    for size in dict.fromkeys((p["m"], p["n"], p["k"]) for p in points):
        mine = [p for p in points if (p["m"], p["n"], p["k"]) == size and p["backend"] == "gpu"]
        if not mine:
            continue
        best = max(mine, key=lambda p: p["tflops"])
        beside = (
            f", {percent(best['ratio'])} of {known(best['rival'])}'s speed"
            if best.get("rival") and best["ratio"] is not None
            else ""
        )
        found.append(
            f"{' x '.join(f'{x:,}' for x in size)}: {contender(best)} is the fastest stage with {figure(best['tflops'])} TFLOPS{beside}."
        )
    blocks = [
        {
            "kind": "findings",
            "found": [{"sentence": s, "remedy": "", "cost": ""} for s in found],
            "none": "Nothing was timed.",
        }
    ]
    blocks += [say(f"Warning: {w}") for w in m.get("warnings") or []]
    sections = [Section("Findings", "", blocks), *times(run, m["points"], m), *end(run)]
    wrong = [
        p for p in m["points"] if p.get("fault") or p.get("damage") or (p.get("accuracy") and not p["accuracy"]["ok"])
    ]
    names = dict.fromkeys(known(p["stage"]) for p in m["points"] if p["stage"] != p.get("rival"))
    sizes = dict.fromkeys(size_of(p) for p in m["points"])
    title = "Ladder" if m["kind"] == "ladder" else f"Times of {', '.join(names)}"
    title += f" at {next(iter(sizes))}" if len(sizes) == 1 else ""
    driver = (m.get("nvml") or {}).get("driver")
    return Content(
        f"{title} on {m['gpu']}", f"driver {driver}" if driver else "", f"run {run.id}", sections, "every C is right" if m["ok"] and not wrong else "not all are right",
        bool(m["ok"]) and not wrong, ", ".join(f"{p['stage']} {p['m']}: {p['error']}" for p in wrong),
    )  # fmt: skip


def size_of(p: Mapping[str, Any]) -> str:
    return f"{p['m']:,}" if p["m"] == p["n"] == p["k"] else shape(p)


def times(run: Run, points: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> list[Section]:
    """The table of times, TFLOPS against size where there are several, rounds, clocks, and what flags mean."""
    rival = next((p["rival"] for p in points if p.get("rival")), "")
    rows = []
    for p in points:
        spread = f"{50 * (p['ms_hi'] - p['ms_lo']) / p['ms']:.2f} %" if p["ms"] else ""
        beside = p.get("rival") and p["ratio"] is not None
        word = (
            verdict(Estimate(p["ratio"], p["ratio_lo"], p["ratio_hi"])) if beside and p["stage"] != p["rival"] else ""
        )
        rows.append((
            contender(p), size_of(p), figure(p["ms"] or math.nan, 4), spread, figure(p["tflops"] or math.nan), percent(p["roof_share"] or math.nan),
            *((percent(p["ratio"]) if beside else "", word) if rival else ()), p["rounds"], figure(p["clock_mhz"] or math.nan),
            figure(p["power_w"] or math.nan), " ".join(p["flags"]), p["error"].removesuffix(" of bound"),
        ))  # fmt: skip
    columns = [
        "<stage", "size", Head("time", "ms"), Head("±", about="half of the 95 % interval"), Head("speed", "TFLOPS"),
        Head("of peak", about="of the fp32 peak at the GPU's nominal clock"), *([f"of {known(rival)}'s speed", f"<against {known(rival)}"] if rival else []),
        "rounds", Head("SM clock", "MHz"), Head("power", "W"), "<flags",
        Head("error / bound", left=True, about="the largest error of a cell of C over what rounding allows it"),
    ]  # fmt: skip
    blocks: list[dict[str, Any]] = []
    if len({(p["m"], p["n"], p["k"]) for p in points}) > 1:
        blocks.append(plot(charts.speeds(pd.DataFrame(points))))
    blocks.append(table(columns, rows, sortable=True))
    raised = dict.fromkeys(f for p in points for f in p["flags"])
    blocks += [facts([(f, FLAGS.get(f, "")) for f in raised])] if raised else []
    options = about.get("options") or {}
    how = f"± is half of the 95 % interval. CUDA events, launches queued behind a blocking kernel; {'rotating inputs, together twice the L2' if options.get('cold') else 'one set of inputs, which may stay in cache'}"
    sections = [Section("Times", how, blocks)]
    if (run.path / "samples.parquet").exists():
        samples = run.table("samples")
        samples["name"] = [f"{s} {m}" for s, m in zip(samples.stage, samples.m, strict=True)]
        if len(samples):
            sections.append(
                Section(
                    "Rounds",
                    "every sample, against the median of its row; the pointer tells which row it is of",
                    [plot(charts.samples(samples))],
                )
            )
    return sections
