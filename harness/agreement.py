"""Simulated against measured: where they must be equal, where the hardware adds arbitration, where they differ and on which line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from .metrics import (
    CONFLICTS_LD,
    CONFLICTS_ST,
    COUNTED_IN_CODE,
    FFMA,
    METRICS,
    PIPES,
    REQUESTS_LD,
    REQUESTS_ST,
    SECTORS_LD,
    SECTORS_ST,
    SHARED,
    SHARED_EXCESS,
    WAVEFRONTS_LD,
    WAVEFRONTS_ST,
)
from .toolchain import Kernel

THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
SHARED_LIMIT = "launch__occupancy_limit_shared_mem"

EXACT = (
    *sorted(COUNTED_IN_CODE), SHARED_EXCESS, FFMA, REQUESTS_LD, REQUESTS_ST, SECTORS_LD, SECTORS_ST,
    *(f"smsp__{name}.sum" for name in ("inst_executed", "thread_inst_executed", "thread_inst_executed_pred_on")),
    *(f"smsp__inst_executed_op_{space}_{op}.sum" for space in ("global", "shared", "local") for op in ("ld", "st")),
    "smsp__inst_executed_op_ldgsts.sum", *(f"sm__inst_executed_pipe_{pipe}.sum" for pipe in PIPES), THEORETICAL,
    *(name for name, m in METRICS.items() if name.startswith("launch__") and name != SHARED_LIMIT),
)  # fmt: skip
"""Equal on an H200 for every kernel tried; a difference is an error in the simulator, or the other kernel was measured."""
ARBITRATED = {
    CONFLICTS_LD: WAVEFRONTS_LD,
    CONFLICTS_ST: WAVEFRONTS_ST,
    WAVEFRONTS_LD: WAVEFRONTS_LD,
    WAVEFRONTS_ST: WAVEFRONTS_ST,
}
"""Counted in the pipe, where requests also wait for one another: metric -> the wavefronts its excess is a share of."""
MOST_ARBITRATION = 0.25
"""Share of the wavefronts above which an excess is no longer put down to arbitration."""
ROUNDING = 1e-4
LINES = 5

SUMMED = {f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "st")}
"""ncu adds these up from hits and misses. With many metrics it reads them in different passes, and caches vary from pass to
pass: naive_uncoalesced at 512 gave 262,144 three times alone, and 260,376 to 263,709 among many metrics; tiled2d at 1000x999x1001 up to
3.3 % more; stores of tiled2d with BK=9 and of vectorized at 1024 from 24 % less to 41 % more (experiment bank_conflicts; H200, ncu
2025.3.1). The sectors that ncu works out from the addresses were equal each time."""
SECTORS_IN_CODE = "memory_l2_theoretical_sectors_global"
MOST_PASS_NOISE = 0.5
BY_PASSES = "hits and misses were read in different passes; the sectors counted in the code are equal"

EQUAL, ARBITRATION, DIFFERS, EXPLAINED, IMPLAUSIBLE = "equal", "arbitration", "differs", "explained", "implausible"


@dataclass(frozen=True)
class LineDifference:
    """A source line whose instructions were counted differently."""

    file: str
    line: int
    simulated: float
    measured: float


@dataclass(frozen=True)
class Comparison:
    """One metric, simulated and measured.

    verdict  'equal'; 'arbitration': the hardware counter holds what requests waited for one another, and no more;
             'explained': may differ, and `why` says so; 'differs': may not; 'implausible': the measurement cannot be
    lines    where they differ, greatest difference first; for counts that ncu has per instruction
    """

    launch: str
    metric: str
    simulated: float
    measured: float
    verdict: str
    why: str = ""
    lines: tuple[LineDifference, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict in (EQUAL, ARBITRATION, EXPLAINED)

    @property
    def excess(self) -> float:
        """Measured minus simulated."""
        return self.measured - self.simulated


def compare(
    launch: str,
    simulated: Mapping[str, float],
    measured: Mapping[str, float],
    *,
    per_pc: Mapping[str, Mapping[int, float]] | None = None,
    counts: pd.DataFrame | None = None,
    kernel: Kernel | None = None,
    implausible: Callable[[str], str] = lambda metric: "",
) -> list[Comparison]:
    """Every metric of one launch that has both values and a rule, in the order of harness.metrics.

    per_pc: metric -> {byte offset: measured}; counts and kernel: the simulator's per instruction. implausible: why a
    measured value cannot be, or nothing.
    """
    found = []
    for name in METRICS:
        if name not in simulated or name not in measured:
            continue
        s, m = float(simulated[name]), float(measured[name])
        if name not in EXACT and name not in ARBITRATED and name != SHARED_LIMIT:
            continue
        if reason := implausible(name):
            found.append(Comparison(launch, name, s, m, IMPLAUSIBLE, reason))
        elif same(s, m) or (math.isnan(s) and math.isnan(m)):
            found.append(Comparison(launch, name, s, m, EQUAL))
        elif name in ARBITRATED:
            found.append(_arbitrated(launch, name, s, m, simulated))
        elif name == SHARED_LIMIT:
            found.append(_carveout(launch, s, m, simulated, measured))
        elif name in SUMMED and abs(m - s) <= MOST_PASS_NOISE * s and _equal(SECTORS_IN_CODE, simulated, measured):
            found.append(Comparison(launch, name, s, m, EXPLAINED, BY_PASSES))
        else:
            where = _lines(name, per_pc, counts, kernel)
            reason = "must be equal" if where or where is None else "must be equal, as every source line is"
            found.append(Comparison(launch, name, s, m, DIFFERS, reason, where or ()))
    if ACHIEVED in measured and THEORETICAL in simulated:
        found.append(_occupancy(launch, simulated[THEORETICAL], measured[ACHIEVED], implausible(ACHIEVED)))
    return found


def _equal(name: str, simulated: Mapping[str, float], measured: Mapping[str, float]) -> bool:
    return name in simulated and name in measured and same(float(simulated[name]), float(measured[name]))


def same(a: float, b: float) -> bool:
    """Whole numbers are counts, and equal or not; others (percent, waves) are equal up to ROUNDING."""
    return a == b or not (a.is_integer() and b.is_integer()) and math.isclose(a, b, rel_tol=ROUNDING)


def _arbitrated(launch: str, name: str, s: float, m: float, simulated: Mapping[str, float]) -> Comparison:
    whole = simulated.get(ARBITRATED[name], math.nan)
    share = (m - s) / whole if whole else math.inf
    if 0 <= share <= MOST_ARBITRATION:
        why = f"{m - s:,.0f} above the count in the code: requests that waited for one another ({100 * share:.2g} %), not conflicts"
        return Comparison(launch, name, s, m, ARBITRATION, why)
    why = "less than the access pattern needs" if share < 0 else "more than arbitration explains"
    return Comparison(launch, name, s, m, DIFFERS, why)


def _carveout(
    launch: str, s: float, m: float, simulated: Mapping[str, float], measured: Mapping[str, float]
) -> Comparison:
    """The driver chose a smaller shared memory than the largest; harmless where the occupancy is the same."""
    alike = same(float(simulated.get(THEORETICAL, math.nan)), float(measured.get(THEORETICAL, math.nan)))
    if m < s and (alike or THEORETICAL not in measured):
        return Comparison(
            launch,
            SHARED_LIMIT,
            s,
            m,
            EXPLAINED,
            "the driver gave shared memory less than it could, and the occupancy is the same",
        )
    return Comparison(launch, SHARED_LIMIT, s, m, DIFFERS)


def _occupancy(launch: str, theoretical: float, achieved: float, implausible: str) -> Comparison:
    if implausible:
        return Comparison(launch, ACHIEVED, theoretical, achieved, IMPLAUSIBLE, implausible)
    if achieved > theoretical * 1.02 + 0.1:
        return Comparison(
            launch, ACHIEVED, theoretical, achieved, DIFFERS, "more warps than the theoretical occupancy allows"
        )
    why = "achieved beside theoretical"
    if achieved < 0.9 * theoretical:
        why += ": too few blocks to fill every SM to the end, or blocks that end at different times"
    return Comparison(launch, ACHIEVED, theoretical, achieved, EXPLAINED, why)


_COLUMNS = {
    "inst_executed": ("executed",),
    "thread_inst_executed": ("threads",),
    "thread_inst_executed_true": ("threads_on",),
    SHARED: ("predicted",),
    "memory_l1_wavefronts_shared_ideal": ("predicted_ideal",),
    SHARED_EXCESS: ("predicted", "predicted_ideal"),
    "memory_l2_theoretical_sectors_global": ("sectors",),
    "memory_l2_theoretical_sectors_global_ideal": ("sectors_ideal",),
}
"""Metric -> the simulator's column of it, or (column, column to subtract)."""


