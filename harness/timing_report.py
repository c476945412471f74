"""What `make time`, `make ladder` and `make compare` print, and the ladder's table for README."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from .bounds import bottleneck
from .measurement import FLAGS, Point
from .report import WIDTH, Page, figure
from .statistics import Estimate, verdict
from .words import listed, several

if TYPE_CHECKING:
    from .comparison import Comparison
    from .profiling import Profile
    from .timings import Timings

ALONE = 12
"""Rows named of those that only one of two compared runs has."""
STYLES = {"FASTER": "green", "SAME": "", "SLOWER": "bold red", "AMBIGUOUS": "yellow"}


def render(t: Timings, width: int = WIDTH, colour: bool = False) -> str:
    """The table of a timing run, what its flags mean, and how it was taken."""
    page = Page(width, colour)
    title = "Ladder" if t.kind == "ladder" else "Time"
    page.console.print(Text.assemble((title, "bold"), f" on GPU {t.gpu.index}, {t.gpu.name}"))
    page.pairs(_conditions(t))
    for problem in dict.fromkeys(p.problem for p in t.points):
        points = [p for p in t.points if p.problem == problem]
        page.section(f"{problem}".replace("x", " × "), f"{problem.distribution} inputs; {_sets(points)}")
        _table(page, t, points)
        for p in points:
            if not p.ok:
                page.say(f"{p.stage}: {p.error}", "bold red")
        _verdicts(page, points)
    _flags(page, t.points)
    for words in t.warnings:
        page.say(f"Warning: {words}", "yellow")
    if t.interrupted:
        page.say("Interrupted: the points above are what was finished.", "yellow")
    return page.text()


def section(page: Page, profile: Profile) -> None:
    """A profile's section on time: the stage beside cuBLAS, and beside its bound."""
    t = profile.timing
    p = t.points[0]
    page.section(
        "Time", f"CUDA events, launches queued behind a blocking kernel; {'rotating' if p.cold else 'the same'} inputs"
    )
    if not p.samples:
        page.say("not timed: see the result", "bold red")
        return
    _table(page, t, t.points)
    if profile.bounds:
        top = bottleneck(profile.bounds)
        page.say(
            f"{figure(p.ms.value / 1e3 / top.seconds)} times the bound of {top.name}, {figure(top.seconds * 1e3, 4)} ms"
        )
    if math.isfinite(p.telemetry.clock):
        page.say(
            f"at {p.telemetry.clock:,.0f} MHz, {p.telemetry.power:,.0f} W, {p.telemetry.temperature:.0f} degrees C",
            "dim",
        )
    for f in p.flags:
        page.say(f"{f}: {FLAGS[f]}", "yellow")


def _conditions(t: Timings) -> list[tuple[str, str]]:
    versions = dict.fromkeys(
        f"{p.backend} {p.detail.split(',')[0]}" for p in t.points if p.backend != "gpu" and p.detail
    )
    clocks = [p.telemetry.clock for p in t.points if math.isfinite(p.telemetry.clock)]
    clock = f"SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz" if clocks else "SM clock unknown"
    rows = [
        ("GPU", f"{t.gpu.device.sms} SMs, {clock}; driver {t.facts.get('driver') or 'unknown'}"),
        (
            "inputs",
            "COLD: rotating sets, together at least twice the L2"
            if t.options["cold"]
            else "HOT: one set, which may stay in cache",
        ),
        (
            "timed",
            f"A B A B in one process, launches queued behind a blocking kernel, up to {t.options['limit_s']:g} s a row",
        ),
    ]
    return [*rows, ("rivals", ", ".join(versions))] if versions else rows


def _sets(points: list[Point]) -> str:
    count = max((p.sets for p in points), default=0)
    return f"{count} set{'s' if count != 1 else ''} of A, B, C"


def _table(page: Page, t: Timings, points: list[Point]) -> None:
    beside = _rival(points)
    columns = [
        "<",
        "ms",
        "±",
        "TFLOPS",
        "of peak",
        *([f"{beside} / this", "±"] if beside else []),
        "rounds",
        "error / bound",
    ]
    rows = []
    for p in points:
        row: list[str | Text] = [
            _label(p),
            figure(p.ms.value, 4),
            _spread(p.ms),
            figure(p.tflops),
            _share(p.tflops / t.gpu.device.peak_tflops),
        ]
        if beside:
            row += [_ratio(p.ratio.value), _spread(p.ratio)]
        bad = "FAULT" if p.fault else "" if p.ok else "WRONG"
        row += [str(len(p.samples)), Text(bad, style="bold red") if bad else p.error.removesuffix(" of bound")]
        rows.append(row)
    page.table(columns, rows)


def _rival(points: list[Point]) -> str:
    """Whom the others were timed beside, or nothing."""
    return next((p.rival for p in points if p.rival), "")


