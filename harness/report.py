"""The printed profile: what `make profile` shows and a run keeps as profile.txt. Fits 100 columns; plain text on request."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import bounds, gpu_report, metrics
from .metrics import (
    CONFLICTS_LD,
    CONFLICTS_LDGSTS,
    CONFLICTS_ST,
    LDGSTS,
    METRICS,
    REQUESTS_LD,
    REQUESTS_ST,
    SECTORS_LD,
    SECTORS_ST,
    WAVEFRONTS_LD,
    WAVEFRONTS_ST,
)
from .words import several

if TYPE_CHECKING:
    from .bench import Bench
    from .claims import Reading
    from .profiling import Profile
    from .verification import Verification

WIDTH = 100
LINES = 8
"""Source lines shown, costliest first."""
LEGEND = (
    "data stage: hands over the words of shared memory and L1, 32 banks at a time. tag stage: looks up whether a line is"
    " in L1. FMA heavy half: the FMA lanes that also multiply integers. register bank 0, 1: even and odd registers."
    " LSU: takes memory instructions in."
)
"""What the resources of the bounds are, in a word each."""
FAILURES = 5
"""Failed problems of a verification shown in full."""


def render(profile: Profile, width: int = WIDTH, colour: bool = False) -> str:
    """The whole profile as text. `colour`: with terminal codes."""
    page = Page(width, colour)
    _header(page, profile)
    if profile.fault:
        page.section("Fault", "the kernel was stopped here; nothing was counted")
        page.say(str(profile.fault), style="bold red")
    elif profile.parts:
        _coalescing(page, profile.totals)
        _shared(page, profile.totals)
        _occupancy(page, profile)
        _work(page, profile)
        _lines(page, profile)
        _bounds(page, profile)
    if profile.timed:
        from . import timing_report

        timing_report.section(page, profile)
    if profile.measured:
        gpu_report.render(page, profile.measured, profile.problem)
    if profile.parts:
        _claims(page, profile)
        _findings(page, profile)
    _error(page, profile)
    if profile.notes:
        page.section("Not done")
        for note in profile.notes:
            page.say(note, "yellow")
    return page.text()


class Page:
    """A rich console that prints into a string, with this report's sections and tables."""

    def __init__(self, width: int, colour: bool) -> None:
        self.console = Console(
            file=io.StringIO(),
            width=max(60, width),
            force_terminal=colour,
            no_color=not colour,
            highlight=False,
            legacy_windows=False,
            force_jupyter=False,
        )

    def text(self) -> str:
        """What was printed, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self.console.file.getvalue().splitlines()).strip("\n") + "\n"

    def section(self, title: str, explained: str = "") -> None:
        self.console.print()
        line = Text(title.upper(), style="bold cyan")
        if explained:
            line.append(f"  {explained}", style="dim")
        self.console.print(line)

    def say(self, words: str | Text, style: str = "", indent: int = 2) -> None:
        text = words if isinstance(words, Text) else Text(words, style=style)
        self.console.print(Padding(text, (0, 0, 0, indent)))

    def pairs(self, rows: Sequence[tuple[str, str | Text]]) -> None:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, value in rows:
            table.add_row(name, value if isinstance(value, Text) else Text(value))
        self.console.print(Padding(table, (0, 0, 0, 2)))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        """A table; columns that begin with '<' are left-aligned words, the others right-aligned figures.

        Figures that do not fit beside each other go into several tables, each with the words before them.
        """
        first = next((n for n, column in enumerate(columns) if not column.startswith("<")), len(columns))
        widths = [max(map(len, cells)) + 2 for cells in zip(columns, *rows, strict=True)]
        room = self.console.width - 2 - min(sum(widths[:first]), self.console.width // 2)
        if any(column.startswith("<") for column in columns[first:]) or sum(widths[first:]) <= room:
            self._one_table(columns, rows)
            return
        start = first
        while start < len(columns):
            end = start + 1
            while end < len(columns) and sum(widths[start : end + 1]) <= room:
                end += 1
            if start > first:
                self.console.print()
            chosen = [*range(first), *range(start, end)]
            self._one_table([columns[n] for n in chosen], [[row[n] for n in chosen] for row in rows])
            start = end

    def _one_table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for column in columns:
            words = column.startswith("<")
            table.add_column(
                column.removeprefix("<"), justify="left" if words else "right", no_wrap=not words, overflow="fold"
            )
        for row in rows:
            table.add_row(*(x if isinstance(x, Text) else Text(x) for x in row))
        self.console.print(Padding(table, (0, 0, 0, 2)))


def count(x: float) -> str:
    """A whole number with thousands separators, or a dash for none."""
    return "-" if x is None or math.isnan(x) else f"{x:,.0f}"


def figure(x: float, digits: int = 3) -> str:
    """A number to some significant digits, with thousands separators, never in exponent form between 1e-3 and 1e9."""
    if x is None or math.isnan(x):
        return "-"
    if math.isinf(x):
        return "inf"
    if x == int(x) and abs(x) < 1e15:
        return f"{x:,.0f}"
    if not 1e-3 <= abs(x) < 1e9:
        return f"{x:.{digits}g}"
    return f"{x:,.{max(0, digits - 1 - math.floor(math.log10(abs(x))))}f}"


def short(x: float) -> str:
    """A number as short as its first six digits allow: 0.25, 31.25, 524,288."""
    return figure(x) if math.isnan(x) or x == int(x) else f"{x:,.6g}"


def size(x: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if x < 1024 or unit == "GiB":
            return f"{figure(x)} {unit}"
        x /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if math.isnan(seconds):
        return "unknown"
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{figure(seconds * scale)} {unit}"
    return f"{figure(seconds * 1e9)} ns"


def percent(x: float) -> str:
    """A share between 0 and 1 as percent."""
    return "-" if math.isnan(x) else f"{figure(100 * x)} %"


def _header(page: Page, p: Profile) -> None:
    problem, device, kernels = p.problem, p.device, list(p.binary.kernels.values())
    page.console.print(Text.assemble((p.stage.name, "bold"), f": {p.stage.idea}"))
    leading = (
        ""
        if (problem.lda, problem.ldb, problem.ldc) == (problem.k, problem.n, problem.n)
        else f"; lda {problem.lda:,}, ldb {problem.ldb:,}, ldc {problem.ldc:,}"
    )
    alpha = "" if problem.alpha == 1 else f"{problem.alpha:g} * "
    beta = f" + {problem.beta:g} * C" if problem.beta else ""
    spills = sum(k.spill_loads + k.spill_stores for k in kernels)
    ran, all_blocks = sum(x.blocks_run for x in p.parts), sum(x.launch.blocks for x in p.parts)
    how = f"the machine code, executed on the CPU: {ran:,} of {several(all_blocks, 'block')}"
    if ran < all_blocks:
        how += "; the others are like one of these"
    rows = [
        (
            "problem",
            f"C[{problem.m:,} x {problem.n:,}] = {alpha}A[{problem.m:,} x {problem.k:,}] * B[{problem.k:,} x {problem.n:,}]"
            f"{beta}{leading}; {problem.distribution} inputs, seed {problem.seed}",
        ),
        ("tunables", " ".join(f"{k}={v}" for k, v in p.tunables.items()) or "none"),
        (
            "device",
            f"{device.title} ({device.arch}): {device.sms} SMs at {device.clock_mhz:,} MHz, fp32 peak {figure(device.peak_tflops)} TFLOPS",
        ),
        (
            "binary",
            f"{max(k.function.registers for k in kernels)} registers a thread, {several(spills, 'byte') + ' of spills' if spills else 'no spills'};"
            f" nvcc {p.binary.compiler}, machine code {p.binary.hash[:12]}",
        ),
        ("backend", "none: the kernel was stopped" if p.fault else _ran_on(p, how if p.parts else "")),
    ]
    if not p.ok:
        rows.append(("result", Text(_wrong(p), "bold red")))
    page.pairs(rows)


def _wrong(p: Profile) -> str:
    """In a line, what is the matter with a profile that is not ok."""
    if p.fault:
        return f"STOPPED: {p.fault.kind}"
    return f"WRONG: {p.error if p.error and not p.error.ok else p.damage or 'C was not checked'}"


def _ran_on(p: Profile, simulated: str) -> str:
    """Which GPU ran it, and how much of it was simulated."""
    if not p.timing:
        return simulated
    driver = f", driver {p.timing.facts['driver']}" if p.timing.facts.get("driver") else ""
    counted = f"; its counts from {simulated}" if simulated else "; not simulated"
    return f"GPU {p.timing.gpu.index}, {p.timing.gpu.name}{driver}{counted}"


def _coalescing(page: Page, v: dict[str, float]) -> None:
    page.section("Global memory", "a warp's 32 lanes ask together; what they ask moves in 32-byte sectors")
    rows = []
    for word, op, requests, sectors in (
        ("load", "ld", REQUESTS_LD, SECTORS_LD),
        ("store", "st", REQUESTS_ST, SECTORS_ST),
    ):
        if v[requests]:
            rows.append((
                word, count(v[requests]), count(v[sectors]), figure(v[f"sectors_per_request_{op}"]),
                figure(v[f"sectors_per_request_{op}_ideal"]), size(v[f"global_{word}_bytes"]), size(v[f"global_{word}_sector_bytes"]),
            ))  # fmt: skip
    page.table(["<", "requests", "sectors", "per request", "ideal", "lanes asked", "moved"], rows)


def _shared(page: Page, v: dict[str, float]) -> None:
    page.section("Shared memory", "32 banks; lanes that want different words of one bank wait: more wavefronts")
    rows = []
    for word, op, wavefronts, conflicts in (
        ("load", "ld", WAVEFRONTS_LD, CONFLICTS_LD),
        ("store", "st", WAVEFRONTS_ST, CONFLICTS_ST),
    ):
        if requests := v[f"shared_requests_{op}"]:
            ideal = v[wavefronts] - v[conflicts]
            rows.append((
                word, count(requests), count(v[wavefronts]), count(ideal), count(v[conflicts]),
                figure(v[wavefronts] / requests), figure(ideal / requests),
            ))  # fmt: skip
    wavefronts = v["shared_wavefronts_copy"]
    if requests := v[LDGSTS]:
        ideal = wavefronts - v[CONFLICTS_LDGSTS]
        rows.append((
            "copy in", count(requests), count(wavefronts), count(ideal), count(v[CONFLICTS_LDGSTS]), figure(wavefronts / requests),
            figure(ideal / requests),
        ))  # fmt: skip
    if not rows:
        page.say("not used")
        return
    page.table(["<", "requests", "wavefronts", "ideal", "bank conflicts", "per request", "ideal"], rows)
    conflicts = sum(v[name] for name in (CONFLICTS_LD, CONFLICTS_ST, CONFLICTS_LDGSTS))
    passes = v[WAVEFRONTS_LD] + v[WAVEFRONTS_ST] + wavefronts
    page.say(f"{percent(conflicts / passes)} of the wavefronts are bank conflicts")


def _occupancy(page: Page, p: Profile) -> None:
    page.section("Occupancy", "warps an SM can hold at once, of those it has room for: the most, not what is reached")
    rows = []
    for part in p.parts:
        held, launch = part.occupancy, part.launch
        rows.append((
            launch.label, "x".join(f"{x:,}" for x in _trimmed(launch.grid)), count(launch.threads), size(part.metrics["shared_bytes_per_block"]),
            *(count(x) for x in held.limits.values()), f"{figure(held.percent, 4)} %", held.limiter, figure(held.waves),
        ))  # fmt: skip
    limits = ["/warps", "/blocks", "/regs", "/shared"]
    page.table(["<launch", "grid", "threads", "shared", *limits, "occupancy", "<limiter", "waves"], rows)
    page.say(
        f"{', '.join(limits)}: blocks an SM could hold if only that counted. waves: rounds in which {p.device.sms} SMs take"
        " all blocks.",
        "dim",
    )


def _trimmed(extent: tuple[int, int, int]) -> tuple[int, ...]:
    return extent if extent[2] > 1 else extent[:2] if extent[1] > 1 else extent[:1]


def _work(page: Page, p: Profile) -> None:
    page.section("Work")
    local = p.totals["smsp__inst_executed_op_local_ld.sum"] + p.totals["smsp__inst_executed_op_local_st.sum"]
    v, needed = p.totals, p.problem.m * p.problem.n * p.problem.k
    padding = f", {percent(v['fma_count'] / needed - 1)} more than M*N*K" if v["fma_count"] > needed else ", M*N*K"
    classes = (
        pd.concat([metrics.instruction_classes(x.kernel, x.counts).executed for x in p.parts])
        .groupby(level=0)
        .sum()
        .sort_values(ascending=False)
    )
    mix = ", ".join(f"{name} {percent(n / classes.sum())}" for name, n in classes.head(6).items())
    rows = [
        ("multiply-adds", count(v["fma_count"]) + padding),
        ("warp instructions", f"{count(v['smsp__inst_executed.sum'])}: {mix}"),
        ("shared words read", f"{figure(v['shared_words_read_per_fma'] or math.nan)} per multiply-add"),
        (
            "arithmetic intensity",
            f"{figure(v['arithmetic_intensity'])} FLOP per byte the lanes load, {figure(v['arithmetic_intensity_sectors'])} per byte"
            f" those loads move{'; no FLOP on padding counts' if v['fma_count'] > v['fma_useful'] else ''}",
        ),
        ("register reads", f"{figure(v['register_reads_per_ffma'])} per FFMA"),
        (
            "local memory",
            f"{count(local)} warp instructions: spills, or arrays that are not in registers" if local else "- ",
        ),
    ]
    page.pairs([row for row in rows if not row[1].startswith("- ")])


def costliest(profile: Profile) -> pd.DataFrame:
    """Profile.source_lines with `cycles`, costliest first: of an SM, for the slower of issuing a line's instructions and moving its data."""
    table = profile.source_lines.copy()
    issue = table.executed / profile.device.partitions
    data = (table.wavefronts + table.lines) / profile.device.data_wavefronts
    table["cycles"] = pd.concat([issue, data], axis=1).max(axis=1)
    return table[table.executed > 0].sort_values("cycles", ascending=False)


