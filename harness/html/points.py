"""The section on points, of every page that has some: a table, and a plot to explore them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from .. import agreement, frames
from ..expectations import is_metric, meaning
from ..metrics import METRICS
from ..record import Run
from ..report import count, figure
from ..words import several
from . import charts
from .page import Head, Section, facts, folded, say, table
from .parts import known

SHOWN = ("tflops", "time_ms", "rival_ratio", "bank_conflict_share", "sectors_per_request_ld", "shared_words_read_per_fma",
         "register_reads_per_ffma", "sm__maximum_warps_per_active_cycle_pct", "launch__registers_per_thread")  # fmt: skip
"""Metrics in the table of several runs that name none."""
WORDS = {
    "time_ms": "median time", "tflops": "speed", "bound_ms": "least time by the bounds", "attainable_tflops": "speed that the bounds allow",
    "time_over_bound": "time over the least time", "rival_ratio": "the rival's time over this one's",
    "register_reads_per_ffma": "registers an FFMA reads", "arithmetic_intensity": "operations per byte the lanes load",
    "arithmetic_intensity_sectors": "operations per byte that loads move",
}  # fmt: skip
"""Metrics whose meaning is too long for a column's head or an axis."""
FROM = {"sim": "simulated", "ncu": "counted by Nsight Compute", "timing": "timed", "racecheck": "racecheck", "launches": "launches",
        "trace": "traced"}  # fmt: skip
"""Sources in words."""
TRUTH = "1 where "
"""How the meaning of a metric begins that is 1 or 0."""
SPEEDS = {"time_ms": "bound_ms", "tflops": "attainable_tflops", "rival_ratio": "attainable_tflops"}
"""What says how fast a point is -> what stands in for it where nothing was timed."""
SWEEP = 4
"""Values of a size or a tunable within a stage that make it what is swept."""


def section(
    runs: Sequence[Run], points: pd.DataFrame, metrics: Sequence[str] = (), claimed: Sequence[str] = ()
) -> list[Section]:
    """A table of all points and, where there are several with figures, a plot to explore them.

    points: frames.points of the runs. metrics: to show, else SHOWN. claimed: metrics that claims are about, in their order.
    """
    if points.empty:
        return []
    origins = frames.sources(runs)
    found = [c for c in points if c in origins or is_metric(c)]
    shown = [c for c in dict.fromkeys((*metrics, *claimed) if metrics else SHOWN) if c in found]
    shown = [c for c in shown if points[c].notna().any()]
    rows, variables, fixed = expanded(points)
    scales = {c: scale(c, rows[c]) for c in found}
    rows = rows.assign(**{c: factor * rows[c] for c, (factor, _) in scales.items() if factor != 1})
    names = {c: words(c, "ncu" in origins.get(c, []), rival(points)) for c in found}
    units = {c: unit_of(names[c], scales[c][1]) for c in found}
    labels = {c: c for c in variables} | {c: _label(c, names[c], units[c]) for c in found}
    asked = axes(rows[[c for c in (*variables, *found, "stage") if c in rows]], variables, claimed, metrics or shown)
    blocks = [*_explorer(rows, asked, variables, found, shown, labels), *_same(rows, variables, fixed)]
    columns, cells = _columns(rows, variables, "right" in shown)
    heads = [Head(names[c], unit=units[c], about=f"{c}: {meaning(c)[1]}") for c in shown]
    values = zip(*(_values(c, rows[c]) for c in shown), strict=True) if shown else [()] * len(rows)
    blocks.append(table([*columns, *heads], [[*a, *b] for a, b in zip(cells, values, strict=True)], sortable=True))
    if shown:
        about = [
            (names[c], c, meaning(c)[0], ", ".join(FROM.get(x, x) for x in origins.get(c, [])), meaning(c)[1])
            for c in shown
        ]
        blocks.append(folded("what the columns are", [table(["<column", "<metric", "<unit", "<from", "<meaning"], about)]))  # fmt: skip
    return [Section("Points", f"{several(len(rows), 'point')}; a click on a column's head sorts by it", blocks)]


def words(metric: str, counted: bool = False, rival: str = "") -> str:
    """A metric's meaning as far as it is a name: 'theoretical occupancy', 'C is right', 'least time: FMA pipe'.

    counted: by Nsight Compute; the hardware's counters of bank conflicts hold waiting as well. rival: what was timed beside.
    """
    if metric in WORDS:
        return WORDS[metric].replace("the rival", known(rival)) if rival else WORDS[metric]
    what = agreement.label(metric) if counted and metric in METRICS else meaning(metric)[1]
    return what.removeprefix(TRUTH) if metric.startswith("bound: ") or what.startswith(TRUTH) else what.partition(": ")[0]  # fmt: skip


