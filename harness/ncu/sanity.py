"""The sanity gate: counters that cannot be are marked, and never used or plotted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..metrics import COUNTED_IN_CODE, FFMA, REQUESTS_LD, REQUESTS_ST, SECTORS_LD, SECTORS_ST, SHARED, SHARED_IDEAL
from ..problem import Problem
from ..stage import Launch
from .invocation import Options
from .reading import Counted

DRAM_READ = "dram__bytes_read.sum"
SLACK = 0.01
"""Relative: what ncu's passes may differ by."""
ALL = "*"
"""In place of a metric: every value of the launch."""
Marks = dict[tuple[str, str], str]
"""(launch label, metric or ALL) -> why it cannot be."""

_ORDERED = (
    (SHARED_IDEAL, 1.0, SHARED, "fewer wavefronts than the ideal"),
    (REQUESTS_LD, 1.0, SECTORS_LD, "fewer sectors than requests"),
    (REQUESTS_ST, 1.0, SECTORS_ST, "fewer sectors than requests"),
    ("thread_inst_executed", 1.0 / 32, "inst_executed", "more than 32 threads to a warp instruction"),
    ("thread_inst_executed_true", 1.0, "thread_inst_executed", "more threads with the predicate on than threads"),
)
"""(smaller, scale, larger, what it means where scale * smaller is above larger)."""


def check(counted: Sequence[Counted], problem: Problem, launches: Sequence[Launch], options: Options) -> Marks:
    """What cannot be, of a stage's counts on a problem. launches: all that the stage makes."""
    marks: Marks = {}
    for one in counted:
        for name, value in one.values.items():
            if why := _impossible(name, value):
                marks[one.label, name] = why
        for small, scale, large, why in _ORDERED:
            pair = ((one.label, small), (one.label, large))
            if not {small, large} <= one.values.keys() or any(p in marks for p in pair):
                continue
            if scale * one.values[small] > one.values[large] * (1 + 1e-9):
                marks |= dict.fromkeys(pair, why)
    if len(counted) == len(launches):
        marks |= _work(counted, problem, launches)
        marks |= _traffic(counted, problem, options)
    return marks


def why(marks: Marks, label: str, metric: str) -> str:
    """Why a value cannot be, or nothing."""
    return marks.get((label, ALL)) or marks.get((label, metric), "")


def _impossible(name: str, value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return "not a number"
    if value < 0:
        return "negative"
    if name in COUNTED_IN_CODE and value != int(value):
        return "not a whole number"
    # A .max of active cycles is a share of the average unit's cycles: of a launch that leaves units idle it may exceed 100.
    # (tiled2d_edge at 1000x999x1001, H200: 79 % with an .avg of 19 %; the busiest unit was active 4.1 times the average.)
    share = "pct_of_peak" in name or name.endswith((".pct", "_pct"))
    if share and value > 105 and ".max.pct_of_peak_sustained_active" not in name:
        return "more than 100 %"
    if name == "gpu__time_duration.sum" and value == 0:
        return "no time at all"
    return ""


def _work(counted: Sequence[Counted], problem: Problem, launches: Sequence[Launch]) -> Marks:
    """Multiply-adds must be M*N*K and what padding to the tiles adds: else what ncu saw was not this problem.

    The padding along K is not known here: less than the larger side of the tile, or than 128. Each cell may take two more
    multiply-adds, for alpha and beta. A stage that uses no FFMA is not checked.
    """
    if any(FFMA not in c.values or math.isnan(c.values[FFMA]) for c in counted):
        return {}
    done, least = sum(c.values[FFMA] for c in counted), problem.m * problem.n * problem.k
    most = math.inf
    if all(launch.tile for launch in launches):
        cells = sum(launch.blocks * launch.tile[0] * launch.tile[1] for launch in launches)
        step = max(128, *(side for launch in launches for side in launch.tile))
        most = cells * (problem.k + step + 1)
    if done == 0 or least <= done <= most:
        return {}
    reason = f"{done:,.0f} multiply-adds, where this problem takes {least:,} and at most {most:,.0f} with padding"
    return {(c.label, ALL): reason for c in counted}


def _traffic(counted: Sequence[Counted], problem: Problem, options: Options) -> Marks:
    """With the caches flushed before each pass, all of A and B must come from DRAM."""
    if options.cache != "all" or any(DRAM_READ not in c.values for c in counted):
        return {}
    least = problem.compulsory_bytes - 4 * problem.m * problem.n
    read = sum(c.values[DRAM_READ] for c in counted)
    if not read < (1 - SLACK) * least:
        return {}
    reason = f"{read:,.0f} bytes read from DRAM with cold caches, where A and B alone are {least:,}"
    return {(c.label, DRAM_READ): reason for c in counted}
