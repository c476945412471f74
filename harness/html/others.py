"""The pages of roofs, of the ledger, of runs of any other kind, and of many runs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from .. import frames
from ..metrics import METRICS
from ..record import Run
from ..report import count, figure, percent
from . import charts, profiles
from .page import Content, Section, folded, plot, say, table
from .parts import end, made, shape

SHOWN = ("tflops", "time_ms", "rival_ratio", "bank_conflict_share", "sectors_per_request_ld", "shared_words_read_per_fma",
         "register_reads_per_ffma", "sm__maximum_warps_per_active_cycle_pct", "launch__registers_per_thread")  # fmt: skip
"""Metrics in the table of several runs, where they have them."""
FOLDED = 250
"""Runs of a page that have a part of their own."""


def several(name: str, runs: Sequence[Run]) -> Content:
    """The page of an experiment: what its runs found, a table of all points, a plot to explore them, then run by run."""
    points = frames.points(runs)
    sections = [_overall(runs, points), *_tally(runs), *_points(points)]
    each = [folded(f"{r.id}  {_headline(r)}", _brief(r)) for r in runs[:FOLDED]]
    sections.append(Section("Runs", f"{len(runs)} in all; each unfolds", each))
    bad = [r for r in runs if r.manifest.get("ok") is False]
    question = next((str(r.manifest["question"]) for r in reversed(runs) if r.manifest.get("question")), "")
    return Content(
        f"Experiment {name}", question, f"{len(runs)} recorded runs", sections, f"{len(bad)} of {len(runs)} runs not ok" if bad else "all runs ok",
        not bad, ", ".join(r.id for r in bad[:5]),
    )  # fmt: skip


def _overall(runs: Sequence[Run], points: pd.DataFrame) -> Section:
    """What the runs say together: the fastest point, and findings that several share."""
    blocks = []
    if "tflops" in points and points.tflops.notna().any():
        best = points.loc[points.tflops.idxmax()]
        blocks.append(say(f"Fastest: {_point(best)} with {figure(best.tflops)} TFLOPS."))
    found: dict[str, int] = {}
    for r in runs:
        for f in r.manifest.get("findings") or []:
            words = f["sentence"] if isinstance(f, Mapping) else str(f)
            found[words] = found.get(words, 0) + 1
    most = sorted(found.items(), key=lambda x: -x[1])[:8]
    items = [{"sentence": words, "remedy": "", "cost": f"{n} run{'s' if n > 1 else ''}"} for words, n in most]
    blocks.append({"kind": "findings", "found": items, "none": "No run has a finding."})
    return Section("Findings", "", blocks)


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
    words = [
        str(row.get("stage", "")),
        frames.tunables(row.get("tunables")) if isinstance(row.get("tunables"), str) else "",
    ]
    if row.get("m") == row.get("m"):
        words.append(f"at {int(row.m):,} x {int(row.n):,} x {int(row.k):,}")
    return " ".join(w for w in words if w)


def _points(points: pd.DataFrame) -> list[Section]:
    """A table of all points and, where there are several with figures, a plot to explore them."""
    if points.empty:
        return []
    keys = [c for c in ("stage", "m", "n", "k", "tunables", "device", "backend", "ok") if c in points]
    metrics = [c for c in SHOWN if c in points and points[c].notna().any()]
    heads = [f"<{c}" if points[c].dtype.kind not in "if" else c for c in keys]
    rows = []
    for row in points.to_dict("records"):
        words = [
            frames.tunables(row[c]) if c == "tunables" else count(row[c]) if c in ("m", "n", "k") else _yes(row[c])
            for c in keys
        ]
        rows.append([row["run"], *words, *(figure(row[c], 4) for c in metrics)])
    named = [f"{_title(c)}" for c in metrics]
    blocks = [table(["<run", *heads, *named], rows, sortable=True)]
    numbers = [c for c in points if points[c].dtype.kind in "if" and points[c].nunique() > 1]
    if len(points) > 2 and len(numbers) > 1 and "stage" in points:
        x = next((c for c in ("m", "n", "k") if c in numbers), numbers[0])
        y = next((c for c in (*metrics, *numbers) if c in numbers and c != x), numbers[-1])
        kept = points[[c for c in dict.fromkeys(["run", "stage", "m", "n", "k", "tunables", *numbers]) if c in points]]
        kept = kept.assign(tunables=[frames.tunables(t) for t in kept.tunables]) if "tunables" in kept else kept
        controls = {"kind": "controls", "axes": [("x", x), ("y", y)], "columns": numbers}
        blocks[:0] = [controls, plot(charts.explorer(kept, x, y, "stage"))]
    return [Section("Points", "a click on a column's head sorts by it", blocks)]


def _title(metric: str) -> str:
    m = METRICS.get(metric)
    return f"{m.meaning}, {m.unit}" if m and m.unit else m.meaning if m else metric


def _yes(value: Any) -> str:
    return {True: "yes", False: "NO"}.get(value, "" if value is None or value != value else str(value))


def _headline(run: Run) -> str:
    """A run in a line."""
    m = run.manifest
    words = [
        m.get("kind", ""),
        m.get("stage", ""),
        shape(m["problem"]) if isinstance(m.get("problem"), Mapping) else "",
    ]
    if isinstance(m.get("tunables"), Mapping):
        words.append(" ".join(f"{k}={v}" for k, v in m["tunables"].items()))
    if m.get("ok") is False:
        words.append("NOT OK")
    return " ".join(w for w in words if w)


def _brief(run: Run) -> list[dict[str, Any]]:
    """A run's findings, claims and facts, without its source."""
    if run.manifest.get("kind") != "profile":
        return [made(run.manifest)]
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
         "model" if r.model else "", figure(r.clock_mhz), r.meaning)
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
    drawn = [plot(charts.bars(shown, "% of the device's data, or of the model", tips))] if len(shown) else []
    columns = ["<roof", "measured", "<unit", "least to most", "specified", "<", "MHz", "<"]
    sections = [
        Section(
            "Findings", "roofs that lie off what is specified", [{"kind": "findings", "found": items, "none": none}]
        ),
        Section(
            "Roofs",
            "what the units, memories and latencies of this GPU give at most",
            [*drawn, table(columns, rows, sortable=True)],
        ),
        *end(run),
    ]
    return Content(f"Roofs of {m['gpu']}", "", f"run {run.id}", sections)