def rival(points: pd.DataFrame) -> str:
    """What all points that were timed were timed beside, or nothing."""
    found = {r for r in points["rival"].dropna() if r} if "rival" in points else set()
    return str(found.pop()) if len(found) == 1 else ""


def unit_of(name: str, unit: str) -> str:
    """A unit where a metric's name does not hold it already; nothing for a plain ratio."""
    return "" if unit == "x" or unit in name.split() else unit


def scale(metric: str, values: Iterable[float]) -> tuple[float, str]:
    """What to multiply a metric's values by, and the unit that they are in then: milliseconds for seconds, percent for shares, and for
    bytes the largest unit that leaves none below 1."""
    unit = meaning(metric)[0]
    if unit == "s":
        return 1e3, "ms"
    if unit == "share":
        return 100.0, "%"
    if unit == "bytes":
        least = min((v for v in values if v > 0), default=0)
        power = next((n for n in (3, 2, 1) if least >= 1024**n), 0)
        return 1024.0**-power, ("bytes", "KiB", "MiB", "GiB")[power]
    return 1.0, unit


def expanded(points: pd.DataFrame) -> tuple[pd.DataFrame, list[str], dict[str, str]]:
    """Points with a column for each tunable that varies within a stage and, where all are cubes, one for the size.

    Gives them, the columns that say what varies (sizes last), and each stage's other tunables in words.
    """
    rows, varied, fixed = points, [], {}
    if "tunables" in points and "stage" in points:
        own = [json.loads(t) if isinstance(t, str) and t else {} for t in points.tunables]
        found = pd.DataFrame(own, index=points.index)
        varied = [c for c in found if c not in points and found.groupby(points.stage)[c].nunique().max() > 1]
        rows = points.assign(
            **{c: found[c] for c in varied},
            tunables=[" ".join(f"{k}={v}" for k, v in t.items() if k in varied) for t in own],
        )
        for stage, t in zip(points.stage, own, strict=True):
            if rest := " ".join(f"{k}={v}" for k, v in t.items() if k not in varied):
                fixed[stage] = rest
    if {"m", "n", "k"} <= set(rows):
        cubes = bool(((rows.m == rows.n) & (rows.n == rows.k)).all())
        rows = rows.assign(size=rows.m) if cubes else rows
        varied = [*varied, *(["size"] if cubes else ["m", "n", "k"])]
    return rows, varied, fixed


def axes(
    rows: pd.DataFrame, variables: Sequence[str], claimed: Sequence[str] = (), listed: Sequence[str] = ()
) -> tuple[str, str]:
    """The columns that show what a run asks, for x and y; the same twice where only one varies, '' where none does.

    Along x what is swept: the size or tunable with most values within a stage, from SWEEP on. Where nothing is, the metric that most
    claims are about, as a cause. Along y what most claims are about or, with a cause along x, how fast the points are, if that is
    asked at all. A metric that is only ever one of two values comes after the others.
    variables: sizes and tunables; claimed: the metric of each claim, in order; listed: metrics of the definition.
    """
    kinds = {c: int(rows[c].nunique()) for c in rows if rows[c].dtype.kind in "iuf"}
    varied = [c for c in kinds if kinds[c] > 1]
    within = {c: int(rows.groupby("stage")[c].nunique().max()) if "stage" in rows else kinds[c] for c in variables}
    sweeps = sorted((c for c in variables if c in varied), key=lambda c: (-within[c], -rows[c].count()))
    asked = [m for m in dict.fromkeys((*claimed, *listed)) if m in SPEEDS]
    speed = next((c for m in asked for c in (m, SPEEDS[m]) if c in varied), "")
    fast = {*SPEEDS, *SPEEDS.values()}
    said = Counter("" if m in fast else m for m in claimed)
    told = sorted((m for m in said if m in varied), key=lambda m: (kinds[m] == 2, -said[m]))
    others = [c for c in dict.fromkeys((*listed, *varied)) if c in varied and c not in variables]
    if sweeps and within[sweeps[0]] >= SWEEP:
        x = sweeps[0]
        first = [speed] if speed and all(said[""] >= said[m] for m in told if kinds[m] > 2) else []
    else:
        x = next(iter([*told, *sweeps, *others]), "")
        first = [speed] if speed else []
    y = next((c for c in [*first, *told, speed, *others] if c and c != x), x)
    return x, y