def per_instruction(name: str, counts: pd.DataFrame) -> pd.Series | None:
    """The simulator's count of a metric per instruction (index pc), or None where ncu has no such metric per instruction."""
    columns = _COLUMNS.get(name)
    if columns is None:
        return None
    return counts[columns[0]] - counts[columns[1]] if len(columns) == 2 else counts[columns[0]]


def _measured_per_pc(name: str, per_pc: Mapping[str, Mapping[int, float]]) -> Mapping[int, float] | None:
    if name == SHARED_EXCESS and SHARED in per_pc:
        ideal = per_pc.get("memory_l1_wavefronts_shared_ideal", {})
        return {pc: value - ideal.get(pc, 0.0) for pc, value in per_pc[SHARED].items()}
    return per_pc.get(name)


def _lines(
    name: str, per_pc: Mapping[str, Mapping[int, float]] | None, counts: pd.DataFrame | None, kernel: Kernel | None
) -> tuple[LineDifference, ...] | None:
    """Where a count differs, or None where it is not known per instruction."""
    if per_pc is None or counts is None or kernel is None:
        return None
    simulated, measured = per_instruction(name, counts), _measured_per_pc(name, per_pc)
    if simulated is None or measured is None:
        return None
    table = line_table(kernel, {"simulated": dict(simulated), "measured": dict(measured)})
    off = table[table.simulated != table.measured]
    off = off.loc[(off.measured - off.simulated).abs().sort_values(ascending=False).index]
    return tuple(
        LineDifference(str(f), int(n), float(r.simulated), float(r.measured))
        for (f, n), r in off.head(LINES).iterrows()
    )


