"""What is printed where a GPU has a say: the measured part of a profile, doctor, compute-sanitizer's findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from . import agreement, doctor, sanitize
from .metrics import SHARED, SHARED_EXCESS
from .ncu import REASONS, STALL

if TYPE_CHECKING:
    from .doctor import Diagnoses
    from .measured import Measured
    from .problem import Problem
    from .report import Page
    from .sanitize import Sanitized

DRAM_READ, DRAM_WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
ROWS = 12
"""Differences shown."""
STYLES = {
    agreement.ARBITRATION: "",
    agreement.EXPLAINED: "dim",
    agreement.DIFFERS: "bold red",
    agreement.IMPLAUSIBLE: "red",
}


def render(page: Page, measured: Measured, problem: Problem) -> None:
    """The section: time, occupancy, traffic, agreement, and the counters that differ, each with the reason."""
    from .report import duration, figure

    collection, v = measured.collection, measured.totals
    options = collection.options
    caches = "caches flushed before each pass" if options.cache == "all" else "caches as they were"
    clock = "clock locked to base" if options.clock == "base" else "clock not locked"
    page.section("Measured", f"on the GPU, by Nsight Compute {collection.version}: {caches}, {clock}")
    rows: list[tuple[str, str | Text]] = []
    if (ns := v.get("gpu__time_duration.sum", math.nan)) > 0:
        tflops = problem.flops / ns / 1e3
        rows.append(
            ("time under ncu", f"{duration(ns / 1e9)}, {figure(tflops)} TFLOPS: not a benchmark (`make time` is)")
        )
    for c in (c for c in measured.comparisons if c.metric == agreement.ACHIEVED):
        launch = f" ({c.launch})" if len(collection.launches) > 1 else ""
        rows.append((f"occupancy{launch}", f"{figure(c.measured)} % achieved, {figure(c.simulated)} % theoretical"))
    hits = [
        f"{where} {figure(v[n])} %"
        for where, n in (("L1", "l1tex__t_sector_hit_rate.pct"), ("L2", "lts__t_sector_hit_rate.pct"))
        if n in v
    ]
    if hits:
        rows.append(("sectors found in", ", ".join(hits)))
    if DRAM_READ in v:
        rows.append(("DRAM", _dram(v, problem.compulsory_bytes)))
    busy = [f"{words} {figure(v[n])} %" for n, words in _BUSY.items() if n in v]
    if busy:
        rows.append(("busy", ", ".join(busy)))
    if stalls := _stalls(collection.launches[0].values):
        rows.append(("a warp is", stalls))
    rows += _shared_memory(v, measured.copies)
    rows.append(("agreement", _agreement(measured)))
    if collection.missing:
        rows.append(("not in this ncu", ", ".join(collection.missing)))
    page.pairs(rows)
    _differences(page, measured)
    for note in collection.notes:
        page.say(f"{note}.", "yellow")


def _dram(v: Mapping[str, float], once: float) -> str:
    """Traffic beside what A, B and C take when each moves once; less moves where L2 keeps some of it."""
    from .report import size

    written = f", {size(v[DRAM_WRITE])} written" if DRAM_WRITE in v else ""
    kept = ", of which L2 kept some" if v[DRAM_READ] + v.get(DRAM_WRITE, math.inf) < once else ""
    return f"{size(v[DRAM_READ])} read{written}; each matrix once would be {size(once)} together{kept}"


def _shared_memory(v: Mapping[str, float], copies: float) -> list[tuple[str, str]]:
    """What bank conflicts and what waiting cost: ncu's pipe counters do not tell them apart, its counts in the code do."""
    from .report import count, percent

    found = []
    whole = v.get(SHARED, 0)
    if whole and SHARED_EXCESS in v:
        share = percent(v[SHARED_EXCESS] / whole)
        words = f"{count(v[SHARED_EXCESS])} of {count(whole)} shared-memory wavefronts ({share}), counted in the code"
        found.append(("bank conflicts", words))
    if whole and (waits := agreement.arbitration(v, copies)) > 0:
        found.append((
            "arbitration", f"{count(waits)} shared-memory wavefronts more ({percent(waits / whole)}), in which requests waited for one another: no bank"
            " conflicts, though ncu's counters of them include it",
        ))  # fmt: skip
    return found


_BUSY = {
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue slots",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "busiest unit of the SM",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "busiest part of memory",
}
STALLS = 4
"""Reasons shown."""


def _stalls(values: Mapping[str, float]) -> str:
    """What a warp does with its time, in ncu's words, most of it first: 'selected' issues, the others wait. Nothing where it was not
    collected."""
    found = {name: values.get(STALL.format(name), 0.0) for name in REASONS}
    total = sum(found.values())
    if not total > 0:
        return ""
    first = sorted(found, key=lambda n: -found[n])[:STALLS]
    return ", ".join(f"{n.replace('_', ' ')} {100 * found[n] / total:.0f} %" for n in first) + " of the time"


