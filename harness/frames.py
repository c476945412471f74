"""Tidy frames out of recorded runs: what notebooks, pictures and the HTML report look at.

A run's tables are long; these are a row a point, a line or a rung. Nothing here simulates or measures.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd

from . import device as devices
from . import isa
from . import stage as stages
from .comparison import Comparison
from .record import Run

SOURCES = ("timing", "ncu", "sim", "racecheck", "launches")
"""Of a metric's value, where a table has room for one: the first that there is."""
PER_PC = {
    "inst_executed": "executed",
    "memory_l1_wavefronts_shared": "wavefronts",
    "memory_l1_wavefronts_shared_ideal": "wavefronts_ideal",
    "memory_l2_theoretical_sectors_global": "sectors",
    "memory_l2_theoretical_sectors_global_ideal": "sectors_ideal",
    "lines": "lines",
}
"""Metric recorded per instruction -> column of `instructions`."""
LOCAL = ("local", "constant")


def contenders(table: pd.DataFrame) -> pd.DataFrame:
    """A table of harness.timings.COLUMNS whose `stage` tells a stage with other tunables from the stage: it names them, or says
    'tuned' where they are not the same on every problem. Stages keep their order; below each is what was tuned of it."""
    changed = table.get("changed", pd.Series(dtype=str)).replace("", None).dropna()
    if changed.empty:
        return table
    place = table.stage.map({name: n for n, name in enumerate(table.stage.unique())})
    table = table.loc[(2 * place + table.index.isin(changed.index)).sort_values(kind="stable").index]
    mine = table.stage[changed.index]
    words = changed.where(mine.map(changed.groupby(mine).nunique()) == 1, "tuned")
    return table.assign(stage=table.stage.where(~table.index.isin(changed.index), mine + " " + words))


def points(runs: Iterable[Run]) -> pd.DataFrame:
    """A row a point of the runs: the columns of runs.parquet, then one a metric of the whole point.

    Of a metric that several sources give, the first of SOURCES is taken. A metric takes the place of a column of words with its
    name. Claims are left out.
    """
    runs = list(runs)
    if not runs:
        return pd.DataFrame({"run": pd.Series(dtype=str)})
    table = pd.concat([run.runs for run in runs], ignore_index=True)
    long = _whole(runs)
    if long.empty:
        return table
    order = list(dict.fromkeys(long.sort_index().metric))
    wide = long.pivot(index="run", columns="metric", values="value")[order].reset_index()
    words = [
        c for c in wide if c != "run" and c in table and table[c].dtype.kind not in "iufb"
    ]  # `fault` is one as well
    table = table.drop(columns=words)
    fresh = [c for c in wide if c == "run" or c not in table]
    return table.merge(wide[fresh], on="run", how="left")


def sources(runs: Iterable[Run]) -> dict[str, list[str]]:
    """Metric -> where its values in `points` come from."""
    long = _whole(runs)
    return {m: list(mine.unique()) for m, mine in long.groupby("metric", sort=False).source} if len(long) else {}


def _whole(runs: Iterable[Run]) -> pd.DataFrame:
    """The values of whole points, one a metric: of the first of SOURCES that has it. In the order in which they were recorded."""
    values = []
    for run in runs:
        whole = run.values if (run.path / "values.parquet").exists() else pd.DataFrame()
        if len(whole):
            values.append(whole[whole.pc.isna() & whole.launch.isna() & whole.source.isin(SOURCES)])
    if not values:
        return pd.DataFrame()
    long = pd.concat(values, ignore_index=True)
    long["rank"] = long.source.map(SOURCES.index)
    return long.sort_values("rank", kind="stable").drop_duplicates(["run", "metric"])


def instructions(run: Run) -> pd.DataFrame:
    """A row an instruction of a recorded profile: kernel, pc, opcode, file, line, text, sass, and what it did in all launches.

    Columns executed, wavefronts, wavefronts_ideal, sectors, sectors_ideal, lines: from the simulator, or from Nsight
    Compute where nothing was simulated. `cycles` are of an SM, for the slower of issuing it and moving its data.
    """
    table = run.lines.copy()
    table["sass"] = _sass(run, table)
    counted = run.values[run.values.pc.notna() & run.values.metric.isin(PER_PC)]
    source = next((s for s in ("sim", "ncu") if (counted.source == s).any()), None)
    counted = counted[counted.source == source].assign(column=counted.metric.map(PER_PC))
    counted["kernel"] = counted.launch.map(_kernels(run)).fillna("")
    wide = counted.pivot_table(index=["kernel", "pc"], columns="column", values="value", aggfunc="sum").reset_index()
    table = table.merge(wide, on=["kernel", "pc"], how="left")
    for column in PER_PC.values():
        table[column] = (table[column] if column in table else pd.Series(math.nan, table.index)).fillna(0.0)
    spaces = [_space(opcode) for opcode in table.opcode]
    outside = ~pd.Series(spaces, table.index).isin(("global", "generic"))
    table.loc[outside, ["sectors", "sectors_ideal", "lines"]] = 0.0
    device = devices.find(run.manifest["device"])
    issue, data = table.executed / device.partitions, (table.wavefronts + table.lines) / device.data_wavefronts
    table["issue"], table["data"] = issue, data
    return table


