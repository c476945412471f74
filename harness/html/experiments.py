"""The page of a run of an experiment; and what the claims of several runs of one say together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .. import definition as definitions
from .. import experiment_record, frames
from ..errors import TilescopeError
from ..expectations import UNCHECKED, Verdict, is_metric
from ..experiment_report import outcome, tally
from ..indexing import size
from ..record import Run
from ..report import figure
from .page import Content, Head, Section, facts, folded, say, table
from .parts import articles, end
from .points import FROM, expanded, rival, scale, section, unit_of, words


def page(run: Run) -> Content:
    m, points = run.manifest, frames.points([run])
    found = _claims(run)
    surprises = [c.says for c in found if c.surprise]
    sections = [*claims([run]), *_faults(run)]
    if m["troubles"]:
        sections.append(Section("Points not measured", "", [facts(list(m["troubles"].items()))]))
    sections += [*section([run], points, list(m["units"]), [c.metric for c in found]), *end(run)]
    verdict = "a claim is not as expected" if surprises else "every claim that was measured is as expected"
    return Content(
        f"Experiment {m['experiment']} on {', '.join(m['devices'])}", m["question"], f"run {run.id}", sections,
        verdict if m["claims"] else "", not surprises, "; ".join(surprises),
    )  # fmt: skip


def claims(runs: Sequence[Run]) -> list[Section]:
    """The claims of runs of experiments, oldest first, each as the newest run that could judge it found; nothing where there are none.

    They are those of the newest run's definition; a run of an older definition is judged anew by it.
    """
    found: dict[str, list[Verdict]] = {}
    for verdicts in _judged(runs):
        for c in verdicts:
            found.setdefault(c.says, []).append(c)
    if not found:
        return []
    newest, rows = [], []
    points = frames.points(runs)
    fixed = {stage: set(same.split()) for stage, same in expanded(points)[2].items()}
    for verdicts in found.values():
        known = [c for c in verdicts if c.verdict != UNCHECKED]
        c = (known or verdicts)[0]
        newest.append(c)
        row = [c.says, c.article, outcome(c), *_reading(c, fixed, rival(points))]
        rows.append([*row, f"{sum(x.holds for x in known)} of {len(known)}"] if len(runs) > 1 else row)
    columns: list[str | Head] = [
        "<claim", "<article", "<verdict", "<of what", "claimed",
        Head("found", about="the value furthest from what is claimed"), Head("at", left=True, about="the point with that value"),
        Head("points that agree"), *([Head("runs in which it holds")] if len(runs) > 1 else []),
    ]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for c in newest:
        if c.why:
            reasons.setdefault(c.why, []).append(c.says)
    why = [say(f"{'; '.join(says)}: {reason}") for reason, says in reasons.items()]
    blocks = [
        say(f"{tally(newest)}."),
        table(columns, rows),
        *articles(c.article for c in newest),
        *([folded("why, where one does not hold", why, open=True)] if why else []),
    ]
    note = "as the definition states them; found: the value furthest from what is claimed, at the point that is named"
    return [Section("Claims", note, blocks)]


def _reading(c: Verdict, fixed: Mapping[str, set[str]], beside: str) -> list[str]:
    """Of what a claim is, what it claims, the value furthest from that, where, and how many points agree."""
    worst, ratio = c.worst, " over " in c.quantity.removeprefix(c.metric)
    truth = c.metric in ("right", "fault")
    factor, unit = (1.0, "x" if ratio else "") if ratio or truth else scale(c.metric, [r.value for r in c.readings])
    what = _quantity(c, beside)
    what += f", {unit}" if unit != "%" and unit_of(what, unit) else ""
    if worst is None:
        return [what, "", "", "", ""]

    def shown(v: float) -> str:
        if truth and not ratio:
            return "yes" if v else "no"
        plain = figure(factor * v, 4)
        plain = plain.rstrip("0").rstrip(".") if "." in plain and "e" not in plain else plain
        return plain + {"x": "x", "%": " %"}.get(unit, "")

    limit = {"least": "at least ", "most": "at most "}.get(c.relation, "")
    stage, *rest = worst.point.split()
    at = " ".join([stage, *(word for word in rest if word not in fixed.get(stage, ()))])
    agree = f"{sum(r.holds for r in c.readings)} of {len(c.readings)}"
    return [what, limit + shown(worst.expected), shown(worst.value), at, agree]


def _quantity(c: Verdict, beside: str) -> str:
    """What the readings of a claim are of, without the metrics' own names: 'bytes the lanes ask of global memory: naive / this point'."""
    name = words(c.metric, rival=beside) + (f", {FROM[c.source]}" if c.source in ("sim", "ncu") else "")
    rest = c.quantity.removeprefix(c.metric).removeprefix(f" [{c.source}]").strip()
    rest = " ".join(words(w) if is_metric(w) else w for w in rest.split())
    if m := re.fullmatch(r"of (.*) over its own", rest):
        return f"{name}: {m[1]} / this point"
    if m := re.fullmatch(r"over that of (.*)", rest):
        return f"{name}: this point / {m[1]}"
    return name


def _faults(run: Run) -> list[Section]:
    """Where the simulator stopped kernels."""
    found = run.runs[run.runs.fault_kind.fillna("") != ""] if "fault_kind" in run.runs else pd.DataFrame()
    rows = []
    for r in found.to_dict("records"):
        where = f"{Path(r['fault_file']).name}:{r['fault_line']:.0f}" if r["fault_file"] else ""
        by = f", by thread {r['fault_thread']} of block {r['fault_block']}" if r["fault_thread"] else ""
        point = f"{r['stage']} {frames.tunables(r['tunables'])} at {size(r['m'], r['n'], r['k'])}"
        rows.append((point, r["fault_kind"], where, r["fault_text"] or "", f"{r.get('fault') or ''}{by}"))
    heads = ["<point", "<fault", "<line", "<source", "<what happened"]
    return [Section("Faults", "where the simulator stopped the kernel", [table(heads, rows)])] if rows else []


def _judged(runs: Sequence[Run]) -> list[list[Verdict]]:
    """The claims of the runs of experiments among them, newest first, by the definition of the newest."""
    kept = [run for run in reversed(runs) if run.manifest.get("kind") == experiment_record.KIND]
    if not kept:
        return []
    texts = [_definition(run) for run in kept]
    return [
        _claims(run) if text == texts[0] else _again(run, texts[0], kept[0])
        for run, text in zip(kept, texts, strict=True)
    ]


def _definition(run: Run) -> str:
    return run.text(definitions.FILE) if (run.path / definitions.FILE).exists() else ""


def _again(run: Run, text: str, newest: Run) -> list[Verdict]:
    """A run's claims by another definition; by its own where that one cannot be read any more."""
    try:
        return experiment_record.loaded(run, definitions.parse(text, newest.path.parent.parent)).claims
    except TilescopeError:
        return _claims(run)


def _claims(run: Run) -> list[Verdict]:
    """Those of a run of an experiment; a profile's are its stage's."""
    kind = run.manifest.get("kind")
    return [Verdict.of(c) for c in run.manifest["claims"]] if kind == experiment_record.KIND else []


def metrics(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The metrics that the runs' definitions list, the newest's first, and those of the newest's claims."""
    listed = list(dict.fromkeys(name for r in reversed(runs) for name in r.manifest.get("units") or ()))
    newest: Any = next((found for run in reversed(runs) if (found := _claims(run))), [])
    return listed, [c.metric for c in newest]
