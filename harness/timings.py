"""`make time`, `make ladder`: stages timed on a GPU beside cuBLAS, cublasLt or another stage, recorded as a run.

The measuring is done by harness.gpu in a process of its own; this module says what to measure, and turns points into tables.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import environment, toolchain
from . import record as records
from . import stage as stages
from .errors import TilescopeError
from .measurement import FLAGS, Point
from .problem import Problem
from .stage import Stage
from .statistics import verdict

if TYPE_CHECKING:
    from .device import Device
    from .gpu.devices import Gpu
    from .gpu.worker import Entry

SIZES = (512, 1024, 2048, 4096, 8192)
LIBRARIES = ("cublas", "cublaslt")
LIMIT_S = 5.0
COLUMNS = (
    "stage", "m", "n", "k", "backend", "changed", "ms", "ms_lo", "ms_hi", "tflops", "ratio", "ratio_lo", "ratio_hi", "roof_share", "clock_mhz",
    "power_w", "flags", "error",
)  # fmt: skip
"""Of ladder.csv. changed: tunables that are not the stage's own; ms: median time of one product; ratio: cuBLAS's time over this one's; _lo, _hi: 95 % intervals; roof_share: of
the fp32 peak at the GPU's nominal clock; flags: words of harness.measurement.FLAGS; error: largest error over its bound, or
what is wrong."""
Progress = Callable[[float, str], None]


@dataclass
class Timings:
    """Points of one run, in the order of the table.

    missing      contenders and problems that could not take part, by name, and why
    facts        what NVML says of the GPU and its driver
    interrupted  Ctrl-C ended it before all were done
    """

    id: str
    kind: str
    gpu: Gpu
    points: list[Point]
    options: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    missing: dict[str, TilescopeError] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    started: float = 0.0
    ended: float = 0.0
    path: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether every contender was right. A crash or a hang is not a wrong result, but `faults`."""
        return not any(p.wrong for p in self.points)

    @property
    def faults(self) -> list[Point]:
        return [p for p in self.points if p.fault]

    @property
    def table(self) -> pd.DataFrame:
        """Columns of COLUMNS, a row a point."""
        return pd.DataFrame([_row(p, self.gpu.device.peak_tflops) for p in self.points], columns=list(COLUMNS))

    @property
    def samples(self) -> pd.DataFrame:
        """Every sample: run (as in runs.parquet), stage, m, n, k, round, ms, rival, rival_ms."""
        rows = [
            (self.point_id(n), p.stage, p.problem.m, p.problem.n, p.problem.k, i, ms, p.rival, p.rival_samples[i] if p.rival else math.nan)
            for n, p in enumerate(self.points)
            for i, ms in enumerate(p.samples)
        ]  # fmt: skip
        columns = ["run", "stage", "m", "n", "k", "round", "ms", "rival", "rival_ms"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def telemetry(self) -> pd.DataFrame:
        """Every reading of NVML: run, seconds from the point's start, clock_mhz, power_w, temperature_c, reasons (bits)."""
        rows = [
            (self.point_id(n), *reading)
            for n, p in enumerate(self.points)
            for reading in zip(*vars(p.telemetry).values(), strict=True)
        ]
        return pd.DataFrame(rows, columns=["run", "seconds", "clock_mhz", "power_w", "temperature_c", "reasons"])

    def tables(self, first: str | None = None) -> dict[str, pd.DataFrame]:
        """The tables `samples` and `telemetry`; `first` is what to call the first point where not by `point_id`."""
        found = {"samples": self.samples, "telemetry": self.telemetry}
        if first:
            for table in found.values():
                table["run"] = table.run.replace(self.point_id(0), first)
        return found

    def point_id(self, number: int) -> str:
        """What the tables of a run call one of its points."""
        return f"{self.id}/{number}"

    def to_json(self) -> dict[str, Any]:
        return records.plain(
            {
                "run": self.id, "kind": self.kind, "ok": self.ok, "interrupted": self.interrupted, "device": self.gpu.device.name,
                "gpu": self.gpu.name, "options": self.options, "warnings": self.warnings, "nvml": self.facts,
                "points": [_point_json(p, self.gpu.device.peak_tflops) for p in self.points],
                "path": str(self.path) if self.path else None,
            }
        )  # fmt: skip


def _row(p: Point, peak_tflops: float) -> tuple:
    m, n, k = p.problem.m, p.problem.n, p.problem.k
    return (
        p.stage, m, n, k, p.backend, p.changed, p.ms.value, p.ms.lo, p.ms.hi, p.tflops, p.ratio.value, p.ratio.lo, p.ratio.hi,
        p.tflops / peak_tflops if peak_tflops else math.nan, p.telemetry.clock, p.telemetry.power, " ".join(p.flags), p.error,
    )  # fmt: skip


def _point_json(p: Point, peak_tflops: float) -> dict[str, Any]:
    return dict(zip(COLUMNS, _row(p, peak_tflops), strict=True)) | {
        "problem": asdict(p.problem), "tunables": p.tunables, "sass": p.sass, "rival": p.rival or None, "rounds": len(p.samples),
        "batch": p.batch, "cold": p.cold, "sets": p.sets, "temperature_c": p.telemetry.temperature, "detail": p.detail,
        "flags": p.flags, "verdict": verdict(p.ratio) if p.rival else None, "fault": p.fault or None, "damage": p.damage or None,
        "accuracy": p.accuracy.to_json() if p.accuracy else None, "exact": p.exact.to_json() if p.exact else None,
    }  # fmt: skip


def time(
    kernel: str | Path,
    *,
    against: str | None = "cublas",
    sizes: Sequence[int] | None = None,
    problem: Problem | Sequence[Problem] | None = None,
    cold: bool = True,
    limit: float = LIMIT_S,
    timeout: float = 60.0,
    cool: float | None = None,
    distribution: str = "normal",
    seed: int = 0,
    gpu: str | int | None = None,
    nvcc: str | None = None,
    load: str = "source",
    out: str | Path | None = None,
    record: bool = True,
    tuned: bool = False,
    progress: Progress | None = None,
    **tunables: int,
) -> Timings:
    """Time a stage beside `cublas`, `cublaslt`, another stage, or (None or 'none') alone.

    sizes: square problems of the distribution and seed; or give the problems themselves. cold: rotating inputs of twice the L2, or one set that stays in cache. limit:
    seconds a problem may take; timeout: seconds one product may take; cool: wait until the GPU is at most this warm,
    degrees C. load: 'source' compiles through PyCUDA, 'cubin' loads the toolchain's. tuned: with the tunables that won a recorded
    search on the problem. `tunables` are the kernel's; another stage, or the same, has its defaults. Raises TilescopeError on bad input, or where nothing can be measured.
    """
    rival = None if against in (None, "none") else str(against)
    if problem is None:
        problems = _squares(sizes or (1024,), distribution, seed)
    else:
        problems = [problem] if isinstance(problem, Problem) else list(problem)
    contenders = [Contender(str(kernel), tunables, tuned), *([Contender(rival)] if rival else [])]
    return _measure(
        "time", Path(kernel).stem if "/" in str(kernel) else str(kernel), contenders, problems, rival, cold=cold, limit=limit, timeout=timeout,
        cool=cool, gpu=gpu, nvcc=nvcc, load=load, out=out, record=record, progress=progress,
    )  # fmt: skip


def ladder(
    *,
    names: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    cold: bool = True,
    limit: float = LIMIT_S,
    timeout: float = 60.0,
    cool: float | None = None,
    distribution: str = "normal",
    seed: int = 0,
    gpu: str | int | None = None,
    nvcc: str | None = None,
    load: str = "source",
    out: str | Path | None = None,
    record: bool = True,
    progress: Progress | None = None,
) -> Timings:
    """Time every stage (or those named) and cublasLt beside cuBLAS, at every size. Arguments as `time` has them.

    A stage is timed once more with the tunables that won a recorded search, on the sizes that have one. Where cuBLAS is missing, the stages are timed alone, and a warning says so.
    """
    contenders = []
    for name in names or stages.names():
        contenders += [Contender(name), Contender(name, tuned=True, needed=False)]
    return _measure(
        "ladder", "ladder", [*contenders, *map(Contender, LIBRARIES)], _squares(sizes, distribution, seed),
        "cublas", cold=cold, limit=limit, timeout=timeout, cool=cool, gpu=gpu, nvcc=nvcc, load=load, out=out, record=record, progress=progress,
    )  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """A stage or a library to time. tuned: on each problem with the tunables of `harness.tune.winner`; where there are none it is
    an error if `needed`, and else it does not take part in that problem."""

    kernel: str
    tunables: Mapping[str, int] = field(default_factory=dict)
    tuned: bool = False
    needed: bool = True

    def check(self) -> None:
        """Raises TilescopeError where there is no such stage, or the tunables are not legal."""
        from .profiling import configure

        if self.kernel not in LIBRARIES:
            configure(stages.find(self.kernel), {} if self.tuned else self.tunables)

    def on(self, problems: Sequence[Problem], device: Device) -> list[tuple[dict[str, int], list[int]]]:
        """Tunables, and the indices of the problems that they are for. Raises TilescopeError."""
        from . import tune

        if not self.tuned:
            return [(dict(self.tunables), list(range(len(problems))))]
        found: dict[tuple, list[int]] = {}
        stage, known = stages.find(self.kernel), tune.winners(device)
        for index, problem in enumerate(problems):
            try:
                best = tune.winner(stage, problem, device, known) | dict(self.tunables)
            except TilescopeError:
                if self.needed:
                    raise
                continue
            if self.needed or best != stage.tunables:
                found.setdefault(tuple(best.items()), []).append(index)
        return [(dict(best), indices) for best, indices in found.items()]


def _squares(sizes: Sequence[int], distribution: str, seed: int) -> list[Problem]:
    return [Problem(n, n, n, distribution=distribution, seed=seed) for n in sizes]


def _measure(
    kind: str, title: str, contenders: Sequence[Contender], problems: Sequence[Problem], rival: str | None, *,
    cold: bool, limit: float, timeout: float, cool: float | None, gpu: str | int | None, nvcc: str | None, load: str,
    out: str | Path | None, record: bool, progress: Progress | None,
) -> Timings:  # fmt: skip
    from .gpu import client, devices, launch
    from .gpu.worker import Request

    if load not in ("source", "cubin"):
        raise TilescopeError(f"unknown LOAD {load!r}.", "Choose source or cubin.")
    for name, value in (("LIMIT", limit), ("TIMEOUT", timeout)):
        if not 0 < value < math.inf:
            raise TilescopeError(f"{name}={value:g} is not more than 0.")
    note = progress or (lambda fraction, words: None)
    started = clock.time()
    run = records.new_id(kind, title, tuple(problems))
    path = records.destination(out, title, run) if record else None
    for contender in contenders:
        contender.check()
    toolchain.check(nvcc)
    chosen = devices.find(gpu)
    entries, binaries, todo = [], {}, []
    for contender in contenders:
        for tunables, indices in contender.on(problems, chosen.device):
            note(0.0, f"compiling {contender.kernel}")
            entry, binary = _entry(f"{len(entries)}", contender.kernel, tunables, chosen, nvcc)
            entries.append(entry)
            todo += [(index, entry.key) for index in indices]
            if binary:
                binaries[entry.key] = binary
    compiler = launch.compiler_of(next(iter(binaries.values())), nvcc) if load == "source" and binaries else None
    beside = next((e.key for e in reversed(entries) if e.kernel == rival), None)
    request = Request(
        chosen, tuple(problems), tuple(entries), tuple(sorted(todo, key=lambda x: x[0])), beside, cold, limit, timeout,
        cool, compiler,
    )  # fmt: skip
    options = {
        "cold": cold,
        "limit_s": limit,
        "timeout_s": timeout,
        "cool_c": cool,
        "against": rival,
        "load": "source" if compiler else "cubin",
    }
    result = Timings(run, kind, chosen, [], options, started=started)
    outcome = client.Outcome()
    try:
        client.run(request, progress, outcome)
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        result.points = sorted(outcome.points, key=lambda p: problems.index(p.problem))
        result.warnings, result.facts, result.ended = outcome.warnings, outcome.gpu, clock.time()
        kernels = {e.key: e.kernel for e in entries}
        result.missing = {kernels[key]: e for key, e in outcome.refused.items()}
        result.missing |= {str(problems[index]): e for index, e in outcome.unable.items()}
        result.warnings += [f"{name} was left out: {e.what} {e.remedy}".strip() for name, e in result.missing.items()]
        if path and result.points:
            _record(result, path)
    if not result.points and not result.interrupted:
        raise next(iter(result.missing.values()), TilescopeError("nothing was measured."))
    return result


def _entry(
    key: str, kernel: str, tunables: Mapping[str, int], gpu: Gpu, nvcc: str | None
) -> tuple[Entry, toolchain.Binary | None]:
    from .gpu.worker import Entry
    from .profiling import configure

    if kernel in LIBRARIES:
        return Entry(key, kernel), None
    stage: Stage = stages.find(kernel)
    chosen = configure(stage, tunables)
    binary = toolchain.compile(stage, chosen, gpu.cc, nvcc)
    gpu.check_runs(binary.compiler)
    return Entry(key, stages.anywhere(kernel), tuple(chosen.items()), binary.cubin, binary.hash), binary


def _record(result: Timings, path: Path) -> None:
    from . import timing_report

    where = environment.describe()
    summary = result.to_json()
    for gone in ("path", "run", "kind"):
        del summary[gone]
    manifest = {
        "id": result.id, "kind": result.kind, "started": records.timestamp(result.started), "ended": records.timestamp(result.ended),
        "environment": where, "flags": {f: FLAGS[f] for f in sorted({f for p in result.points for f in p.flags})}, **summary,
    }  # fmt: skip
    device = result.gpu.device
    runs = [
        {
            "run": result.point_id(n), "kind": result.kind, "stage": p.stage, **asdict(p.problem), "tunables": json.dumps(p.tunables),
            "arch": device.arch, "device": device.name, "backend": p.backend, "sass": p.sass, "commit": (where["git"] or {}).get("commit"),
            "started": manifest["started"], "ended": manifest["ended"], "ok": p.ok, **run_columns(result, n),
        }
        for n, p in enumerate(result.points)
    ]  # fmt: skip
    rows = [(result.point_id(n), None, *v) for n, p in enumerate(result.points) for v in values(p)]
    tables = {
        "runs": pd.DataFrame(runs),
        "values": records.frame(records.VALUES, rows),
        **result.tables(),
    }
    files = {f"{result.kind}.csv": csv(result.table), "profile.txt": timing_report.render(result)}
    records.save(result, path, manifest, tables, files, "RECORD=no records nothing.")


def run_columns(t: Timings, number: int) -> dict[str, Any]:
    """What a timed point adds to its row of runs.parquet."""
    p = t.points[number]
    return {
        "driver": t.facts.get("driver", ""), "detail": p.detail, "rival": p.rival, "cold": p.cold, "sets": p.sets, "batch": p.batch,
        "rounds": len(p.samples), "flags": " ".join(p.flags),
    }  # fmt: skip


def values(p: Point) -> list[tuple]:
    """(metric, pc, value, unit, source) of a point, for the table of values."""
    from .metrics import METRICS

    found = {
        "time_ms": p.ms.value, "time_ms_lo": p.ms.lo, "time_ms_hi": p.ms.hi, "tflops": p.tflops, "clock_mhz": p.telemetry.clock,
        "power_w": p.telemetry.power, "temperature_c": p.telemetry.temperature,
    }  # fmt: skip
    if p.rival:
        found |= {"rival_ratio": p.ratio.value, "rival_ratio_lo": p.ratio.lo, "rival_ratio_hi": p.ratio.hi}
    rows = [(name, None, value, METRICS[name].unit, "timing") for name, value in found.items()]
    if p.accuracy:
        rows += [
            ("error max", None, p.accuracy.max, "", "timing"),
            ("error bound", None, p.accuracy.bound, "", "timing"),
        ]
    return rows


def csv(table: pd.DataFrame) -> str:
    """A table of COLUMNS as CSV; times and ratios with 6 digits, no value for NaN."""
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
