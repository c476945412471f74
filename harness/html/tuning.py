"""The page of a search over a stage's tunables: the winner, what became of the candidates, and what the bounds dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..record import Run
from ..report import figure, percent
from ..tune import STATES, TIMED_WELL, pruning
from . import charts
from .page import Content, Section, facts, plot, say, table
from .parts import end, idea, shape

NUMBERS = ("rank", "bound_ms", "ms", "ratio", "registers", "warps")
"""Of a candidate, for the plot."""
OWN = " (the stage's own)"


def page(run: Run) -> Content:
    m, candidates = run.manifest, run.table("candidates")
    timed = int((candidates.sampled & candidates.ms.notna()).sum())
    lost = len(m["winners_dropped"])
    found = [_winner(m), pruning(m["counts"]["bounds"], timed, lost)]
    blocks = [
        say(words) for words in (*found, "It was interrupted before its end." if m["interrupted"] else "") if words
    ]
    sections = [
        Section("Findings", "", blocks),
        Section("Candidates", "best first; a click on a column's head sorts by it", _candidates(m, candidates)),
    ]
    became = facts([(STATES[state], f"{n:,}") for state, n in m["counts"].items() if n])
    rules = list(m.get("illegal", {}).items())
    broken = [
        say("Suggestions against the rules, each by the first rule that it breaks:"),
        table(["suggestions", "<rule"], [(n, rule) for rule, n in rules]),
    ]
    sections.append(Section("What became of them", "", [became, *(broken if rules else [])]))
    return Content(
        f"Tuning {m['stage']} on {shape(m['problem'])}, {m['device']}", idea(m["stage"]), f"run {run.id}", [*sections, *end(run)],
        "the bounds dropped a winner" if lost else "", not lost,
    )  # fmt: skip


def _winner(m: Mapping[str, Any]) -> str:
    w = m["winner"]
    if not w:
        return "No candidate is left."
    words = _words(w["tunables"], m["defaults"])
    if w["state"] != TIMED_WELL:
        return f"Expected to be the fastest: {words}, bound by {w['bound']} to {figure(w['bound_ms'], 4)} ms. Nothing was timed."
    beside = f", {percent(w['ratio'])} of cuBLAS's speed" if w["ratio"] is not None else ""
    return f"Fastest: {words} with {figure(w['ms'], 4)} ms{beside}."


def _words(tunables: Mapping[str, int], defaults: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in tunables.items()) + (OWN if tunables == defaults else "")


def _candidates(m: Mapping[str, Any], candidates: pd.DataFrame) -> list[dict[str, Any]]:
    """A table of all, and a plot of those with a bound to explore."""
    names = list(m["choices"])
    varied = [n for n in names if candidates[n].nunique() > 1]
    fixed = {n: int(candidates[n].iloc[0]) for n in names if n not in varied}
    rows, labels = [], []
    for c in candidates.to_dict("records"):
        tunables = {n: int(c[n]) for n in names}
        labels.append(" ".join(f"{n}={tunables[n]}" for n in varied))
        state = f"{STATES[c['state']]}{', though dropped by the bounds' if c['sampled'] else ''}"
        rows.append((
            c["rank"], f"{labels[-1]}{OWN if tunables == m['defaults'] else ''}", state, c["bound"], figure(c["bound_ms"], 4),
            figure(c["registers"]), figure(c["warps"]), figure(c["ms"], 4), _spread(c), figure(c["ratio"]), c["why"],
        ))  # fmt: skip
    columns = [
        "rank",
        "<tunables",
        "<state",
        "<largest bound",
        "bound ms",
        "registers",
        "warps on an SM",
        "ms",
        "±",
        "cuBLAS / this",
        "<why",
    ]
    blocks = [table(columns, rows, sortable=True)]
    if fixed:
        blocks.insert(0, say(f"The same in all: {' '.join(f'{n}={v}' for n, v in fixed.items())}."))
    shown = candidates.assign(
        run=candidates["rank"].astype(str), stage=m["stage"], tunables=labels, **{x: m["problem"][x] for x in "mnk"}
    )
    shown = shown[shown.bound_ms.notna()].assign(state=lambda t: t.state.map(STATES)).reset_index(drop=True)
    numbers = [c for c in (*NUMBERS, *varied) if shown[c].nunique() > 1]
    if len(shown) > 2 and "bound_ms" in numbers and len(numbers) > 1:
        y = next(c for c in ("ms", "registers", *numbers) if c in numbers and c != "bound_ms")
        kept = shown[[*dict.fromkeys(("run", "stage", "state", "m", "n", "k", "tunables", *numbers))]]
        controls = {"kind": "controls", "axes": [("x", "bound_ms"), ("y", y)], "columns": numbers}
        blocks[:0] = [controls, plot(charts.explorer(kept, "bound_ms", y, "state"))]
    return blocks


def _spread(c: Mapping[str, Any]) -> str:
    """Half of a time's interval in percent."""
    return f"{50 * (c['ms_hi'] - c['ms_lo']) / c['ms']:.2f} %" if math.isfinite(c["ms"]) else ""
