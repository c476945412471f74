"""The pages of roofs, of the ledger, of runs of any other kind, and of many runs together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from .. import frames
from .. import stage as stages
from ..record import Run
from ..report import figure, percent
from ..words import several as counted
from . import charts, experiments, profiles
from .page import Content, Section, folded, plot, say, table
from .parts import articles, end, made, shape
from .points import section

FOLDED = 250
"""Runs of a page that have a part of their own."""
SOURCES = (
    "source of a value: sim is simulated, ncu counted by Nsight Compute, timing an event time, roofs what the GPU gives at most;"
    " a click on a column's head sorts by it"
)


def several(name: str, runs: Sequence[Run]) -> Content:
    """The page of an experiment: what its runs found, a table of all points, a plot to explore them, then run by run."""
    points = frames.points(runs)
    shown = section(runs, points, *experiments.metrics(runs))
    sections = [*_overall(runs, points), *experiments.claims(runs), *_tally(runs), *shown]
    each = [folded(f"{r.id}  {_headline(r)}", _brief(r)) for r in runs[:FOLDED]]
    sections.append(Section("Runs", f"{len(runs)} in all; each unfolds", each))
    bad = [r for r in runs if r.manifest.get("ok") is False]
    question = next((str(r.manifest["question"]) for r in reversed(runs) if r.manifest.get("question")), "")
    return Content(
        f"Experiment {name}", question, counted(len(runs), "recorded run"), sections, f"{len(bad)} of {len(runs)} runs not ok" if bad else "all runs ok",
        not bad, ", ".join(r.id for r in bad[:5]),
    )  # fmt: skip


def _overall(runs: Sequence[Run], points: pd.DataFrame) -> list[Section]:
    """What the runs say together: the fastest point, and findings that several share. Nothing where they are of kinds that find none."""
    blocks = []
    if "tflops" in points and points.tflops.notna().any():
        best = points.loc[points.tflops.idxmax()]
        blocks.append(say(f"Fastest: {_point(best)} with {figure(best.tflops)} TFLOPS."))
    if any("findings" in r.manifest for r in runs):
        found = Counter(
            f["sentence"] if isinstance(f, Mapping) else str(f) for r in runs for f in r.manifest.get("findings") or []
        )
        items = [{"sentence": words, "remedy": "", "cost": counted(n, "run")} for words, n in found.most_common(8)]
        blocks.append({"kind": "findings", "found": items, "none": "No run has a finding."})
    return [Section("Findings", "", blocks)] if blocks else []


def _tally(runs: Sequence[Run]) -> list[Section]:
    """The stages' claims by verdict, and in how many runs."""
    claims = [
        (r.manifest["stage"], c)
        for r in runs
        for c in r.manifest.get("claims") or []
        if isinstance(c, Mapping) and "says" in c and "stage" in r.manifest
    ]
    if not claims:
        return []
    tally = pd.DataFrame(
        [(s, c["says"], c["verdict"]) for s, c in claims], columns=["stage", "claim", "verdict"]
    ).value_counts(sort=False)
    found = table(["<stage", "<claim", "<verdict", "runs"], [(*key, n) for key, n in tally.items()])
    return [Section("What the articles claim", "in how many runs", [found])]


def _point(row: Any) -> str:
    tunables = json.loads(row["tunables"] or "{}") if isinstance(row.get("tunables"), str) else {}
    words = [str(row.get("stage", "")), stages.changed(str(row.get("stage", "")), tunables)]
    if row.get("m") == row.get("m"):
        words.append(f"at {int(row.m):,} x {int(row.n):,} x {int(row.k):,}")
    return " ".join(w for w in words if w)


def _headline(run: Run) -> str:
    """A run in a line."""
    m = run.manifest
    words = [
        m.get("kind", ""),
        m.get("stage", ""),
        shape(m["problem"]) if isinstance(m.get("problem"), Mapping) else "",
        f"{counted(m['points'], 'point')}, BACKEND={m['backend']}" if m.get("kind") == "experiment" else "",
    ]
    if isinstance(m.get("tunables"), Mapping):
        words.append(" ".join(f"{k}={v}" for k, v in m["tunables"].items()))
    if m.get("ok") is False:
        words.append("NOT OK")
    return " ".join(w for w in words if w)


def _brief(run: Run) -> list[dict[str, Any]]:
    """A run's findings, claims and facts, without its source."""
    if run.manifest.get("kind") != "profile":
        return [*(b for s in experiments.claims([run]) for b in s.blocks), made(run.manifest)]
    return [profiles.findings(run.manifest), *profiles.claims(run.manifest), profiles.what(run.manifest)]