def line_table(kernel: Kernel, columns: Mapping[str, Mapping[int, float]]) -> pd.DataFrame:
    """Values per instruction (byte offset -> value) summed over source lines: index (file, line), a column each.

    An offset outside the kernel is put on line 0 of no file.
    """
    where = {i.pc: (i.file, i.line) for i in kernel.instructions}
    rows = [
        (*where.get(int(pc), ("", 0)), column, value)
        for column, values in columns.items()
        for pc, value in values.items()
    ]
    table = pd.DataFrame(rows, columns=["file", "line", "column", "value"])
    table = table.pivot_table(index=["file", "line"], columns="column", values="value", aggfunc="sum", fill_value=0.0)
    return table.reindex(columns=list(columns), fill_value=0.0)


def arbitration(measured: Mapping[str, float], copies: float = 0.0) -> float:
    """Wavefronts that waiting added to shared memory: what the pipe counted above what the code needs. NaN if not measured.

    copies: wavefronts counted in the code and not by these pipe counters: those of copies into shared memory (LDGSTS), and
    those that the hardware saves where neighbours read the same words.
    Where they are not known, the difference may be below 0, and is reported as NaN.
    """
    if not {WAVEFRONTS_LD, WAVEFRONTS_ST, SHARED} <= measured.keys():
        return math.nan
    excess = measured[WAVEFRONTS_LD] + measured[WAVEFRONTS_ST] + copies - measured[SHARED]
    return excess if excess >= 0 else math.nan


def label(metric: str) -> str:
    """What a metric means where a measured value stands beside it: the pipe's counters of bank conflicts count waiting, too."""
    meaning = METRICS[metric].meaning
    return meaning.replace("bank conflicts add", "bank conflicts or waiting add") if metric in ARBITRATED else meaning
