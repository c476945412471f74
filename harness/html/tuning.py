"""The page of a search over a stage's tunables: the winner, what became of the candidates, and what the bounds dropped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..record import Run
from ..report import figure, percent
from ..tune import READY, STATES, TIMED_WELL, pruning
from ..words import several
from .page import Content, Head, Section, facts, say, table
from .parts import end, idea, shape
from .points import explorer

AXES = {
    "ms": "time, ms", "bound_ms": "least time by the bounds, ms", "expected_ms": "expected time, ms", "ratio": "cuBLAS's time over this one's",
    "registers": "registers a thread", "warps": "warps on an SM", "rank": "rank",
}  # fmt: skip
"""Of a candidate, for the plot: columns and their labels."""
ALWAYS = (TIMED_WELL, "bounds", "wrong")
"""States that are counted even where no candidate is in them."""
BEST, OWN = "the fastest", "the stage's own"


def page(run: Run) -> Content:
    m, candidates = run.manifest, run.table("candidates")
    title = f"Tuning {m['stage']} on {shape(m['problem'])}, {m['device']}"
    if not len(candidates):  # and so no columns
        nothing = Section("Findings", "", [say("It was interrupted: no candidate is finished yet.")])
        return Content(title, idea(m["stage"]), f"run {run.id}", [nothing, *end(run)], "", True)
    names = list(m["choices"])
    varied = [n for n in names if candidates[n].nunique() > 1]
    timed = int((candidates.sampled & candidates.ms.notna()).sum())
    lost = len(m["winners_dropped"])
    blocks = [
        *_winner(m, candidates, varied), say(pruning(m["counts"]["bounds"], timed, lost)),
        *([say("It was interrupted before its end.")] if m["interrupted"] else []), *_became(m, len(candidates)),
    ]  # fmt: skip
    sections = [
        Section("Findings", "", blocks),
        Section(
            "Candidates",
            "best first; a click on a column's head sorts by it",
            _candidates(m, candidates, names, varied),
        ),
    ]
    return Content(
        title, idea(m["stage"]), f"run {run.id}", [*sections, *end(run)],
        "the bounds dropped a winner" if lost else "", not lost,
    )  # fmt: skip


def _winner(m: Mapping[str, Any], candidates: pd.DataFrame, varied: Sequence[str]) -> list[dict[str, Any]]:
    """A sentence on the winner, and its tunables beside the stage's own and what was tried."""
    w, own = m["winner"], m["defaults"]
    if not w:
        return [say("No candidate is left.")]
    if w["state"] == TIMED_WELL:
        beside = f", {percent(w['ratio'])} of cuBLAS's speed" if w["ratio"] is not None else ""
        head, words = BEST, f"Fastest: {_words(w['tunables'], own)} with {figure(w['ms'], 4)} ms{beside}."
        mine = candidates[(candidates[list(own)] == pd.Series(own)).all(axis=1) & candidates.ms.notna()] if own else []
        if len(mine) and w["tunables"] != own:
            words += f" The stage's own tunables take {figure(mine.ms.iloc[0], 4)} ms, {figure(mine.ms.iloc[0] / w['ms'], 4)} times as long."  # fmt: skip
    else:
        head = "expected to be the fastest"
        words = (
            f"Expected to be the fastest: {_words(w['tunables'], own)}, bound by {w['bound']} to {figure(w['bound_ms'], 4)} ms."
            " Nothing was timed."
        )
    shown = [n for n in m["choices"] if n in varied or w["tunables"][n] != own.get(n)]
    rows = [(n, w["tunables"][n], own.get(n, ""), ", ".join(map(str, m["choices"][n]))) for n in shown]
    return [say(words), *([table(["<tunable", head, OWN, "<tried"], rows)] if rows else [])]


