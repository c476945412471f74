"""`make experiment NAME=`: measure every point of a definition and record them as one run; go on where a killed one stopped.

A point is known by its key (harness.measuring.key): machine code, launch, problem, device, sources, and tool versions. What
the journal or an earlier run of the experiment has under the same key is not measured again. A run holds

    runs.parquet       a row a point: stage, problem, tunables, hashes, versions, whether C was right, the fault if there was one
    values.parquet     as every run has it; `run` is RUN/NUMBER OF THE POINT
    lines.parquet      the machine code of every binary
    binaries.parquet   a row a binary: its hashes, flags, what ptxas said, and the cubin itself
    points.csv         the definition's metrics, a row a point, for people and spreadsheets
    samples.parquet, telemetry.parquet   where times were taken, as `make time` has them
    experiment.toml, git.diff, profile.txt
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import backends, environment, measuring, profiling, roofs
from . import definition as definitions
from . import device as devices
from . import record as records
from .definition import Definition, Point
from .errors import TilescopeError
from .expectations import Measured, Verdict, meaning
from .journal import Journal
from .measuring import Measurement, Task

if TYPE_CHECKING:
    from .gpu.devices import Gpu
    from .toolchain import Binary

KIND = "experiment"
Progress = Callable[[float, str], None]


@dataclass(repr=False)
class Experiment:
    """A definition measured on a backend: a measurement per point, in the order of `points`.

    taken    where each came from: 'measured' now, 'journal', or the id of an earlier run
    claims   the verdicts on the definition's claims
    path     the run directory; that of an earlier run where it has all of this already
    """

    id: str
    definition: Definition
    backend: str
    points: list[Point]
    measurements: list[Measurement]
    rows: list[dict[str, Any]]
    taken: list[str]
    claims: list[Verdict]
    started: float
    ended: float
    path: Path | None = None

    @property
    def surprises(self) -> list[Verdict]:
        """Claims that are not as the definition expects."""
        return [c for c in self.claims if c.surprise]

    @property
    def troubles(self) -> dict[str, str]:
        """Points that could not be measured, and why."""
        return {str(p): m.trouble for p, m in zip(self.points, self.measurements, strict=True) if m.trouble}

    @property
    def ok(self) -> bool:
        return not self.surprises

    @cached_property
    def measured(self) -> list[Measured]:
        """The points as claims see them, repeats together."""
        return together(self.points, self.measurements, [row["device"] for row in self.rows])

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a point: stage, tunables, device, m, n, k, and a column 'METRIC [SOURCE]' for each metric of the definition."""
        return table(self.measured, self.definition.metrics)

    def __repr__(self) -> str:
        return (
            f"<Experiment {self.definition.name} {self.id}: {len(self.points)} points, {'ok' if self.ok else 'NOT OK'}>"
        )

    def __str__(self) -> str:
        from . import experiment_report

        return experiment_report.render(self)

    def to_json(self) -> dict[str, Any]:
        return records.plain(
            {
                "run": self.id, "experiment": self.definition.name, "question": self.definition.question, "backend": self.backend,
                "ok": self.ok, "points": len(self.points), "measured_now": self.taken.count("measured"),
                "claims": [asdict(c) for c in self.claims], "troubles": self.troubles, "table": self.table.to_dict("records"),
                "path": str(self.path) if self.path else None,
            }
        )  # fmt: skip


def together(points: Sequence[Point], measurements: Sequence[Measurement], on: Sequence[str]) -> list[Measured]:
    """Points as claims see them: values of whole products by source, the median over repeats. `on`: each point's device."""
    found: dict[Point, dict[tuple[str, str], list[float]]] = {}
    where: dict[Point, str] = {}
    for point, measurement, device in zip(points, measurements, on, strict=True):
        same = replace(point, repeat=0)
        where[same] = device
        values = found.setdefault(same, {})
        for launch, metric, pc, value, _, source in measurement.values:
            if launch is None and pc is None:
                values.setdefault((metric, source), []).append(value)
    result = []
    for point, values in found.items():
        by_metric: dict[str, dict[str, float]] = {}
        for (metric, source), several in values.items():
            by_metric.setdefault(metric, {})[source] = float(pd.Series(several).median())
        p = point.problem
        result.append(Measured(point.stage, where[point], p.m, p.n, p.k, dict(point.tunables), by_metric))
    return result