def ledger(run: Run) -> Content:
    from ..ledger import short_verdict, summary

    found = run.table("ledger")
    counted = [
        {"sentence": f"{verdict}: {n} of {len(found)} statements.", "remedy": "", "cost": ""}
        for verdict, n in summary(found).items()
        if n
    ]
    rows = [
        (r.article, r.section, r.statement, short_verdict(r.verdict), r.value, r.source, r.why)
        for r in found.itertuples()
    ]
    columns = ["<article", "<section", "<statement", "<verdict", "<value", "<source", "<why"]
    sections = [
        Section("Findings", "", [{"kind": "findings", "found": counted, "none": "No statement."}]),
        Section("Statements", "", [table(columns, rows, sortable=True)]),
        *end(run),
    ]
    return Content("The articles' statements", f"for {run.manifest['device']}", f"run {run.id}", sections)


def other(run: Run) -> Content:
    """A run of any other kind: what it found, if it says so, and its points."""
    m = run.manifest
    points = frames.points([run])
    shown = (
        [Section("Findings", "", [_findings_of(m)])]
        if m.get("findings")
        else [_overall([run], points)]
        if len(points) > 1
        else []
    )
    sections = [*shown, *_points(points), *end(run)]
    ok = m.get("ok")
    return Content(
        f"{str(m.get('kind', 'run')).capitalize()} {m.get('name', '')}".strip(), str(m.get("question", "")), f"run {run.id}", sections,
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
