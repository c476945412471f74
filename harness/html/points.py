"""The section on points, of every page that has some: a table, and a plot to explore them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from .. import frames
from ..expectations import meaning
from ..report import count, figure
from . import charts
from .page import Section, plot, table

SHOWN = ("tflops", "time_ms", "rival_ratio", "bank_conflict_share", "sectors_per_request_ld", "shared_words_read_per_fma",
         "register_reads_per_ffma", "sm__maximum_warps_per_active_cycle_pct", "launch__registers_per_thread")  # fmt: skip
"""Metrics in the table of several runs, where they have them."""


def section(points: pd.DataFrame, metrics: Sequence[str] = ()) -> list[Section]:
    """A table of all points and, where there are several with figures, a plot to explore them. metrics: to show besides SHOWN."""
    if points.empty:
        return []
    keys = [c for c in ("stage", "m", "n", "k", "tunables", "device", "backend", "ok") if c in points]
    metrics = [c for c in dict.fromkeys((*metrics, *SHOWN)) if c in points and points[c].notna().any()]
    heads = [f"<{c}" if points[c].dtype.kind not in "if" else c for c in keys]
    rows = []
    for row in points.to_dict("records"):
        words = [
            frames.tunables(row[c]) if c == "tunables" else count(row[c]) if c in ("m", "n", "k") else _yes(row[c])
            for c in keys
        ]
        rows.append([row["run"], *words, *(figure(row[c], 4) for c in metrics)])
    blocks = [table(["<run", *heads, *map(_title, metrics)], rows, sortable=True)]
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
    unit, what = meaning(metric)
    return f"{what}, {unit}" if unit else what


def _yes(value: Any) -> str:
    return {True: "yes", False: "NO"}.get(value, "" if value is None or value != value else str(value))
