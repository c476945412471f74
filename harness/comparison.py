"""`make compare A=RUN B=RUN`: did a stage become faster or slower? From the raw samples of two recorded runs; no GPU needed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import record as records
from . import statistics
from .errors import TilescopeError
from .statistics import VERDICTS

DOUBTFUL = frozenset(
    ("throttled", "power-capped", "busy", "unsettled", "unheld", "wrong", "damage", "fault", "few-rounds")
)
"""Flags of a point that speak against its time."""


@dataclass(frozen=True)
class Compared:
    """A stage on a problem in two runs: time in A over time in B, above 1 where B is faster, and B's verdict."""

    stage: str
    problem: tuple[int, int, int]
    a_ms: float
    b_ms: float
    ratio: float
    lo: float
    hi: float
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Rows that both runs have, and in words how the runs differ in what they were taken under."""

    a: str
    b: str
    rows: list[Compared]
    differences: list[str]

    @property
    def ok(self) -> bool:
        return not any(r.verdict == "SLOWER" for r in self.rows)

    def to_json(self) -> dict[str, Any]:
        counts = {v: sum(r.verdict == v for r in self.rows) for v in VERDICTS}
        return {
            "a": self.a, "b": self.b, "ok": self.ok, "verdicts": counts, "differences": self.differences,
            "rows": [asdict(r) for r in self.rows],
        }  # fmt: skip


def compare(a: str | Path, b: str | Path) -> Comparison:
    """How the times of run B compare with those of run A, from their raw samples.

    Samples of different runs are not paired: what drifts between runs is in the difference. A row with a flag that speaks
    against its time (throttled, busy, ...) is AMBIGUOUS. Raises TilescopeError where a run has no times, or they share none.
    """
    first, second = (records.load(x) for x in (a, b))
    points = []
    for run in (first, second):
        if not (run.path / "samples.parquet").exists() or "stage" not in run.runs or "rounds" not in run.runs:
            raise TilescopeError(
                f"run {run.id} has no times: it is of kind {run.manifest.get('kind')}.",
                "Give runs of `time`, `ladder` or a profile on a GPU.",
            )
        samples = run.table("samples").groupby("run").ms.apply(list).to_dict()
        points.append({_identity(row): (row, samples.get(row.run, [])) for row in run.runs.itertuples()})
    rows = []
    for key, (row, times) in points[0].items():
        if key not in points[1]:
            continue
        other, later = points[1][key]
        found = statistics.unpaired_ratio(later, times)
        doubts = sorted(DOUBTFUL & {*row.flags.split(), *other.flags.split()})
        word = "AMBIGUOUS" if doubts else statistics.verdict(found)
        at = (int(row.m), int(row.n), int(row.k))
        rows.append(
            Compared(
                row.stage,
                at,
                statistics.median(times).value,
                statistics.median(later).value,
                found.value,
                found.lo,
                found.hi,
                word,
                " ".join(doubts),
            )
        )
    if not rows:
        raise TilescopeError(f"runs {first.id} and {second.id} share no stage on the same problem.")
    return Comparison(first.id, second.id, rows, _differences(first, second))


def _identity(row: Any) -> tuple:
    """What makes two points the same measurement: the stage and its tunables, the problem, the state of the cache."""
    names = ("stage", "m", "n", "k", "alpha", "beta", "lda", "ldb", "ldc", "distribution", "tunables", "cold")
    return tuple(getattr(row, n) for n in names)


def _differences(first: records.Run, second: records.Run) -> list[str]:
    found = []
    for words, key in (("GPU", "device"), ("driver", "driver")):
        a, b = (", ".join(map(str, run.runs[key].unique())) if key in run.runs else "" for run in (first, second))
        if a != b:
            found.append(f"{words}: {a or 'unknown'} and {b or 'unknown'}")
    libraries = []
    for run in (first, second):
        known = run.runs[run.runs.backend == "cublas"].detail.unique() if "detail" in run.runs else []
        libraries.append(", ".join(map(str, known)))
    if all(libraries) and libraries[0] != libraries[1]:
        found.append(f"cuBLAS: {libraries[0]} and {libraries[1]}")
    return found
