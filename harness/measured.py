"""What ncu counted, joined to what was simulated: values for the tables, and where the two agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from . import agreement, metrics, ncu
from .problem import Problem
from .stage import Launch
from .toolchain import Binary

SOURCE = "ncu"
IMPLAUSIBLE = "ncu implausible"
"""Source of a value that the sanity gate refuses: recorded, never used."""
REPORT = "report.ncu-rep"


@dataclass(frozen=True)
class Simulated:
    """What a launch is compared with: its metrics by name, and its counts per instruction."""

    metrics: Mapping[str, float]
    counts: pd.DataFrame


@dataclass
class Measured:
    """A stage's counters. `marks` are those that cannot be; `simulated` is by launch label, empty where nothing was simulated."""

    collection: ncu.Collection
    marks: ncu.Marks
    simulated: Mapping[str, Simulated]
    binary: Binary | None

    @cached_property
    def launches(self) -> dict[str, metrics.Values]:
        """Launch label -> every plausible value, and the metrics that follow from them."""
        useful = {label: s.metrics.get("fma_useful") for label, s in self.simulated.items()}
        return {
            c.label: metrics.derived(
                {n: v for n, v in c.values.items() if not ncu.why(self.marks, c.label, n)}, useful.get(c.label)
            )
            for c in self.collection.launches
        }

    @cached_property
    def totals(self) -> metrics.Values:
        """Of all launches: sums of what adds up, the first launch's value of what does not, for metrics that all have."""
        tables = list(self.launches.values())
        known = [n for n in metrics.METRICS if all(n in t for t in tables) and not metrics.METRICS[n].over]
        return metrics.derived(
            {n: sum(t[n] for t in tables) if metrics.METRICS[n].additive else tables[0][n] for n in known}
        )

    @property
    def copies(self) -> float:
        """Wavefronts that ncu counts in the code and the pipe's counters do not, by the simulator: those of copies into shared
        memory (LDGSTS) first of all."""
        apart = (metrics.WAVEFRONTS_LD, metrics.WAVEFRONTS_ST)
        return sum(s.metrics[metrics.SHARED] - sum(s.metrics[n] for n in apart) for s in self.simulated.values())

    @cached_property
    def comparisons(self) -> list[agreement.Comparison]:
        """Simulated against measured, launch by launch."""
        found = []
        for c in self.collection.launches:
            if c.label not in self.simulated:
                continue
            sim = self.simulated[c.label]
            values = metrics.derived(c.values)
            kernel = self.binary.kernels.get(c.kernel) if self.binary else None
            found += agreement.compare(
                c.label, sim.metrics, values, per_pc=c.per_pc, counts=sim.counts, kernel=kernel,
                implausible=lambda metric, label=c.label: ncu.why(self.marks, label, metric),
            )  # fmt: skip
        return found

    def rows(self) -> list[tuple]:
        """(launch, metric, pc, value, unit, source) of everything ncu counted; per instruction, zeros are left out."""
        rows: list[tuple] = []
        for c in self.collection.launches:
            for name, value in c.values.items():
                source = IMPLAUSIBLE if ncu.why(self.marks, c.label, name) else SOURCE
                rows.append((c.label, name, None, value, self._unit(c, name), source))
            source = IMPLAUSIBLE if ncu.why(self.marks, c.label, "sass__inst_executed_per_opcode") else SOURCE
            rows += [(c.label, f"opcode: {opcode}", None, n, "inst", source) for opcode, n in c.opcodes.items()]
            for name, table in c.per_pc.items():
                source = IMPLAUSIBLE if ncu.why(self.marks, c.label, name) else SOURCE
                rows += [(c.label, name, pc, v, self._unit(c, name), source) for pc, v in table.items() if v]
        rows += [
            (None, n, None, v, metrics.METRICS[n].unit, SOURCE) for n, v in self.totals.items() if n in metrics.METRICS
        ]
        return rows

    def _unit(self, counted: ncu.Counted, name: str) -> str:
        return metrics.METRICS[name].unit if name in metrics.METRICS else counted.units.get(name, "")

    def files(self) -> dict[str, bytes]:
        """What the run directory keeps beside the tables."""
        return {REPORT: self.collection.report}

    def to_json(self) -> dict[str, Any]:
        options = self.collection.options
        return {
            "ncu": self.collection.version,
            "clock": options.clock,
            "cache": options.cache,
            "set": options.set or None,
            "groups": options.groups,
            "passes": self.collection.passes,
            "launches": self.launches,
            "totals": self.totals,
            "missing": self.collection.missing,
            "implausible": [{"launch": launch, "metric": m, "why": why} for (launch, m), why in self.marks.items()],
            "comparisons": [asdict(c) for c in self.comparisons],
            "notes": self.collection.notes,
        }


def join(
    collection: ncu.Collection,
    problem: Problem,
    launches: Sequence[Launch],
    simulated: Mapping[str, Simulated] | None = None,
    binary: Binary | None = None,
) -> Measured:
    """A collection with the sanity gate applied. launches: all that the stage makes; simulated: by launch label."""
    marks = ncu.check(collection.launches, problem, launches, collection.options)
    return Measured(collection, marks, simulated or {}, binary)