def _explorer(
    rows: pd.DataFrame, asked: tuple[str, str], variables: Sequence[str], metrics: Sequence[str], shown: Sequence[str],
    labels: Mapping[str, str],
) -> list[dict[str, Any]]:  # fmt: skip
    """The plot of points with the axes asked for, or nothing where there is little to see."""
    varies = [c for c in (*variables, *metrics) if rows[c].nunique() > 1]
    if len(rows) <= 2 or len(varies) < 2 or "stage" not in rows:
        return []
    named = [c for c in ("run", "stage", "tunables", *(() if "size" in rows else "mnk")) if c in rows]
    kept, note = rows[[*dict.fromkeys((*named, *varies))]].assign(run=_ids(rows)[1]), ""
    sizes = sorted(rows["size"].unique()) if "size" in varies else []
    if 1 < len(sizes) <= len(charts.DOTS) and asked[0] != "size":
        kept = kept.assign(dot=[float(charts.DOTS[sizes.index(s)]) for s in rows["size"]])
        note = "The larger the mark, the larger the matrices."
    lists = [
        ("sizes and tunables", [c for c in variables if c in varies]),
        ("metrics of the table", [c for c in shown if c in varies]),
        ("other metrics", [c for c in varies if c not in shown and c not in variables]),
    ]
    return [explorer(kept, asked, "stage", lists, labels, note)]


def explorer(
    rows: pd.DataFrame, chosen: tuple[str, str], group: str, lists: Sequence[tuple[str, Sequence[str]]],
    labels: Mapping[str, str], note: str = "", groups: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """A block: harness.html.charts.explorer with lists of what its axes may show, under titles."""
    log = {c: charts.geometric(rows[c], labels[c]) for _, names in lists for c in names}
    return {
        "kind": "explorer", "chart": charts.explorer(rows, *chosen, group, labels, groups), "note": note,
        "lists": [(title, [(c, labels[c], log[c]) for c in names]) for title, names in lists if names],
        "axes": [(axis, c, log[c]) for axis, c in zip("xy", chosen, strict=True)],
        "undrawn": charts.undrawn(rows, chosen, group, labels),
    }  # fmt: skip


def _same(rows: pd.DataFrame, variables: Sequence[str], fixed: Mapping[str, str]) -> list[dict[str, Any]]:
    """What all points have in common, said once."""
    found = [f"{c} {_yes(rows[c].iloc[0])}" for c in ("stage", "device", "backend") if c in rows and rows[c].nunique() == 1]  # fmt: skip
    found += [f"{c} {count(rows[c].iloc[0])}" for c in variables if c in ("size", "m", "n", "k") and rows[c].nunique() == 1]  # fmt: skip
    blocks = [say(f"The same in all: {', '.join(found)}.")] if found else []
    if len(fixed) == 1:
        blocks.append(say(f"Tunables of {next(iter(fixed))} that do not vary: {next(iter(fixed.values()))}."))
    elif fixed:
        blocks.append(folded("tunables that do not vary", [facts(list(fixed.items()))]))
    return blocks


def _columns(rows: pd.DataFrame, variables: Sequence[str], judged: bool) -> tuple[list[Head], list[list[str]]]:
    """Heads and cells of what tells the points apart. judged: whether the metrics say already which are right."""
    several_stages = "stage" in rows and rows.stage.nunique() > 1
    names = [*(["stage"] if several_stages else []), *(c for c in variables if rows[c].nunique() > 1)]
    names += [c for c in ("repeat", "device", "backend") if c in rows and rows[c].nunique() > 1]
    names += ["ok"] if "ok" in rows and not judged and not rows.ok.fillna(False).astype(bool).all() else []
    heads = [Head(c, left=rows[c].dtype.kind not in "iuf") for c in names]
    columns = [
        [("" if pd.isna(v) else count(v) if c in ("size", "m", "n", "k") else f"{v:g}") if rows[c].dtype.kind in "iuf" else _yes(v) for v in rows[c]]
        for c in names
    ]  # fmt: skip
    origin, ids = _ids(rows)
    heads.append(Head("point" if origin else "run", left=not origin, about=origin))
    columns.append(ids)
    return heads, [list(cells) for cells in zip(*columns, strict=True)]


def _ids(rows: pd.DataFrame) -> tuple[str, list[str]]:
    """The run that all points are of, and their numbers in it; or nothing, and each point's run in short."""
    found = rows.run.astype(str)
    parts = found.str.rpartition("/")
    if parts[0].nunique() == 1 and parts[0].iloc[0]:
        return parts[0].iloc[0], list(parts[2])
    return "", [r.partition("Z-")[2] or r for r in found]


def _values(metric: str, values: pd.Series) -> list[str]:
    if meaning(metric)[1].startswith(TRUTH):
        return ["" if pd.isna(v) else "yes" if v else "no" for v in values]
    return ["" if pd.isna(v) else figure(v, 4) for v in values]


def _label(metric: str, name: str, unit: str) -> str:
    if meaning(metric)[1].startswith(TRUTH):
        return f"{name}: 1 yes, 0 no"
    return f"{name}, {unit}" if unit else name


def _yes(value: Any) -> str:
    return {True: "yes", False: "NO"}.get(value, "" if value is None or value != value else str(value))
