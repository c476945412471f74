"""What an experiment, a reproduction and an index look like in print."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from . import stage as stages
from .definition import SIMULATED
from .expectations import UNCHECKED, Measured, Verdict, meaning
from .indexing import size
from .report import WIDTH, Page, short
from .words import several

if TYPE_CHECKING:
    from .experiment_record import Experiment
    from .reproduction import Reproduction

ROWS = 60
"""Points shown of a long table; all are in points.csv."""
LISTED = 200
"""Lines of an index that are printed."""
WHAT = 16
"""Columns that what a run is of has in an index, at least."""


def render(e: Experiment, width: int = WIDTH, colour: bool = False) -> str:
    """An experiment as text: the question, the answer in claims, the table."""
    page = Page(width, colour)
    page.say(f"{e.definition.name}: {e.definition.question}", style="bold")
    where = ", ".join(sorted({row["device"] for row in e.rows}))
    how = "simulated for" if e.backend == "sim" else "measured on"
    page.say(f"{several(len(e.points), 'point')}, {how} {where} (BACKEND={e.backend})")
    _claims(page, e)
    if e.definition.metrics:
        page.section("Points", "by source: sim simulated, ncu counted, timing measured")
        _table(page, e.table, _varied(e.measured))
    faults = [row | m.row for row, m in zip(e.rows, e.measurements, strict=True) if m.row.get("fault_kind")]
    if faults:
        page.section("Faults", "where the simulator stopped the kernel")
        for row in faults:
            where = f" at {row['fault_file']}:{row['fault_line']:.0f}" if row["fault_file"] else ""
            page.say(f"{row['stage']} {_tunables(row)}: {row['fault_kind']}{where}", style="bold")
            by = f", by thread {row['fault_thread']} of block {row['fault_block']}" if row["fault_thread"] else ""
            page.say(f"{row['fault']}{by}", indent=6)
            if row["fault_text"]:
                page.say(row["fault_text"], style="dim", indent=6)
    if e.troubles:
        page.section("Points not measured")
        for point, why in e.troubles.items():
            page.say(f"{point}: {why}", style="yellow")
    return page.text()


def _tunables(row: dict) -> str:
    return " ".join(f"{k}={v}" for k, v in json.loads(row["tunables"]).items()) + f" at {row['m']}"


def _claims(page: Page, e: Experiment) -> None:
    if not e.claims:
        return
    page.section("Claims", "as the definition states them")
    page.say(tally(e.claims), style="bold")
    for c in e.claims:
        style = "" if c.verdict == UNCHECKED else "green" if c.holds else "yellow"
        where = f"  ({c.article})" if c.article else ""
        page.say(f"{outcome(c)}: {c.says}{where}", style="bold red" if c.surprise else style)
        if c.readings:
            page.say(readings(c), indent=6)
        if c.why:
            page.say(c.why, style="dim", indent=6)
    if e.backend == "sim" and (lacking := [s for s in e.definition.how.sources if s not in SIMULATED]):
        if any(c.verdict == UNCHECKED for c in e.claims):
            page.say(f"Claims that were not measured need a GPU (sources {', '.join(lacking)}).", style="dim")
    unexplained = {c.metric: None for c in e.claims if c.readings and c.metric not in e.definition.metrics}
    for metric in unexplained:
        unit, what = meaning(metric)
        if what != metric:
            page.say(f"{metric}: {what}{f', {unit}' if unit else ''}", style="dim")


def outcome(c: Verdict) -> str:
    """A claim's verdict, and whether it is the one that the definition expects where that is not plain."""
    if c.surprise:
        return f"{c.verdict}, NOT as expected"
    return f"{c.verdict}, as expected" if not c.expected and c.verdict != UNCHECKED else c.verdict


def tally(claims: Sequence[Verdict]) -> str:
    """Claims in a line: '7 claims: 4 hold; 1 does not hold, as expected; 2 not measured'."""
    found = sorted(Counter(map(outcome, claims)).items(), key=lambda x: x[0] == UNCHECKED)
    words = [f"{n} {x if n == 1 else x.replace('holds', 'hold').replace('does', 'do')}" for x, n in found]
    return f"{several(len(claims), 'claim')}: {'; '.join(words)}"


def readings(c: Verdict) -> str:
    """What was found of a claim: the value furthest from what it says, beside that, and for how many points it agrees."""
    worst = c.worst
    assert worst is not None
    limit = {"least": "at least ", "most": "at most "}.get(c.relation, "")
    words = f"{short(worst.value)} for {worst.point}, claimed {limit}{short(worst.expected)}"
    count, agree = len(c.readings), sum(r.holds for r in c.readings)
    if count > 1:
        agreed = (
            f"all {count} points agree, for example"
            if agree == count
            else f"{agree} of {count} points agree; furthest off:"
        )
        words = f"{agreed} {words}"
    return f"{c.quantity or c.metric}: {words}"


def _varied(points: Sequence[Measured]) -> list[str]:
    """The tunables of each point that are not the same in all points of its stage."""
    values: dict[tuple[str, str], set[int]] = {}
    for p in points:
        for name, value in p.tunables.items():
            values.setdefault((p.stage, name), set()).add(value)
    return [" ".join(f"{k}={v}" for k, v in p.tunables.items() if len(values[p.stage, k]) > 1) for p in points]