def _words(tunables: Mapping[str, int], own: Mapping[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in tunables.items()) + (f" ({OWN})" if tunables == own else "")


def _became(m: Mapping[str, Any], total: int) -> list[dict[str, Any]]:
    """How many candidates came to which end, and the rules that suggestions broke."""
    counts = {state: n for state, n in m["counts"].items() if state != "illegal" and (n or state in ALWAYS)}
    beyond = (
        f", but not among the {m['options']['timed']} to time"
        if m["backend"] == "gpu" and m["options"].get("timed")
        else ""
    )
    blocks = [
        say(f"What became of the {several(total, 'candidate')}:"),
        facts([(STATES[state] + (beyond if state == READY else ""), f"{n:,}") for state, n in counts.items()]),
    ]
    rules = list(m.get("illegal", {}).items())
    if rules:
        broken = sum(n for _, n in rules)
        words = f"{several(broken, 'more suggestion')} broke the stage's rules and {'was' if broken == 1 else 'were'} no candidates, each by the first rule that it broke:"
        blocks += [say(words), table(["suggestions", "<rule"], [(n, rule) for rule, n in rules])]
    return blocks


def _candidates(
    m: Mapping[str, Any], candidates: pd.DataFrame, names: Sequence[str], varied: Sequence[str]
) -> list[dict[str, Any]]:
    """A table of all, and a plot of those with a bound to explore."""
    fixed = {n: int(candidates[n].iloc[0]) for n in names if n not in varied}
    expected = "expected_ms" in candidates
    rows, marks, best = [], [], []
    for number, c in enumerate(candidates.to_dict("records")):
        tunables = {n: int(c[n]) for n in names}
        own, won = tunables == m["defaults"], bool(m["winner"]) and tunables == m["winner"]["tunables"]
        best += [number] if won else []
        mark = BEST if won and c["state"] == TIMED_WELL else OWN if own else ""
        marks.append(mark or STATES[c["state"]])
        words = [STATES[c["state"]] + (", though dropped by the bounds" if c["sampled"] else "")]
        words += [BEST] if mark == BEST else []
        words += [OWN] if own else []
        rows.append((
            c["rank"], *(tunables[n] for n in varied), _known(c["ms"], 4), _spread(c), _known(c["ratio"]),
            *([_known(c["expected_ms"], 4)] if expected else []), _known(c["bound_ms"], 4), c["bound"], _known(c["registers"]),
            _known(c["warps"]), "; ".join(words), c["why"],
        ))  # fmt: skip
    columns = [
        "rank", *varied, Head("time", "ms"), Head("±", about="half of the 95 % interval"), Head("cuBLAS's time / this"),
        *([Head("expected", "ms", "what ranks candidates before they are timed")] if expected else []),
        Head("least time by the bounds", "ms"), "<largest bound", "registers a thread", "warps on an SM", "<what became of it", "<why",
    ]  # fmt: skip
    same = f"The same in all: {' '.join(f'{n}={v}' for n, v in fixed.items())}."
    found = table(columns, rows, sortable=True, best=best)
    return [*_plot(m, candidates, varied, marks), *([say(same)] if fixed else []), found]


def _plot(
    m: Mapping[str, Any], candidates: pd.DataFrame, varied: Sequence[str], marks: Sequence[str]
) -> list[dict[str, Any]]:
    """Times against bounds; nothing where too few candidates have one. The winner and the stage's own are large and on top."""
    order = {BEST: 2, OWN: 1}
    shown = candidates.assign(
        run=[f"rank {r}" for r in candidates["rank"]], stage=m["stage"], state=marks, dot=[14.0 if s in order else 9.0 for s in marks],
        tunables=[" ".join(f"{n}={int(c[n])}" for n in varied) for c in candidates.to_dict("records")],
    )  # fmt: skip
    shown = shown[shown.bound_ms.notna()].sort_values("state", key=lambda s: s.map(order).fillna(0), kind="stable")
    numbers = [c for c in (*AXES, *varied) if c in shown and shown[c].nunique() > 1]
    if len(shown) <= 2 or "bound_ms" not in numbers or len(numbers) < 2:
        return []
    y = next(c for c in ("ms", "expected_ms", "registers", *numbers) if c in numbers and c != "bound_ms")
    kept = shown[["run", "stage", "state", "tunables", "dot", *numbers]].reset_index(drop=True)
    lists = [
        ("what came of it", [c for c in AXES if c in numbers]),
        ("tunables", [n for n in varied if n in numbers]),
    ]
    labels, legend = AXES | {n: n for n in varied}, [STATES[TIMED_WELL], BEST, OWN, *STATES.values()]
    return [explorer(kept, ("bound_ms", y), "state", lists, labels, groups=legend)]


def _known(x: float, digits: int = 3) -> str:
    """A figure, or nothing where there is none."""
    return figure(x, digits) if x is not None and math.isfinite(x) else ""


def _spread(c: Mapping[str, Any]) -> str:
    """Half of a time's interval in percent."""
    return f"{50 * (c['ms_hi'] - c['ms_lo']) / c['ms']:.2f} %" if math.isfinite(c["ms"]) else ""