def table(points: Sequence[Measured], metrics: Sequence[str]) -> pd.DataFrame:
    """The metrics of points as a frame; a metric that several sources have takes a column each."""
    sources: dict[str, None] = {}
    rows = []
    for p in points:
        row: dict[str, Any] = {"stage": p.stage, "tunables": " ".join(f"{k}={v}" for k, v in p.tunables.items()), "device": p.device,
                               "m": p.m, "n": p.n, "k": p.k}  # fmt: skip
        for metric in metrics:
            for source, value in p.values.get(metric, {}).items():
                row[f"{metric} [{source}]"] = value
        rows.append(row)
    for metric in metrics:
        for p in points:
            sources |= dict.fromkeys(f"{metric} [{s}]" for s in p.values.get(metric, {}))
    return pd.DataFrame(rows, columns=["stage", "tunables", "device", "m", "n", "k", *sources])


def experiment(
    name: str | Path,
    *,
    backend: str = "auto",
    fresh: bool = False,
    gpu: str | int | None = None,
    nvcc: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Experiment:
    """Run an experiment by its name in experiments/, or by a path to its folder or file; the run is recorded beside it.

    fresh: measure what is known already, too. workers: that many processes, on a GPU backend one per GPU; scheduler: a Dask
    cluster's address instead. Ctrl-C leaves the finished points in the journal, from which the same call goes on. Raises
    TilescopeError on a bad definition, where a GPU is needed and missing, or where the run cannot be written.
    """
    if workers < 0:
        raise TilescopeError(f"WORKERS={workers} is less than 0.")
    definition = definitions.load(name)
    chosen = choose(definition, backend, scheduler)
    points = definition.points(chosen)
    return run(
        definition, chosen, points, fresh=fresh, gpu=gpu, nvcc=nvcc, workers=workers, scheduler=scheduler, out=out, progress=progress
    )  # fmt: skip


def choose(definition: Definition, backend: str, scheduler: str | None = None) -> str:
    """The backend to run a definition on. Raises TilescopeError where it cannot run here, saying what is missing."""
    if backend == "auto":
        missing = backends.gpu_missing()
        if "gpu" in definition.backends and not missing:
            return "gpu"
        if "sim" not in definition.backends:
            raise TilescopeError(
                f"experiment {definition.name} needs a GPU: {missing}.", "Run it on a machine with one."
            )
        return "sim"
    definition.on(backend)
    if backend == "gpu" and scheduler is None:
        backends.choose("gpu")
    return backend


def run(
    definition: Definition,
    backend: str,
    points: Sequence[Point],
    *,
    fresh: bool = False,
    reproduces: str = "",
    gpu: str | int | None = None,
    nvcc: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Experiment:
    """Measure points of a definition; see `experiment`. reproduces: id of the run that is repeated."""
    note = progress or (lambda fraction, words: None)
    started = time.time()
    identity = records.new_id(definition.name, tuple(points))
    path = records.destination(out or definition.folder / "runs" / identity, definition.name, identity)
    live, versions = _surroundings(definition, backend, gpu, scheduler)
    note(0.0, "compiling")
    tasks, binaries = _tasks(definition, backend, points, live, versions, nvcc, note)
    mark = f"reproduce-{reproduces}" if reproduces else f"{definition.name}-{backend}"
    with Journal(path.parent / f".journal-{mark}.jsonl") as journal:
        known = {} if fresh else _recorded(definition, {t.key for t in tasks})
        if not fresh and (same := _whole(definition, tasks, known, backend)):
            return same
        taken = [
            "journal" if t.key in journal.entries else known[t.key][0] if t.key in known else "measured" for t in tasks
        ]
        missing = list({t.key: t for t, where in zip(tasks, taken, strict=True) if where == "measured"}.values())
        for task, measurement in _all(missing, workers, scheduler, backend, note):
            journal.add(task.key, measurement.to_json())
        measurements = [
            Measurement.of(journal.entries[t.key]) if t.key in journal.entries else known[t.key][1] for t in tasks
        ]
        result = Experiment(
            identity, definition, backend, list(points), measurements, _rows(definition, tasks, binaries, live), taken, [], started, time.time()
        )  # fmt: skip
        result.claims = [c.judge(result.measured) for c in definition.claims]
        note(1.0, "recording")
        result.path = _record(result, path, binaries, tasks, versions, reproduces)
        journal.done()
    return result


def _surroundings(
    definition: Definition, backend: str, choice: str | int | None, scheduler: str | None
) -> tuple[Gpu | None, dict[str, str]]:
    """The GPU to measure on, or None, and the versions of the tools there. Raises TilescopeError where GPU= names none."""
    how = definition.on(backend)
    if backend == "sim":
        if choice is not None:
            raise TilescopeError(f"GPU={choice} needs BACKEND=gpu.")
        return None, measuring.tools(how)
    if scheduler:
        from . import cluster

        return cluster.survey(scheduler, how)
    from .gpu import devices as live

    found = live.find(choice)
    return found, measuring.tools(how, found)


def _tasks(
    definition: Definition,
    backend: str,
    points: Sequence[Point],
    live: Gpu | None,
    versions: Mapping[str, str],
    nvcc: str | None,
    note: Progress,
) -> tuple[list[Task], dict[str, Binary]]:
    """Each point with its key, and the binaries by hash of their machine code."""
    how = definition.on(backend)
    binaries: dict[str, Binary] = {}
    compiled: dict[tuple, Binary | None] = {}
    widths: dict[str, tuple] = {}
    tasks = []
    for n, point in enumerate(points):
        device = live.device if live else devices.find(point.device)
        what = (point.stage, point.tunables, device.cc)
        if what not in compiled:
            note(
                0.0, f"compiling {point.stage} {' '.join(f'{k}={v}' for k, v in point.tunables)} ({n} of {len(points)})"
            )
            compiled[what] = measuring.compiled(point, device.cc, nvcc)
        if device.name not in widths:
            widths[device.name] = tuple(sorted(roofs.recorded_widths(device).items()))
        binary = compiled[what]
        if binary:
            binaries[binary.hash] = binary
        task = Task(
            point, how, "", binary.hash if binary else "", backend, live.uuid if live else "", live.name if live else "", nvcc, None, measuring.code_version(),
            widths[device.name],
        )  # fmt: skip
        tasks.append(replace(task, key=measuring.key(task, binary, versions)))
    return tasks, binaries


def _all(
    tasks: list[Task], workers: int, scheduler: str | None, backend: str, note: Progress
) -> Iterator[tuple[Task, Measurement]]:
    """Every task with its measurement as they are finished: here, or spread over workers."""
    if not tasks:
        return
    clock = _Clock(len(tasks), note)
    if workers > 1 or scheduler:
        from . import cluster

        for task, measurement in cluster.measure(tasks, workers, scheduler, clock.say):
            yield task, measurement
            clock.finished(str(task.point))
        return
    from .gpu import client

    with client.keeping():
        for task in tasks:
            clock.say(str(task.point))
            yield task, task.run(clock.within)
            clock.finished(str(task.point))


class _Clock:
    """Tells how far it is and how long it will take, by the mean of what is done."""

    def __init__(self, total: int, note: Progress) -> None:
        self.total, self.note, self.done, self.started = total, note, 0, time.monotonic()
        self.words = ""

    def say(self, words: str) -> None:
        self.words = words
        self.within(0.0, "")

    def within(self, fraction: float, words: str) -> None:
        done = self.done + min(1.0, max(0.0, fraction))
        left = ""
        if self.done:
            left = f", {span((time.monotonic() - self.started) / self.done * (self.total - self.done))} left"
        self.note(done / self.total, f"{self.done} of {self.total} done{left}: {self.words}")

    def finished(self, words: str) -> None:
        self.done += 1
        self.words = words
        self.within(0.0, "")


def span(seconds: float) -> str:
    """Seconds as a person says them: '40 s', '3 min', '2 h 5 min'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _recorded(definition: Definition, wanted: set[str]) -> dict[str, tuple[str, Measurement]]:
    """What earlier runs of an experiment have under the keys wanted: (run id, measurement). Damaged runs have nothing."""
    found: dict[str, tuple[str, Measurement]] = {}
    for manifest in sorted((definition.folder / "runs").glob("*/manifest.json"), reverse=True):
        try:
            run = records.load(manifest.parent)
        except TilescopeError:
            continue
        if run.manifest.get("kind") != KIND or "key" not in run.runs:
            continue
        rows = run.runs[run.runs.key.isin(wanted - set(found)) & (run.runs.trouble == "")]
        if len(rows):
            keys = dict(zip(rows.run, rows.key, strict=True))
            found |= {keys[point]: (run.id, m) for point, m in measurements(run, list(keys)).items()}
    return found


OWN = ("run", "kind", "experiment", "stage", "m", "n", "k", "alpha", "beta", "lda", "ldb", "ldc", "distribution", "seed", "tunables",
       "arch", "device", "backend", "sass", "repeat", "key", "trouble", "taken", "commit", "started", "ended", "nvcc", "gpu")  # fmt: skip
"""Columns of runs.parquet that a run of an experiment writes itself; the others are what a measurement adds."""


def measurements(run: records.Run, points: Sequence[str] | None = None) -> dict[str, Measurement]:
    """The measurements of a recorded run, or of some of its points, by what its tables call them."""
    chosen = run.runs if points is None else run.runs[run.runs.run.isin(points)]
    columns = [c for c in run.runs if c not in OWN]
    found = {
        row["run"]: Measurement({c: row[c] for c in columns if not _absent(row[c])}, trouble=row["trouble"])
        for row in chosen.to_dict("records")
    }
    for name, columns in (
        ("values", ["launch", "metric", "pc", "value", "unit", "source"]),
        ("samples", ["round", "ms", "rival", "rival_ms"]),
        ("telemetry", ["seconds", "clock_mhz", "power_w", "temperature_c", "reasons"]),
    ):
        if name != "values" and not (run.path / f"{name}.parquet").exists():
            continue
        rows = run.table(name)
        rows = rows[rows.run.isin(found)]
        at = rows.run.tolist()
        plain = rows[columns].astype(object).where(rows[columns].notna(), None)
        for point, row in zip(at, plain.itertuples(index=False, name=None), strict=True):
            if name == "values" and row[3] is None:
                row = (*row[:3], float("nan"), *row[4:])
            getattr(found[point], name).append(row)
    return found


def _absent(value: Any) -> bool:
    return value is None or value is pd.NA or isinstance(value, float) and value != value


def points_of(run: records.Run) -> list[Point]:
    """The points of a recorded run, in order."""
    return [
        Point.of(
            {
                "stage": row["stage"], "tunables": json.loads(row["tunables"]), "device": row["device"] if row["backend"] == "sim" else "",
                "problem": {f: row[f] for f in ("m", "n", "k", "alpha", "beta", "lda", "ldb", "ldc", "distribution", "seed")},
                "repeat": int(row["repeat"]),
            }
        )
        for row in run.runs.to_dict("records")
    ]  # fmt: skip


def _whole(definition: Definition, tasks: Sequence[Task], known: Mapping, backend: str) -> Experiment | None:
    """The earlier run that already is what is asked for: the same points, and the same definition."""
    ids = {known[t.key][0] for t in tasks} if all(t.key in known for t in tasks) else set()
    if len(ids) != 1:
        return None
    run = records.load(definition.folder / "runs" / ids.pop())
    if run.text(definitions.FILE) != definition.text or list(run.runs.key) != [t.key for t in tasks]:
        return None
    return loaded(run, definition)


def loaded(run: records.Run, definition: Definition | None = None) -> Experiment:
    """A recorded run as the Experiment that was recorded, its claims judged anew. Raises TilescopeError for other kinds of run."""
    if run.manifest.get("kind") != KIND:
        raise TilescopeError(f"run {run.id} is of kind {run.manifest.get('kind')}, not an experiment.")
    if definition is None:
        name, beside = run.manifest["experiment"], run.path.parent
        folder = beside.parent if beside.name == "runs" else definitions.EXPERIMENTS / name
        definition = replace(definitions.parse(run.text(definitions.FILE), folder), name=name)
    found = list(measurements(run).values())
    result = Experiment(
        run.id, definition, run.manifest["backend"], points_of(run), found, run.runs.to_dict("records"), list(run.runs.taken), [],
        0.0, 0.0, run.path,
    )  # fmt: skip
    result.claims = [c.judge(result.measured) for c in definition.claims]
    return result


def _rows(
    definition: Definition, tasks: Sequence[Task], binaries: Mapping[str, Binary], live: Gpu | None
) -> list[dict[str, Any]]:
    """What a run writes of its points itself."""
    commit = (environment.describe()["git"] or {}).get("commit")
    rows = []
    for task in tasks:
        device = live.device if live else devices.find(task.point.device)
        binary = binaries.get(task.sass)
        rows.append(
            {
                "kind": KIND, "experiment": definition.name, "stage": task.point.stage, **asdict(task.point.problem),
                "tunables": json.dumps(dict(task.point.tunables)), "arch": device.arch, "device": device.name, "backend": task.backend,
                "sass": task.sass, "repeat": task.point.repeat, "key": task.key, "commit": commit,
                "nvcc": binary.compiler if binary else "", "gpu": live.name if live else "",
            }
        )  # fmt: skip
    return rows


def _record(
    result: Experiment, path: Path, binaries: Mapping[str, Binary], tasks: Sequence[Task], versions: Mapping[str, str], reproduces: str
) -> Path:  # fmt: skip
    from . import experiment_report

    definition, where = result.definition, environment.describe()
    started, ended = records.timestamp(result.started), records.timestamp(result.ended)
    rows, values, samples, telemetry = [], [], [], []
    for n, (row, m, taken) in enumerate(zip(result.rows, result.measurements, result.taken, strict=True)):
        name = f"{result.id}/{n}"
        rows.append(
            {"run": name, **row, "started": started, "ended": ended, "trouble": m.trouble, "taken": taken, **m.row}
        )
        values += [(name, *v) for v in m.values]
        p = result.points[n].problem
        samples += [(name, row["stage"], p.m, p.n, p.k, *x) for x in m.samples]
        telemetry += [(name, *x) for x in m.telemetry]
    tables = {
        "runs": pd.DataFrame(rows),
        "values": records.frame(records.VALUES, values),
        "lines": pd.concat([records.frame(records.LINES, []), *map(profiling.instructions, binaries.values())], ignore_index=True),
        "binaries": _binaries(binaries, tasks),
    }  # fmt: skip
    if samples:
        tables["samples"] = pd.DataFrame(
            samples, columns=["run", "stage", "m", "n", "k", "round", "ms", "rival", "rival_ms"]
        )
        columns = ["run", "seconds", "clock_mhz", "power_w", "temperature_c", "reasons"]
        tables["telemetry"] = pd.DataFrame(telemetry, columns=columns)
    manifest = {
        "id": result.id, "kind": KIND, "experiment": definition.name, "question": definition.question, "backend": result.backend,
        "devices": sorted({row["device"] for row in result.rows}), "started": started, "ended": ended, "environment": where,
        "tools": dict(versions), "how": asdict(definition.on(result.backend)), "points": len(result.points),
        "taken": {word: result.taken.count(word) for word in sorted(set(result.taken))}, "ok": result.ok,
        "units": {metric: meaning(metric)[0] for metric in definition.metrics},
        "claims": [asdict(c) | {"readings": [asdict(r) for r in c.readings]} for c in result.claims], "troubles": result.troubles,
        "reproduces": reproduces or None,
    }  # fmt: skip
    files: dict[str, str | bytes] = {
        definitions.FILE: definition.text,
        "points.csv": result.table.to_csv(index=False, float_format="%.10g"),
        "profile.txt": experiment_report.render(result),
    }
    if diff := environment.diff():
        files["git.diff"] = diff
    return records.write(path, manifest, tables, files)


def _binaries(binaries: Mapping[str, Binary], tasks: Sequence[Task]) -> pd.DataFrame:
    """A row a binary: columns sass, stage, tunables, arch, registers, nvcc, flags, sources (JSON of name -> hash), ptxas, cubin."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.sass, task)
    columns = [
        "sass",
        "cubin_sha256",
        "stage",
        "tunables",
        "arch",
        "registers",
        "nvcc",
        "nvdisasm",
        "flags",
        "sources",
        "ptxas",
        "cubin",
    ]
    rows = []
    for name, b in binaries.items():
        code = profiling.portable_cubin(b)
        sources = {
            environment.public(p): hashlib.sha256(text.encode()).hexdigest() for p, text in sorted(b.sources.items())
        }
        rows.append(
            (name, hashlib.sha256(code).hexdigest(), first[name].point.stage, json.dumps(dict(first[name].point.tunables)), b.arch,
             max(k.function.registers for k in b.kernels.values()), b.compiler, b.disassembler, " ".join(b.flags), json.dumps(sources),
             _public(b.ptxas, b), code)
        )  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _public(text: str, binary: Binary) -> str:
    """What ptxas said without the folders of the sources."""
    for path in binary.sources:
        text = text.replace(path, environment.public(path))
    return text