def _table(page: Page, table: pd.DataFrame, tunables: Sequence[str]) -> None:
    shown = table.assign(tunables=list(tunables))
    square = (shown.m == shown.n) & (shown.n == shown.k)
    shown.insert(
        2,
        "size",
        [f"{m}" if s else f"{m}x{n}x{k}" for m, n, k, s in zip(shown.m, shown.n, shown.k, square, strict=True)],
    )
    constant = [
        c for c in ("tunables", "device") if shown[c].nunique() <= 1 and (c == "device" or not shown[c].iloc[0])
    ]
    shown = shown.drop(columns=["m", "n", "k", *constant])
    numbers = [c for c in shown if c not in ("stage", "tunables", "device", "size")]
    units = {c: meaning(c.split(" [")[0]) for c in numbers}
    for c in (c for c in numbers if units[c][0] == "s"):  # beside bound_ms and time_ms
        shown[c], units[c] = 1e3 * shown[c], ("ms", units[c][1])
    rows = [
        [*(str(r[c]) for c in shown if c not in numbers), *("" if pd.isna(r[c]) else short(r[c]) for c in numbers)]
        for r in shown.to_dict("records")
    ]
    keys = {c: f"({chr(97 + i)})" for i, c in enumerate(numbers)}
    heads = [f"<{c}" for c in shown if c not in numbers]
    page.table([*heads, *keys.values()], rows[:ROWS])
    if len(rows) > ROWS:
        page.say(f"and {len(rows) - ROWS} more points in points.csv", style="dim")
    for column, letter in keys.items():
        unit, what = units[column]
        page.say(f"{letter} {column}: {what}{f', {unit}' if unit else ''}", style="dim")


def render_reproduction(r: Reproduction, width: int = WIDTH, colour: bool = False) -> str:
    """What differs between a recorded run and its repetition."""
    page = Page(width, colour)
    page.say(f"{r.experiment}: {r.again} repeats {r.recorded}", style="bold")
    page.section("Environment")
    for what, a, b in r.environment:
        page.say(f"{what}: {a or 'none'} then, {b or 'none'} now")
    if not r.environment:
        page.say("as it was")
    page.section("Machine code")
    page.say(f"{r.same_code} of {r.points} points run the same instructions")
    for point in r.other_code:
        page.say(f"other machine code: {point}", style="yellow")
    page.section("Counters", "must be equal where the machine code is")
    page.say(f"{r.equal:,} values equal, {len(r.different):,} different")
    for d in r.different[:ROWS]:
        page.say(
            f"{d.point}: {d.metric} [{d.source}] {short(d.then)} then, {short(d.now)} now",
            style="bold red" if d.broken else "yellow",
        )
    if r.times:
        page.section("Times", "then over now: above 1 is faster now; 95 % interval")
        for t in r.times:
            page.say(f"{t.verdict}: {t.point}: {t.ratio:.3f} [{t.lo:.3f}, {t.hi:.3f}]  {t.note}".rstrip())
    page.section("Claims")
    for c in r.claims:
        words = f"{c.now}: {c.says}" if c.then == c.now else f"{c.then} then, {c.now} now: {c.says}"
        page.say(words, style="bold red" if c.lost else "" if c.then == c.now else "yellow")
    if not r.claims:
        page.say("the definition has none")
    page.section("Result")
    page.say("reproduced" if r.ok else f"NOT reproduced: {r.why}", style="bold green" if r.ok else "bold red")
    return page.text()


def render_index(table: pd.DataFrame, width: int = WIDTH, colour: bool = False) -> str:
    """Every run, or every point, a line each, the newest last: the columns that fit, each whole; `what` is cut where it is long."""
    page = Page(width, colour)
    shown = table.tail(LISTED).to_dict("records")
    rows = [
        {c: _cell(r[c]) for c in ("run", "kind", "device", "backend", "ok")}
        | {"what": r["what"] if "what" in r else _point(r), "started": _cell(r["started"])[:16].replace("T", " ")}
        for r in shown
    ]
    columns = ["run", "kind", "what", "device", "backend", "ok", "started"]
    for spare in ("", "started", "backend", "device"):  # the id begins with the time
        columns = [c for c in columns if c != spare]
        others = [max(len(c), *(len(r[c]) for r in rows)) if rows else len(c) for c in columns if c != "what"]
        room = width - 2 - sum(others) - 2 * len(others)
        if room >= WHAT:
            break
    room = max(room, WHAT)
    for r in rows:
        r["what"] = r["what"] if len(r["what"]) <= room else r["what"][: room - 3] + "..."
    if len(table) > LISTED:
        page.say(f"{len(table) - LISTED:,} older ones are left out here; CSV= writes all of them", style="dim")
    page.table([f"<{c}" for c in columns], [[r[c] for c in columns] for r in rows])
    return page.text()


def _point(row: dict) -> str:
    """A point of the index: stage, size, and tunables that are not the stage's own."""
    tunables = json.loads(_cell(row["tunables"]) or "{}")
    return f"{row['stage']} {size(row['m'], row['n'], row['k'])} {stages.changed(row['stage'], tunables)}".rstrip()


def _cell(value: object) -> str:
    if value is None or value is pd.NA or isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return str(value)