def _agreement(measured: Measured) -> Text:
    """How many counters agree, in words."""
    judged = [c for c in measured.comparisons if c.metric != agreement.ACHIEVED]
    if not judged:
        return Text("nothing was simulated to compare with" if not measured.simulated else "no counter in common")
    equal = sum(c.verdict == agreement.EQUAL for c in judged)
    parts = [f"{equal} of {len(judged)} counters equal the simulated ones"]
    for verdict, words in (
        (agreement.ARBITRATION, "above them by arbitration"),
        (agreement.EXPLAINED, "explained below"),
        (agreement.IMPLAUSIBLE, "implausible and not used"),
    ):
        if n := sum(c.verdict == verdict for c in judged):
            parts.append(f"{n} {words}")
    text = Text("; ".join(parts))
    if n := sum(c.verdict == agreement.DIFFERS for c in judged):
        text.append(f"; {n} DIFFER", "bold red")
    return text


def _differences(page: Page, measured: Measured) -> None:
    from .report import count, figure

    order = [agreement.DIFFERS, agreement.IMPLAUSIBLE, agreement.ARBITRATION, agreement.EXPLAINED]
    found = [c for c in measured.comparisons if c.verdict in order and c.metric != agreement.ACHIEVED]
    found.sort(key=lambda c: order.index(c.verdict))
    if not found:
        return
    several = len(measured.collection.launches) > 1

    def number(x: float) -> str:
        return count(x) if x == x and x == int(x) else figure(x)

    page.table(
        ["<counter", "simulated", "measured", "<"],
        [
            (
                f"{c.launch + ': ' if several else ''}{agreement.label(c.metric)}", number(c.simulated), number(c.measured),
                Text(c.verdict, STYLES[c.verdict]),
            )
            for c in found[:ROWS]
        ],
    )  # fmt: skip
    for c in found[:ROWS]:
        if c.verdict in (agreement.DIFFERS, agreement.IMPLAUSIBLE, agreement.EXPLAINED):
            page.say(f"{c.metric}: {c.why}.", STYLES[c.verdict])
            for x in c.lines:
                page.say(
                    f"{Path(x.file).name}:{x.line}: simulated {number(x.simulated)}, measured {number(x.measured)}",
                    indent=6,
                )
    if len(found) > ROWS:
        page.say(f"and {len(found) - ROWS} more", "dim")


_STATUS = {doctor.OK: "green", doctor.WARN: "yellow", doctor.FAIL: "bold red", doctor.NONE: "dim"}


def render_doctor(found: Diagnoses, width: int = 100, colour: bool = False) -> str:
    """The table of checks, each remedy under its check, then what works here and what does not."""
    from .report import Page

    page = Page(width, colour)
    for area in doctor.AREAS:
        page.section(area)
        for d in (d for d in found.found if d.area == area):
            page.say(Text.assemble((f"{d.status:5}", _STATUS[d.status]), (f"{d.check}: ", "bold"), d.what))
            if d.remedy and d.status in (doctor.WARN, doctor.FAIL):
                page.say(d.remedy, "green", indent=7)
    page.section("What works here")
    for area, what in doctor.AREAS.items():
        works = found.works(area)
        page.say(Text.assemble(("yes  " if works else "no   ", "green" if works else "yellow"), what))
    return page.text()


def render_sanitized(done: Sanitized, width: int = 100, colour: bool = False) -> str:
    """A verdict for each tool and problem, then each finding with its line."""
    from .report import Page, count

    page = Page(width, colour)
    chosen = " ".join(f"{k}={x}" for k, x in done.tunables.items())
    page.console.print(
        Text.assemble((done.stage.name, "bold"), f" {chosen} under compute-sanitizer {done.version}".replace("  ", " "))
    )
    styles = {sanitize.CLEAN: "green", sanitize.FOUND_SOME: "bold red", sanitize.NOT_RUN: "yellow"}
    rows = [(r.tool, str(r.problem), count(r.reported), Text(r.verdict, styles[r.verdict])) for r in done.results]
    page.table(["<tool", "<problem", "reported", "<verdict"], rows)
    for r in done.results:
        if r.why:
            page.say(f"{r.tool}, {r.problem}: {r.why}", "yellow")
    for issue in done.issues:
        style = "bold red" if issue.severity == "error" else "yellow"
        times = f" ({issue.count} times)" if issue.count > 1 else ""
        page.say(
            Text.assemble((f"{issue.tool}: {issue.what}{times}", style), f" at {issue.where}" if issue.where else "")
        )
        others = (
            f"with the {other.kind.lower()} at {other.file}:{other.line}"
            if other.file
            else f"with a {other.kind.lower()}"
            for other in issue.others
        )
        for words in dict.fromkeys(others):  # one line of source may be many instructions
            page.say(words, indent=6)
    return page.text() + "\n"
