"""The page of a run of an experiment; and what the claims of several runs of one say together."""

from __future__ import annotations

from collections.abc import Sequence

from .. import frames
from ..expectations import UNCHECKED, Verdict
from ..experiment_report import outcome, readings, tally
from ..record import Run
from .page import Content, Section, facts, folded, say, table
from .parts import end
from .points import section


def page(run: Run) -> Content:
    m = run.manifest
    surprises = [c.says for c in _claims(run) if c.surprise]
    sections = claims([run])
    if m["troubles"]:
        sections.append(Section("Points not measured", "", [facts(list(m["troubles"].items()))]))
    sections += [*section(frames.points([run]), list(m["units"])), *end(run)]
    verdict = "a claim is not as expected" if surprises else "every claim that was measured is as expected"
    return Content(
        f"Experiment {m['experiment']} on {', '.join(m['devices'])}", m["question"], f"run {run.id}", sections,
        verdict if m["claims"] else "", not surprises, "; ".join(surprises),
    )  # fmt: skip


def claims(runs: Sequence[Run]) -> list[Section]:
    """The claims of runs of experiments, oldest first, each as the newest run that could judge it found; nothing where there are none."""
    found: dict[str, list[Verdict]] = {}
    for run in reversed(runs):
        for c in _claims(run):
            found.setdefault(c.says, []).append(c)
    if not found:
        return []
    newest, rows = [], []
    for verdicts in found.values():
        known = [c for c in verdicts if c.verdict != UNCHECKED]
        c = (known or verdicts)[0]
        newest.append(c)
        row = [c.says, c.article, outcome(c), readings(c) if c.readings else ""]
        rows.append([*row, f"{sum(x.holds for x in known)} of {len(known)}"] if len(runs) > 1 else row)
    columns = [
        "<claim",
        "<article",
        "<verdict",
        "<found",
        *(["<holds in runs that judged it"] if len(runs) > 1 else []),
    ]
    why = [say(f"{c.says}: {c.why}") for c in newest if c.why]
    blocks = [
        say(f"{tally(newest)}."),
        table(columns, rows),
        *([folded("why, where one does not hold", why)] if why else []),
    ]
    return [Section("Claims", "as the definition states them", blocks)]


def _claims(run: Run) -> list[Verdict]:
    """Those of a run of an experiment; a profile's are its stage's."""
    return [Verdict.of(c) for c in run.manifest["claims"]] if run.manifest.get("kind") == "experiment" else []
