"""Read a .ncu-rep: whole-launch metrics, and those counted per instruction with their source lines.

With NVIDIA's ncu_report module (the PyPI package ncu-report, or the one in ncu's own folder); without it, whole-launch
metrics only, from `ncu --import --csv`.
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import TilescopeError
from ..metrics import METRICS
from ..stage import Dim3, Launch
from .invocation import DOMAIN, Ncu

_SCALES = {
    "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "kilo": 1e3, "mega": 1e6, "giga": 1e9,
}  # fmt: skip
_TIMES = {
    "nsecond": 1.0,
    "ns": 1.0,
    "usecond": 1e3,
    "us": 1e3,
    "msecond": 1e6,
    "ms": 1e6,
    "second": 1e9,
    "s": 1e9,
    "sec": 1e9,
}


@dataclass
class Counted:
    """One launch as ncu counted it.

    values   by ncu's names, in the units of harness.metrics (bytes, ns, %)
    units    ncu's own unit of each value that harness.metrics does not know
    strings  metrics whose value is text
    per_pc   metric -> {byte offset in the kernel: value}
    lines    byte offset -> (file, line)
    opcodes  warp instructions by opcode, where they were collected
    label    the launch's, once matched
    """

    kernel: str
    grid: Dim3 | None = None
    block: Dim3 | None = None
    values: dict[str, float] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    per_pc: dict[str, dict[int, float]] = field(default_factory=dict)
    lines: dict[int, tuple[str, int]] = field(default_factory=dict)
    sass: dict[int, str] = field(default_factory=dict)
    opcodes: dict[str, float] = field(default_factory=dict)
    ranges: tuple[str, ...] = ()
    label: str = ""

    def rename(self, alias: Mapping[str, str]) -> None:
        """Give values the names of harness.metrics. alias: name in this report -> ours."""
        for theirs, ours in alias.items():
            for table in (self.values, self.units, self.per_pc):
                if theirs in table:
                    table[ours] = table.pop(theirs)


def read(report: Path, ncu: Ncu | None = None) -> tuple[list[Counted], list[str]]:
    """(every launch in a report, in order; notes on how it was read). Raises TilescopeError where it cannot be read."""
    folders = ncu.python_folders if ncu else []
    module = load_module(folders)
    if module is not None:
        try:
            return read_with(module, report), []
        except Unreadable as e:
            why = str(e)
    else:
        why = "there is no ncu_report module here (pip install ncu-report)"
    if ncu is None:
        raise TilescopeError(
            f"{report.name} cannot be read: {why}.", "Install ncu-report, as new as the ncu that wrote it."
        )
    found = read_raw(export(ncu, report))
    if not found:
        raise TilescopeError(
            f"{report.name} cannot be read: {why}, and `ncu --import` shows no launch.", "Record it again."
        )
    return found, [f"read from ncu's CSV, so with no value per instruction: {why}"]


class Unreadable(Exception):
    """The module cannot read the report."""


def load_module(folders: Iterable[Path] = ()) -> ModuleType | None:
    """NVIDIA's ncu_report module: the installed one, else the first in `folders` that this Python can load."""
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        pass
    for folder in folders:
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module("ncu_report")
        except (ImportError, OSError):
            for name in ("ncu_report", "_ncu_report"):
                sys.modules.pop(name, None)
        finally:
            sys.path.remove(str(folder))
    return None


def read_with(module: Any, report: Path) -> list[Counted]:
    """Every launch of a report through ncu_report. Raises Unreadable where it holds none that the module can read."""
    try:
        context = module.load_report(str(report))
        ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
        found = [_action(r.action_by_idx(i)) for r in ranges for i in range(r.num_actions())]
    except Exception as e:  # the module raises many kinds
        raise Unreadable(f"ncu_report: {e}") from e
    if not found:
        raise Unreadable("ncu_report finds no launch in it (a report newer than the module, or a damaged one)")
    return found


def _action(action: Any) -> Counted:
    counted = Counted(action.name(), ranges=_ranges(action))
    base = None
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = _number(metric)
        if value is None:
            if text := metric.as_string():
                counted.strings[name] = text
        else:
            unit = metric.unit() or ""
            scaled = in_our_unit(name, value, unit)
            counted.values[name] = scaled
            if name not in METRICS:
                counted.units[name] = unit
        if name == "sass__inst_executed_per_opcode":
            counted.opcodes = _by_opcode(metric)
        elif _per_instruction(name) and (pcs := _pcs(metric)):
            counted.per_pc[name] = pcs
    for name in ("inst_executed", *counted.per_pc):
        if name in counted.per_pc:
            base = min(counted.per_pc[name])
            break
    if base is not None:
        _place(counted, action, base)
    counted.grid, counted.block = (_dim3(counted.values, what) for what in ("grid", "block"))
    return counted


def _per_instruction(name: str) -> bool:
    """Metrics whose instances are instructions: counted in the code, or stall samples of it."""
    return name.startswith(
        ("inst_executed", "thread_inst_executed", "memory_", "smsp__pcsamp_", "group:")
    ) or name.startswith("smsp__branch_targets")


def _place(counted: Counted, action: Any, base: int) -> None:
    """Addresses to byte offsets from the kernel's start, which is the lowest address that executed."""
    addresses = sorted({pc for table in counted.per_pc.values() for pc in table})
    counted.per_pc = {name: {pc - base: v for pc, v in table.items()} for name, table in counted.per_pc.items()}
    for pc in addresses:
        info = action.source_info(pc)
        if info is not None:
            counted.lines[pc - base] = (info.file_name(), int(info.line()))
        text = action.sass_by_pc(pc) if hasattr(action, "sass_by_pc") else ""
        if text:
            counted.sass[pc - base] = text.strip()


