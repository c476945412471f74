"""`make compare A=RUN B=RUN`: did a stage become faster or slower? From the raw samples of two recorded runs; no GPU needed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import record as records
from . import stage as stages
from . import statistics
from .errors import TilescopeError
from .statistics import VERDICTS
from .words import listed

DOUBTFUL = frozenset(
    ("throttled", "power-capped", "busy", "unsettled", "unheld", "wrong", "damage", "fault", "few-rounds")
)
"""Flags of a point that speak against its time."""
NAMED = 6
"""Rows named of two runs that share none."""


@dataclass(frozen=True)
class Compared:
    """A stage on a problem in two runs: time in A over time in B, above 1 where B is faster, and B's verdict.

    note: flags of either time that speak against it; tunables: those that are not the stage's own.
    """

    stage: str
    problem: tuple[int, int, int]
    a_ms: float
    b_ms: float
    ratio: float
    lo: float
    hi: float
    verdict: str
    note: str = ""
    tunables: str = ""


@dataclass(frozen=True)
class Comparison:
    """Rows that both runs have, and in words those that only one has and how the runs differ in what they were taken under."""

    a: str
    b: str
    rows: list[Compared]
    only_a: list[str]
    only_b: list[str]
    differences: list[str]

    @property
    def ok(self) -> bool:
        return not any(r.verdict == "SLOWER" for r in self.rows)

    def to_json(self) -> dict[str, Any]:
        counts = {v: sum(r.verdict == v for r in self.rows) for v in VERDICTS}
        return {
            "a": self.a, "b": self.b, "ok": self.ok, "verdicts": counts, "differences": self.differences,
            "only_a": self.only_a, "only_b": self.only_b, "rows": [asdict(r) for r in self.rows],
        }  # fmt: skip


def newest() -> Comparison | None:
    """The newest two recorded ladders or timings that have a stage and a problem in common, compared; None where no two have."""
    runs = [records.load(path, check=False) for path in records.runs() if (path / "samples.parquet").exists()]
    runs = sorted((r for r in runs if r.manifest["kind"] in ("ladder", "time")), key=lambda r: r.manifest["started"])
    for number in reversed(range(len(runs))):
        for earlier in reversed(runs[:number]):
            try:
                return compare(earlier.path, runs[number].path)
            except TilescopeError:
                continue
    return None


def compare(a: str | Path, b: str | Path) -> Comparison:
    """How the times of run B compare with those of run A, from their raw samples.

    Samples of different runs are not paired: what drifts between runs is in the difference. A row with a flag that speaks
    against its time (throttled, busy, ...) is AMBIGUOUS, unless both runs have the very same samples: a run is the SAME as
    itself. Raises TilescopeError where a run has no times, or they share none.
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
    only_a, only_b = (
        [_named(row) for key, (row, _) in own.items() if key not in other]
        for own, other in (points, reversed(points))
    )  # fmt: skip
    rows = [_compared(*one, *points[1][key]) for key, one in points[0].items() if key in points[1]]
    if not rows:
        raise TilescopeError(
            f"runs {first.id} and {second.id} share no stage on the same problem.",
            f"A has {listed(only_a, NAMED)}; B has {listed(only_b, NAMED)}.",
        )
    return Comparison(first.id, second.id, rows, only_a, only_b, _differences(first, second))


def _compared(row: Any, times: list[float], other: Any, later: list[float]) -> Compared:
    found = statistics.unpaired_ratio(later, times)
    doubts = sorted(DOUBTFUL & {*row.flags.split(), *other.flags.split()})
    word = "AMBIGUOUS" if doubts and times != later else statistics.verdict(found)
    return Compared(
        row.stage, (int(row.m), int(row.n), int(row.k)), statistics.median(times).value, statistics.median(later).value, found.value,
        found.lo, found.hi, word, " ".join(doubts), _tunables(row),
    )  # fmt: skip


def _tunables(row: Any) -> str:
    return stages.changed(row.stage, json.loads(row.tunables))


def _named(row: Any) -> str:
    """A row in words: what tells it from others, where that is not as usual."""
    size = f"{row.m}" if row.m == row.n == row.k else f"{row.m}x{row.n}x{row.k}"
    unusual = {
        "alpha": row.alpha != 1, "beta": row.beta != 0, "lda": row.lda != row.k, "ldb": row.ldb != row.n, "ldc": row.ldc != row.n,
        "distribution": row.distribution != "normal",
    }  # fmt: skip
    words = [f"{name}={getattr(row, name)}" for name, is_so in unusual.items() if is_so]
    return " ".join(filter(None, [row.stage, _tunables(row), f"at {size}", *words, "" if row.cold else "hot"]))


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