def _lines(page: Page, p: Profile) -> None:
    page.section("Costliest source lines", "share: of an SM's cycles, all lines added up")
    table = costliest(p)
    total = table.cycles.sum()
    rows = []
    for x in table.head(LINES).itertuples():
        rows.append((
            percent(x.cycles / total), count(x.executed), *_against(x.wavefronts, x.wavefronts_ideal), *_against(x.sectors, x.sectors_ideal),
            Text(f"{Path(x.file).name}:{x.line}", no_wrap=True),
        ))  # fmt: skip
    columns = ["share", "warp inst", "wavefronts", "ideal", "sectors", "ideal", "<line"]
    page.table(columns, rows)
    width = max((len(row[-1]) for row in rows), default=0)
    page.console.print()
    for row, x in zip(rows, table.head(LINES).itertuples(), strict=True):
        room = page.console.width - width - 4
        code = x.text if len(x.text) <= room else x.text[: room - 3] + "..."
        page.console.print(Text.assemble("  ", (f"{str(row[-1]):{width}}  ", "dim"), code), no_wrap=True)


def _against(value: float, ideal: float) -> tuple[Text, str]:
    if not value:
        return Text(""), ""
    return Text(count(value), style="yellow" if value > ideal else ""), count(ideal)


def _bounds(page: Page, p: Profile) -> None:
    page.section("Bounds", "the least time each resource needs for this work: a bound, not a time")
    top = bounds.bottleneck(p.bounds)
    known = sorted((b for b in p.bounds if not math.isnan(b.seconds)), key=lambda b: -b.seconds)
    rows = []
    for b in known:
        share = b.seconds / top.seconds if top.seconds else 0.0
        mark = b.width if b.width == bounds.MEASURED_ROOF else "" if b.verified else "unverified width"
        rows.append((b.name, duration(b.seconds), percent(share), "#" * round(20 * share), mark))
    page.table(["<resource", "at least", "of largest", "<", "<"], rows)
    page.say(LEGEND, "dim")
    if not all(b.verified for b in known):
        page.say(f"unverified width: from NVIDIA's documents, not measured on {p.device.arch}", "dim")
    for b in p.bounds:
        if math.isnan(b.seconds):
            page.say(f"{b.name}: no bound: {b.formula}", "dim")
    attainable = bounds.attainable_tflops(p.problem, p.bounds)
    page.say(
        f"Bottleneck: {top.name} ({top.formula}). It cannot finish sooner, so at most {figure(attainable)} TFLOPS of"
        f" {figure(p.device.peak_tflops)} are attainable; latency and imbalance come on top.",
        "bold",
    )