def _verdicts(page: Page, points: list[Point]) -> None:
    """A sentence for each contender that was timed beside a rival, where they are few."""
    beside = [p for p in points if p.rival and not p.baseline]
    for p in beside if len(points) <= 2 else ():
        word = verdict(p.ratio)
        interval = f"{_ratio(p.ratio.lo)} to {_ratio(p.ratio.hi)}"
        page.say(
            Text.assemble(
                f"{p.stage} is ",
                (word, STYLES[word]),
                f": {p.rival}'s time over its own is {_ratio(p.ratio.value)}, {interval} with 95 %",
            )
        )


def _flags(page: Page, points: list[Point]) -> None:
    """Each flag that was raised, what it means, and where."""
    rows = []
    for flag, meaning in FLAGS.items():
        found = [p for p in points if flag in p.flags]
        if found:
            where = "all" if len(found) == len(points) else ", ".join(f"{p.stage} {p.problem.m}" for p in found)
            rows.append((flag, Text.assemble(meaning, (f"  ({where})", "dim"))))
    if rows:
        page.section("Flags")
        page.pairs(rows)


def _label(p: Point) -> str:
    return f"{p.stage} {p.changed}".strip()


def _ratio(x: float) -> str:
    return f"{x:.4g}" if math.isfinite(x) else "-"


def _spread(e: Estimate) -> str:
    """Half of the interval in percent."""
    return f"{100 * e.half_width:.2f} %" if math.isfinite(e.lo) else "-"


def _share(x: float) -> str:
    return f"{100 * x:.1f} %" if math.isfinite(x) else "-"


def markdown(t: Timings) -> str:
    """The ladder as a table for README: TFLOPS at each size, with cuBLAS's time over the stage's in percent, and how it was taken."""
    sizes = list(dict.fromkeys(p.problem for p in t.points))
    order = list(dict.fromkeys((p.stage, p.backend) for p in t.points))
    names = sorted(
        {(p.stage, p.backend, bool(p.changed)) for p in t.points}, key=lambda who: (order.index(who[:2]), who[2])
    )
    head = "| | " + " | ".join(f"{p.m:,}" for p in sizes) + " |"
    lines = [head, "|---|" + "---:|" * len(sizes)]
    for who in names:
        stage, backend, tuned = who
        cells = []
        for problem in sizes:
            p = next(
                (p for p in t.points if (p.stage, p.backend, bool(p.changed)) == who and p.problem == problem), None
            )
            cells.append(_cell(p))
        name = f"`{stage}`{', tuned' * tuned}" if backend == "gpu" else _product(stage)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    libraries = sorted({p.detail.split(",")[0] for p in t.points if p.backend != "gpu" and p.detail})
    clocks = [p.telemetry.clock for p in t.points if math.isfinite(p.telemetry.clock)]
    words = [
        "TFLOPS on square fp32 problems, in brackets the speed in percent of cuBLAS's",
        "tuned: with the tunables that won a recorded search on that size" if any(tuned for *_, tuned in names) else "",
        t.gpu.name,
        f"cuBLAS {', '.join(libraries)}" if libraries else "",
        f"SM clock {min(clocks):,.0f} to {max(clocks):,.0f} MHz" if clocks else "",
        "inputs from DRAM (COLD)" if t.options["cold"] else "inputs may stay in cache (HOT)",
    ]
    flags = sorted({f for p in t.points for f in p.flags if f in ("throttled", "power-capped", "busy")})
    if flags:
        words.append(f"some rows {' and '.join(flags)}, marked *")
    return "\n".join([*lines, "", "; ".join(filter(None, words)) + "."])


def _product(library: str) -> str:
    return {"cublas": "cuBLAS", "cublaslt": "cublasLt, best of its heuristics"}.get(library, library)


def _cell(p: Point | None) -> str:
    if p is None:
        return ""
    if not p.ok:
        return "fault" if p.fault else "wrong"
    mark = "*" if {"throttled", "power-capped", "busy"} & set(p.flags) else ""
    share = f" ({100 * p.ratio.value:.3g} %)" if p.rival and math.isfinite(p.ratio.value) else ""
    return f"{figure(p.tflops)}{mark}{share}"


def render_comparison(c: Comparison, width: int = WIDTH, colour: bool = False) -> str:
    """A row a stage and problem: B against A."""
    page = Page(width, colour)
    page.console.print(Text.assemble(("Compare", "bold"), f" B {c.b} with A {c.a}"))
    rows = []
    for r in c.rows:
        size = f"{r.problem[0]}" if len(set(r.problem)) == 1 else "x".join(map(str, r.problem))
        rows.append((
            f"{r.stage} {r.tunables}".strip(), size, figure(r.a_ms, 4), figure(r.b_ms, 4), _ratio(r.ratio), f"{_ratio(r.lo)} - {_ratio(r.hi)}",
            Text(r.verdict, style=STYLES[r.verdict]), Text(r.note, style="yellow"),
        ))  # fmt: skip
    page.table(["<", "size", "A ms", "B ms", "A / B", "95 % interval", "<B is", "<doubts"], rows)
    for where, alone in (("A", c.only_a), ("B", c.only_b)):
        if alone:
            words = f"Only in {where}, not compared: {several(len(alone), 'row')}: {listed(alone, ALONE)}."
            page.say(words, "yellow")
    for words in c.differences:
        page.say(f"They differ in {words}", "yellow")
    return page.text()