def _space(opcode: str) -> str:
    found = isa.access(SimpleNamespace(base=opcode.split(".")[0], opcode=opcode))
    return found.space if found else ""


def _kernels(run: Run) -> dict[str, str]:
    """Launch label -> kernel."""
    known = {launch["name"]: launch["kernel"] for launch in run.manifest.get("launches") or []}
    names = list(run.lines.kernel.unique())
    labels = [x for x in run.values.launch.dropna().unique() if x not in known]
    return known | ({label: names[0] for label in labels} if len(names) == 1 else {})


def _sass(run: Run, table: pd.DataFrame) -> list[str]:
    """The machine code's text of each row, or its opcode where the run has no sass.txt."""
    found: dict[tuple[str, int], str] = {}
    kernel = ""
    path = run.path / "sass.txt"
    for line in path.read_text().splitlines() if path.exists() else ():
        if m := re.match(r"// (\S+): ", line):
            kernel = m[1]
        elif m := re.match(r"/\*([0-9a-f]+)\*/ (.*?) ;", line):
            found[kernel, int(m[1], 16)] = m[2]
    keys = zip(table.kernel, table.pc, table.opcode, strict=True)
    return [found.get((kernel, int(pc)), opcode) for kernel, pc, opcode in keys]


def source_lines(code: pd.DataFrame) -> pd.DataFrame:
    """`instructions` by source line: file, line, text, the counts, `cycles` and `share` of them, costliest first."""
    columns = [*PER_PC.values(), "issue", "data"]
    table = code.groupby(["file", "line"], as_index=False).agg({"text": "first", **dict.fromkeys(columns, "sum")})
    table["cycles"] = table[["issue", "data"]].max(axis=1)
    table["share"] = table.cycles / (table.cycles.sum() or math.nan)
    return table[table.executed > 0].sort_values("cycles", ascending=False, ignore_index=True)


def rungs(table: pd.DataFrame, value: str) -> pd.DataFrame:
    """stage, parent, value for harness.plots.steps, in ladder order; a parent that has no row is left out.

    table: a row a stage (the first counts), with the column named; where it has ms_lo and ms_hi and the value is tflops,
    lo and hi follow from them.
    """
    table = table.drop_duplicates("stage").set_index("stage")
    rows = []
    for stage in stages.ladder():
        if stage.name not in table.index:
            continue
        row = table.loc[stage.name]
        found = {"stage": stage.name, "parent": _ancestor(stage.name, set(table.index)), "value": float(row[value])}
        if value == "tflops" and "ms_lo" in table:
            found |= {"lo": row.tflops * row.ms / row.ms_hi, "hi": row.tflops * row.ms / row.ms_lo}
        rows.append(found)
    return pd.DataFrame(rows, columns=["stage", "parent", "value", *(["lo", "hi"] if rows and "lo" in rows[0] else [])])


def _ancestor(name: str, known: set[str]) -> str:
    parents = {s.name: s.parent for s in stages.ladder()}
    at = parents.get(name)
    while at and at not in known:
        at = parents.get(at)
    return at or ""


def claims(manifest: Mapping[str, Any]) -> pd.DataFrame:
    """The claims of a recorded or simulated profile: stage, claim, article, metric, claimed, simulated, measured, verdict.

    manifest: of a run, or Profile.to_json(). A row a metric that the claim may speak of; measured is NaN where nothing
    was, and for claims that compare two stages.
    """
    counted = (manifest.get("measured") or {}).get("totals", {})
    rows = [
        (
            manifest["stage"], c["says"], c["article"], r["metric"], c["expected"], r["value"],
            math.nan if c["against"] else counted.get(r["metric"], math.nan), c["verdict"],
        )
        for c in manifest["claims"]
        for r in c["readings"]
    ]  # fmt: skip
    columns = ["stage", "claim", "article", "metric", "claimed", "simulated", "measured", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> pd.DataFrame:
    """Metrics that two sets of totals both have and that are not zero: name, a, b, ratio (b over a), different first."""
    names = [n for n in a if n in b and a[n] and b[n] and math.isfinite(a[n]) and math.isfinite(b[n])]
    rows = [(n, a[n], b[n], b[n] / a[n]) for n in names]
    table = pd.DataFrame(rows, columns=["name", "a", "b", "ratio"])
    return table.sort_values("ratio", key=lambda r: -(r - 1).abs(), kind="stable", ignore_index=True)


def compared(comparison: Comparison) -> pd.DataFrame:
    """name, ratio, lo and hi for harness.plots.ratios: time in A over time in B."""
    rows = [
        (f"{r.stage}{' with other tunables' * bool(r.tunables)} {r.problem[0]:,}", r.ratio, r.lo, r.hi)
        for r in comparison.rows
    ]
    return pd.DataFrame(rows, columns=["name", "ratio", "lo", "hi"])


def tunables(words: str) -> str:
    """The tunables of a row of runs.parquet, as one types them."""
    return " ".join(f"{k}={v}" for k, v in json.loads(words or "{}").items())