def _claims(page: Page, p: Profile) -> None:
    if not p.claims:
        return
    counted = p.measured.totals if p.measured else {}
    page.section("What the articles claim", f"beside what was simulated{' and measured' if counted else ''}")
    for claim in p.claims:
        style = "green" if claim.holds else "yellow"
        against = f"; compared with {claim.against}" if claim.against else ""
        where = f"  ({claim.article}{against})"
        page.say(Text.assemble((f"{_verdict(claim.verdict)}: ", style), claim.says, (where, "dim")))
        for r in claim.readings:
            metric = METRICS[r.metric]
            times, unit = ("x", "") if claim.against else ("", f" {metric.unit}")
            seen = f", measured {short(counted[r.metric])}" if r.metric in counted and not claim.against else ""
            figures = f"claimed {short(claim.expected)}{times}, simulated {short(r.value)}{times}{seen}{unit}"
            figures += _off(claim.expected, r)
            page.say(Text.assemble(f"{metric.meaning}: {figures}", (f"  {r.metric}", "dim")), indent=6)
        if claim.why:
            page.say(claim.why, "dim", indent=6)


def _off(expected: float, reading: Reading) -> str:
    """How far a reading that does not bear its claim out lies from it."""
    if reading.holds:
        return ""
    if not expected or math.isnan(reading.value):
        return ": not what is claimed"
    off = reading.value / expected - 1
    return f": {percent(abs(off))} {'more' if off > 0 else 'less'} than claimed"