def roofs(run: Run) -> Content:
    m = run.manifest
    roofs = pd.DataFrame(m["roofs"])
    known = roofs.dropna(subset=["specified"]).assign(share=lambda t: t.value / t.specified.astype(float))
    far = known[(known.share < 0.95) | (known.share > 1.02)]
    items = [
        {"sentence": f"{r.name}: {figure(r.value, 4)} {r.unit}, {percent(r.share)} of what {'the model' if r.model else 'the specification'} says.", "remedy": "", "cost": ""}
        for r in far.itertuples()
    ]  # fmt: skip
    none = "Every roof is within 5 % of what the device's data or the model say."
    rows = [
        (r.name, figure(r.value, 4), r.unit, f"{figure(r.low, 4)} to {figure(r.high, 4)}", figure(r.specified, 4) if r.specified == r.specified and r.specified is not None else "",
         "the model" if r.model else "the specification" if r.specified == r.specified and r.specified is not None else "", figure(r.clock_mhz), r.meaning)
        for r in roofs.itertuples()
    ]  # fmt: skip
    shown = known.assign(
        label=[percent(s) for s in known.share],
        colour=[charts.ORANGE if s < 0.95 else charts.BLUE for s in known.share],
    )
    shown = shown.assign(rate=shown.value, value=100 * shown.share)[
        ["name", "value", "label", "colour", "rate", "unit", "meaning", "specified"]
    ]
    tips = [("", "@name: @meaning"), ("measured", "@rate{0.000} @unit"), ("specified", "@specified{0.000} @unit")]
    drawn = [plot(charts.bars(shown, "% of what is expected; orange: below 95 %", tips))] if len(shown) else []
    columns = ["<roof", "measured", "<unit", "least to most", "expected", "<by", "MHz", "<what was run"]
    sections = [
        Section(
            "Findings", "roofs that lie off what is specified", [{"kind": "findings", "found": items, "none": none}]
        ),
        Section(
            "Roofs",
            "rates per cycle are of one SM; expected: what the device's data say, or a model of the register banks",
            [*drawn, table(columns, rows, sortable=True)],
        ),
        *end(run),
    ]
    idea = "what its units, memories and latencies give at most, each measured by a loop that keeps one of them busy"
    return Content(f"Roofs of {m['gpu']}", idea, f"run {run.id}", sections)


def ledger(run: Run) -> Content:
    from ..ledger import short_verdict, summary

    found = run.table("ledger")
    counted = [
        {"sentence": f"{verdict}: {n} of {len(found)} statements.", "remedy": "", "cost": ""}
        for verdict, n in summary(found).items()
        if n
    ]
    rows = [
        (
            f"{r.article}, {r.section}".removesuffix(", "),
            r.statement,
            short_verdict(r.verdict),
            r.value,
            r.source,
            r.why,
        )
        for r in found.itertuples()
    ]
    columns = ["<article", "<statement", "<verdict", "<value", "<source", "<why"]
    sections = [
        Section("Findings", "", [{"kind": "findings", "found": counted, "none": "No statement."}]),
        Section("Statements", SOURCES, [*articles(found.article), table(columns, rows, sortable=True)]),
        *end(run),
    ]
    idea = (
        "every quantitative statement of the three articles: whether it holds, what shows it, and why where it does not"
    )
    return Content(f"The articles' statements, {run.manifest['device']}", idea, f"run {run.id}", sections)


def other(run: Run) -> Content:
    """A run of any other kind: what it found, if it says so, and its points."""
    m = run.manifest
    points = frames.points([run])
    shown = [Section("Findings", "", [_findings_of(m)])] if m.get("findings") else _overall([run], points)
    sections = [*shown, *section([run], points), *end(run)]
    ok = m.get("ok")
    title = " ".join([str(m.get("kind", "run")).capitalize(), *(m[key] for key in ("name", "stage") if m.get(key))])
    return Content(
        title + (f" on {m['device']}" if m.get("device") else ""), str(m.get("question", "")), f"run {run.id}", sections,
        "" if ok is None else "ok" if ok else "not ok", ok is not False,
    )  # fmt: skip


def _findings_of(m: Mapping[str, Any]) -> dict[str, Any]:
    items = [f if isinstance(f, Mapping) else {"sentence": str(f)} for f in m["findings"]]
    filled = [
        {
            "sentence": f.get("sentence", ""),
            "remedy": f.get("remedy", ""),
            "cost": percent(f["cost"]) if f.get("cost") else "",
        }
        for f in items
    ]
    return {"kind": "findings", "found": filled, "none": ""}
