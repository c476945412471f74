"""A run of an experiment: what was measured, how it is written down, and how it comes back.

A run holds

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import definition as definitions
from . import device as devices
from . import environment, profiling
from . import record as records
from .definition import Definition, Point
from .errors import TilescopeError
from .expectations import Measured, Verdict, meaning
from .journal import KEPT
from .measuring import Measurement, Task

if TYPE_CHECKING:
    from .gpu.devices import Gpu
    from .toolchain import Binary

KIND = "experiment"


@dataclass(repr=False)
class Experiment:
    """A definition measured on a backend: a measurement per point, in the order of `points`.

    taken    where each came from: 'measured' now, 'journal', or the id of an earlier run
    claims   the verdicts on the definition's claims
    path     the run directory; that of an earlier run where it has all of this already
    manifest as it is recorded
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
    manifest: dict[str, Any] = field(default_factory=dict)

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


def earlier(definition: Definition, wanted: set[str]) -> dict[str, tuple[str, Measurement]]:
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


def earlier_run(
    definition: Definition, tasks: Sequence[Task], found: Mapping[str, tuple[str, Measurement]]
) -> Experiment | None:
    """The earlier run that already is what is asked for: the same points, and the same definition."""
    ids = {found[t.key][0] for t in tasks} if all(t.key in found for t in tasks) else set()
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
        0.0, 0.0, run.path, run.manifest,
    )  # fmt: skip
    result.claims = [c.judge(result.measured) for c in definition.claims]
    return result


def rows(
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


def write(
    result: Experiment, path: Path, binaries: Mapping[str, Binary], tasks: Sequence[Task], versions: Mapping[str, str], reproduces: str
) -> None:  # fmt: skip
    """Record a finished experiment at `path` (from record.destination), and set its path and manifest.

    reproduces: id of the run that it repeats, or nothing. Raises NotRecorded, which holds the experiment, where it cannot be written.
    """
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
    result.manifest = records.plain({
        "id": result.id, "kind": KIND, "experiment": definition.name, "question": definition.question, "backend": result.backend,
        "devices": sorted({row["device"] for row in result.rows}), "started": started, "ended": ended, "environment": where,
        "tools": dict(versions), "how": asdict(definition.on(result.backend)), "points": len(result.points),
        "taken": {word: result.taken.count(word) for word in sorted(set(result.taken))}, "ok": result.ok,
        "units": {metric: meaning(metric)[0] for metric in definition.metrics},
        "claims": [asdict(c) | {"readings": [asdict(r) for r in c.readings]} for c in result.claims], "troubles": result.troubles,
        "reproduces": reproduces or None,
    })  # fmt: skip
    files: dict[str, str | bytes] = {
        definitions.FILE: definition.text,
        "points.csv": result.table.to_csv(index=False, float_format="%.10g"),
        "profile.txt": experiment_report.render(result),
    }
    if diff := environment.diff():
        files["git.diff"] = diff
    records.save(result, path, result.manifest, tables, files, KEPT)


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
        code = b.portable_cubin()
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