def _verdict(verdict: str) -> str:
    return "holds in part" if verdict.startswith("holds for") else verdict


def _findings(page: Page, p: Profile) -> None:
    page.section("Findings", "costliest first")
    if not p.findings:
        page.say("none: nothing here wastes more than 1 % of the bottleneck's time")
    page.pairs([(f"{n}.", Text.assemble(f.sentence, " ", (f.remedy, "green"))) for n, f in enumerate(p.findings, 1)])


def _error(page: Page, p: Profile) -> None:
    page.section("Result", "C against float64, element by element")
    if p.error is None:
        page.say("C was not computed: the kernel was stopped", "bold red")
    else:
        page.say(("correct: " if p.error.ok else "WRONG: ") + str(p.error), "green" if p.error.ok else "bold red")
    if p.damage:
        page.say(f"WRONG: {p.damage}", "bold red")


def render_verification(v: Verification, width: int = WIDTH, colour: bool = False) -> str:
    """The table of verdicts, a row per group of problems, then the first failures in full."""
    from .verification import table

    page = Page(width, colour)
    chosen = " ".join(f"{k}={x}" for k, x in v.tunables.items())
    where = f"{v.gpu}, driver {v.driver or 'unknown'}" if v.backend == "gpu" else f"{v.device.arch}, simulated"
    page.console.print(Text.assemble((v.stage.name, "bold"), f" {chosen} on {where}".replace("  ", " ")))
    rows = []
    for x in table([v]).itertuples():
        rows.append((
            x.group, count(x.cases), "-" if math.isnan(x.error_share) else percent(x.error_share),
            Text(f"{x.failed} wrong", "bold red") if x.failed else Text("correct", "green"),
        ))  # fmt: skip
    page.table(["<problems", "number", "error / bound", "<verdict"], rows)
    for x in v.failed[:FAILURES]:
        exact = " to the bit" if x.case.exact else ""
        page.say(Text.assemble((f"{x.case.problem}, {x.case.problem.distribution}{exact}: ", "bold"), x.why))
    if len(v.failed) > FAILURES:
        page.say(f"and {len(v.failed) - FAILURES} more failures")
    done = len(v.verdicts)
    stopped = f" (interrupted: {v.planned - done} were not run)" if v.interrupted else ""
    page.say(
        f"{done - len(v.failed)} of {several(done, 'problem')} correct{stopped}", "bold green" if v.ok else "bold red"
    )
    return page.text() + "\n"


def render_bench(result: Bench, width: int = WIDTH, colour: bool = False) -> str:
    """The table of figures, and the machine they were taken on."""
    page = Page(width, colour)
    page.console.print(
        Text.assemble(("Tilescope itself", "bold"), f" on {result.cpu}, {several(result.cores, 'core')}")
    )
    page.table(
        ["<what", "figure", "<", "<target"],
        [
            (f.what, figure(f.value), f.unit, f"{f.target}{'' if f.met else ': MISSED'}" if f.target else "")
            for f in result.figures
        ],
    )
    return page.text()