def _number(metric: Any, *index: int) -> float | None:
    """A metric's value, or None where it has none or is text."""
    if not index and hasattr(metric, "has_value") and not metric.has_value():
        return None  # of an instance it says no where there is one (ncu-report 2026.3.1)
    kind = metric.kind(*index)
    if kind in _kinds(metric, "STRING", "ANY", "UNKNOWN"):
        return None
    whole = kind in _kinds(metric, "UINT32", "UINT64")
    return float(metric.as_uint64(*index) if whole else metric.as_double(*index))


def _kinds(metric: Any, *names: str) -> list[int]:
    """Value kinds of this version of the module, by name."""
    return [kind for name in names if (kind := getattr(type(metric), f"ValueKind_{name}", None)) is not None]


def _pcs(metric: Any) -> dict[int, float]:
    """Instance values by address; two instances of one address add up."""
    if not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    found: dict[int, float] = {}
    for i in range(metric.num_instances()):
        value = _number(metric, i)
        if value is not None:
            pc = int(ids.as_uint64(i))
            found[pc] = found.get(pc, 0.0) + value
    return found


def _by_opcode(metric: Any) -> dict[str, float]:
    if not metric.num_instances() or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    pairs = ((ids.as_string(i), _number(metric, i)) for i in range(metric.num_instances()))
    return {opcode: value for opcode, value in pairs if opcode and value is not None}


def _ranges(action: Any) -> tuple[str, ...]:
    """Tilescope's NVTX ranges around a launch, outermost first."""
    state = action.nvtx_state()
    if state is None:
        return ()
    for identity in state.domains():
        domain = state.domain_by_id(identity)
        if domain is not None and domain.name() == DOMAIN:
            return tuple(domain.push_pop_ranges())
    return ()


def _dim3(values: Mapping[str, float], what: str) -> Dim3 | None:
    names = [f"launch__{what}_dim_{axis}" for axis in "xyz"]
    return tuple(int(values[n]) for n in names) if all(n in values for n in names) else None


def in_our_unit(name: str, value: float, unit: str) -> float:
    """A value of ncu's in the unit of harness.metrics, whichever of its own ncu showed it in: Kbyte/block, usecond, Ghz."""
    head = unit.split("/", 1)[0].strip().lower()
    if head in _TIMES and "/" not in unit:
        return value * _TIMES[head]
    if m := re.fullmatch(r"(k|m|g|t|kilo|mega|giga)(byte|b|hz|cycle|sector|inst|request)s?", head):
        return value * _SCALES[m[1]]
    return value


def export(ncu: Ncu, report: Path) -> str:
    """What `ncu --import --csv --page raw` prints. Raises TilescopeError where it fails."""
    words = [ncu.path, "--import", report, "--csv", "--page", "raw", "--print-units", "base"]
    try:
        out = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=300)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise TilescopeError(f"ncu cannot read {report.name}: {e}.") from e
    if out.returncode:
        said = (out.stdout + out.stderr).strip().splitlines()
        raise TilescopeError(
            f"ncu cannot read {report.name}: {said[-1] if said else out.returncode}.", "Record it again."
        )
    return out.stdout


def read_raw(text: str) -> list[Counted]:
    """Every launch of ncu's raw CSV page: a row of names, one of units, one for each launch."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    start = next((i for i, row in enumerate(rows) if "Kernel Name" in row), None)
    if start is None or len(rows) < start + 3:
        return []
    names, units = rows[start], rows[start + 1]
    found = []
    for row in rows[start + 2 :]:
        if len(row) != len(names):
            continue
        cells = dict(zip(names, row, strict=True))
        counted = Counted(cells["Kernel Name"].split("(")[0].strip())
        counted.grid, counted.block = (_extent(cells.get(f"{what} Size", "")) for what in ("Grid", "Block"))
        for name, unit, cell in zip(names, units, row, strict=True):
            if "__" not in name and name not in METRICS:
                continue
            value = _cell(cell)
            if value is None:
                if cell:
                    counted.strings[name] = cell
                continue
            counted.values[name] = in_our_unit(name, value, unit)
            if name not in METRICS:
                counted.units[name] = unit
        found.append(counted)
    return found


def _cell(text: str) -> float | None:
    """A number of ncu's CSV, with or without thousands separators; with instances behind it ('12 (1; 11)'), the first."""
    head = text.split(" (", 1)[0].strip().replace(",", "")
    try:
        return float(head) if head else None
    except ValueError:
        return math.nan if head.lower() in ("n/a", "nan", "inf", "-nan") else None


def _extent(text: str) -> Dim3 | None:
    numbers = tuple(map(int, re.findall(r"\d+", text)))
    return numbers if len(numbers) == 3 else None


def match(found: Sequence[Counted], launches: Sequence[Launch]) -> tuple[list[Counted], list[str]]:
    """(what ncu counted, each labelled with the launch it is; notes on launches without one).

    By the NVTX range 'launch LABEL' where there is one, else by kernel name and grid, in order. Of several counts of one
    launch the first is taken. Kernels that the stage does not launch are left out.
    """
    left = list(found)
    taken: list[Counted] = []
    notes: list[str] = []
    for launch in launches:
        one = next((c for c in left if f"launch {launch.label}" in c.ranges), None)
        one = one or next((c for c in left if c.kernel == launch.entry and c.grid in (None, tuple(launch.grid))), None)
        if one is None:
            notes.append(f"ncu did not count launch {launch.label} ({launch.entry})")
            continue
        left.remove(one)
        one.label = launch.label
        taken.append(one)
    if not taken:
        seen = ", ".join(sorted({c.kernel for c in found})) or "none"
        raise TilescopeError(
            f"ncu counted none of the stage's launches; it saw the kernels {seen}.", "Run `make doctor`."
        )
    return taken, notes
