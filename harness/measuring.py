"""Measure one point of an experiment, in whatever process: the values of every source asked for, by the same code as `profile`
and `time`. A Measurement travels as JSON: to the journal, and between the workers of a cluster.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from . import accuracy, bounds, environment, machine, metrics, profiling, sim, timings, toolchain
from . import device as devices
from . import stage as stages
from .definition import LIBRARIES, How, Point
from .errors import TilescopeError
from .expectations import meaning
from .toolchain import Binary

COUNTERS = ("coalescing", "bank", "occupancy", "memory")
"""Groups of Nsight Compute's metrics that source `ncu` collects."""
RACECHECK_LIMIT_S = 300.0
Progress = Callable[[float, str], None]
Row = tuple[str | None, str, int | None, float, str, str]
"""launch, metric, pc, value, unit, source: a row of the table of values without its run."""


@dataclass
class Measurement:
    """What came of a point.

    row       columns that it adds to its row of runs.parquet
    values    rows of values.parquet
    samples   (round, ms, rival, rival_ms) and telemetry (seconds, MHz, W, degrees C, NVML's reasons) of source `timing`
    trouble   why it could not be measured, or nothing; such a point is measured again next time
    """

    row: dict[str, Any] = field(default_factory=dict)
    values: list[Row] = field(default_factory=list)
    samples: list[tuple] = field(default_factory=list)
    telemetry: list[tuple] = field(default_factory=list)
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Measurement:
        rows = {name: [tuple(x) for x in data[name]] for name in ("values", "samples", "telemetry")}
        return cls(**{**data, **rows})

    def outcome(self, metric: str, value: float, source: str, launch: str | None = None) -> None:
        """Add one value of a whole product or launch."""
        self.values.append((launch, metric, None, float(value), meaning(metric)[0], source))

    def value(self, metric: str, source: str) -> float:
        """A value of the whole product; NaN where there is none."""
        return next((v[3] for v in self.values if v[:3] == (None, metric, None) and v[5] == source), math.nan)


@dataclass(frozen=True)
class Task:
    """A point and all that measuring it takes. `sass` is the hash of the machine code that must run, '' for a library.

    gpu: its UUID, or nothing for the simulator; gpu_name: its name. threads: cores the simulator may use. code: `code_version` of the process
    that asks. widths: of the bounds, by resource.
    """

    point: Point
    how: How
    key: str
    sass: str
    backend: str
    gpu: str = ""
    gpu_name: str = ""
    nvcc: str | None = None
    threads: int | None = None
    code: str = ""
    widths: tuple[tuple[str, float], ...] = ()

    def run(self, progress: Progress | None = None) -> Measurement:
        """Measure. What goes wrong with this point alone is its `trouble`. Raises TilescopeError where nothing can go right here."""
        if self.code and self.code != code_version():
            raise TilescopeError(
                "a worker runs another version of Tilescope than the process that asked.",
                "Start the workers from the same checkout.",
            )
        started = time.time()
        done = Measurement()
        try:
            with exclusive(self.gpu):
                _measure(self, done, progress or (lambda fraction, words: None))
        except TilescopeError as e:
            done.trouble = str(e).replace("\n", " ")
        done.row |= {"measured": started, "seconds": time.time() - started, "uuid": self.gpu}
        return done


@contextmanager
def exclusive(gpu: str) -> Iterator[None]:
    """Hold a GPU alone among the processes of this user and machine: times taken by two at once are worth nothing."""
    if not gpu:
        yield
        return
    folder = toolchain.cache_root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{gpu}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compiled(point: Point, cc: int, nvcc: str | None = None) -> Binary | None:
    """The machine code of a point's stage; None for a library. Raises TilescopeError where it does not compile."""
    if point.stage in LIBRARIES:
        return None
    return toolchain.compile(stages.find(point.stage), dict(point.tunables), cc, nvcc)


@lru_cache(maxsize=16)
def _binary(stage: str, tunables: tuple[tuple[str, int], ...], cc: int, nvcc: str | None, sass: str) -> Binary:
    """The machine code of a stage, kept for the points that follow. `sass` only tells it from that of a source since changed."""
    return toolchain.compile(stages.find(stage), dict(tunables), cc, nvcc)


def key(task: Task, binary: Binary | None, tools: Mapping[str, str]) -> str:
    """What makes two measurements the same: the machine code and how it is launched, problem, device, sources and tools."""
    p = task.point
    plan = [] if binary is None else stages.find(p.stage).plan(p.problem, dict(p.tunables))
    functions = [] if binary is None else [(k.name, k.function.registers, k.function.static_shared, k.function.frame) for k in binary.kernels.values()]  # fmt: skip
    said = {
        "point": p.to_json(), "how": asdict(task.how), "backend": task.backend, "sass": task.sass, "functions": functions,
        "launches": [(x.entry, x.grid, x.block, x.tile, x.shared, x.args, x.label) for x in plan],
        "widths": task.widths, "tools": dict(tools),
    }  # fmt: skip
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def tools(how: How, gpu: Any = None) -> dict[str, str]:
    """Versions that a value of the sources depends on besides the machine code. `gpu`: of harness.gpu.devices, or None."""
    found = {"simulator": simulator_version()}
    if gpu is None:
        return found
    found |= {"gpu": gpu.name, "driver": machine.driver_version(_text("/proc/driver/nvidia/version"))}
    if "ncu" in how.sources:
        from . import ncu

        program = ncu.find(None)
        found["ncu"] = program.title if program else ""
    if "timing" in how.sources:
        found["cublas"] = next(filter(None, map(_installed, ("nvidia-cublas", "nvidia-cublas-cu12"))), "")
    if "racecheck" in how.sources:
        from . import sanitize

        sanitizer = sanitize.find()
        found["compute-sanitizer"] = sanitizer.version if sanitizer else ""
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def simulator_version() -> str:
    """A hash of the code that decides simulated values."""
    folder = Path(__file__).parent
    names = ("accuracy", "bounds", "cubin", "device", "isa", "metrics", "occupancy", "parameters", "problem")
    return _digest([*sorted((folder / "sim").glob("*.*")), *(folder / f"{name}.py" for name in names)])


@cache
def code_version() -> str:
    """A hash of all of this program, and of the kernels."""
    folder = Path(__file__).parent
    return _digest([*sorted(folder.rglob("*.py")), folder / "sim/engine.c", *sorted(stages.KERNELS.rglob("*.*"))])


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        if path.suffix in (".py", ".c", ".cu", ".cuh"):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _measure(task: Task, done: Measurement, note: Progress) -> None:
    point, sources = task.point, task.how.sources
    live = None
    if task.gpu:
        from .gpu import devices as gpus

        live = gpus.find(task.gpu)
    device = live.device if live else devices.find(point.device)
    binary = _binary(point.stage, point.tunables, device.cc, task.nvcc, task.sass) if task.sass else None
    if binary and binary.hash != task.sass:
        raise TilescopeError(
            f"{point.stage} compiles to other machine code here than where the run was started.",
            "Use the same nvcc everywhere (NVCC=).",
        )
    if binary and "sim" in sources:
        _simulate(task, binary, device, done, note)
    if binary and "trace" in sources:
        _trace(task, device, done)
    if live and not done.row.get("fault_kind"):
        if binary and "ncu" in sources:
            _count(task, binary, done, note)
        if "timing" in sources:
            _time(task, done, note)
    if live and binary and "racecheck" in sources:
        _racecheck(task, done, note)
    if live and binary and "launches" in sources:
        _launch_often(task, binary, done)


def _simulate(task: Task, binary: Binary, device: devices.Device, done: Measurement, note: Progress) -> None:
    point, problem = task.point, task.point.problem
    launches = stages.find(point.stage).plan(problem, dict(point.tunables))
    operands = problem.operands()
    done.outcome("launch_count", len(launches), "sim")
    try:
        found = sim.run(
            binary, launches, problem, operands, blocks=task.how.blocks, workers=task.threads, progress=note
        )
        error = accuracy.check(found.c, found.tiles, operands)
    except sim.Fault as fault:
        _faulty(fault, done)
        return
    widths = dict(task.widths)
    parts = [
        (x, metrics.launch_values(x.launch, x.kernel, x.counts, problem, device), bounds.bounds(x.launch, x.kernel, x.counts, device, widths))
        for x in found.launches
    ]  # fmt: skip
    for x, values, least in parts:
        for name, value in values.items() if len(parts) > 1 else ():
            done.outcome(name, value, "sim", x.launch.label)
        for b in least if len(parts) > 1 else ():
            done.outcome(f"bound: {b.name}", b.seconds, "sim", x.launch.label)
        if task.how.per_line:
            done.values += _per_pc(x)
    for name, value in metrics.totals([values for _, values, _ in parts], device).items():
        done.outcome(name, value, "sim")
    total = bounds.total(problem, [least for _, _, least in parts], device, widths)
    for b in total:
        done.outcome(f"bound: {b.name}", b.seconds, "sim")
    done.outcome("bound_ms", 1e3 * bounds.bottleneck(total).seconds, "sim")
    done.outcome("attainable_tflops", bounds.attainable_tflops(problem, total), "sim")
    done.outcome("right", error.ok, "sim")
    done.outcome("fault", 0, "sim")
    done.row |= {
        "ok": error.ok, "bottleneck": bounds.bottleneck(total).name, "error": error.max, "error_bound": error.bound,
        "checked": error.checked, "blocks_simulated": sum(x.blocks_run for x in found.launches),
    }  # fmt: skip


def _faulty(fault: sim.Fault, done: Measurement) -> None:
    done.outcome("fault", 1, "sim")
    done.outcome("right", 0, "sim")
    done.row |= {
        "ok": False, "fault_kind": fault.kind, "fault": fault.message, "fault_file": environment.public(fault.file) if fault.file else "",
        "fault_line": fault.line, "fault_text": fault.text, "fault_other_line": fault.other_line,
        "fault_block": str(fault.block or ""), "fault_thread": str(fault.thread or ""),
    }  # fmt: skip


def _per_pc(part: sim.LaunchCounts) -> Iterator[Row]:
    """Counts of every instruction that has any, as `profile` records them."""
    for column, (name, unit) in profiling.PER_PC.items():
        for pc, value in part.counts[column].items():
            if value:
                yield part.launch.label, name, int(pc), float(value), unit, "sim"


def _trace(task: Task, device: devices.Device, done: Measurement) -> None:
    from . import tracing

    found = tracing.trace(
        task.point.stage, task.point.problem, device=device.name, nvcc=task.nvcc, **dict(task.point.tunables)
    )
    for (row, column, phase), value in found.sums.items():
        done.outcome(f"C[{row}][{column}] after phase {phase}", value, "trace")


def _count(task: Task, binary: Binary, done: Measurement, note: Progress) -> None:
    """Nsight Compute's counters, as a profile on the GPU collects them."""
    from . import measured, ncu, watched

    point, problem = task.point, task.point.problem
    stage = stages.find(point.stage)
    launches = stage.plan(problem, dict(point.tunables))
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.cubin)
        words = watched.launch_words(point.stage, problem, dict(point.tunables), cubin, task.gpu)
        try:
            found = ncu.collect(stage.name, words, launches, ncu.Options(COUNTERS), progress=note)
        except ncu.Unavailable as e:
            done.row["ncu_missing"] = str(e).replace("\n", " ")
            return
    joined = measured.join(found, problem, launches, binary=binary)
    rows = joined.rows()
    done.values += [r for r in rows if (r[2] is None or task.how.per_line) and not r[1].startswith("opcode: ")]
    done.row["ncu"] = found.version


def _time(task: Task, done: Measurement, note: Progress) -> None:
    point, how = task.point, task.how
    against = None if how.against in ("none", point.stage) else how.against
    found = timings.time(
        point.stage, against=against, problem=point.problem, cold=how.cold, limit=how.limit_s, gpu=task.gpu, nvcc=task.nvcc,
        load="cubin", record=False, progress=note, **dict(point.tunables),
    )  # fmt: skip
    if found.interrupted:
        raise KeyboardInterrupt
    own = next((p for p in found.points if p.stage == point.stage), None)
    if own is None:
        raise next(iter(found.missing.values()), TilescopeError("it was not timed."))
    if own.fault:
        raise TilescopeError(own.fault.splitlines()[0])
    done.values += [(None, *row) for row in timings.values(own)]
    bound = done.value("bound_ms", "sim")
    if bound > 0:
        done.outcome("time_over_bound", own.ms.value / bound, "timing")
    rivals = own.rival_samples or [math.nan] * len(own.samples)
    done.samples = [(i, ms, own.rival, rivals[i]) for i, ms in enumerate(own.samples)]
    done.telemetry = list(zip(*vars(own.telemetry).values(), strict=True))
    done.row |= timings.run_columns(found, found.points.index(own))
    done.row["ok"] = bool(done.row.get("ok", True) and own.ok)


def _racecheck(task: Task, done: Measurement, note: Progress) -> None:
    from . import sanitize

    found = sanitize.sanitize(
        task.point.stage, problem=task.point.problem, tools=["racecheck"], nvcc=task.nvcc, gpu=task.gpu, limit=RACECHECK_LIMIT_S,
        progress=note, **dict(task.point.tunables),
    )  # fmt: skip
    [result] = found.results
    if result.verdict == sanitize.NOT_RUN:
        done.row["racecheck"] = f"not run: {result.why}"
        return
    done.outcome("racecheck_hazards", result.reported, "racecheck")
    done.row["racecheck"] = "; ".join(
        f"{i.what} {i.where}" + "".join(f", {o.kind.lower()} at {o.file}:{o.line}" for o in i.others)
        for i in found.issues
    )


def _launch_often(task: Task, binary: Binary, done: Measurement) -> None:
    from .gpu import repeated

    found = repeated.run(
        task.point.stage, task.point.problem, dict(task.point.tunables), binary.cubin, task.how.launches, task.gpu
    )
    done.outcome("wrong_launches", found["wrong"] / found["launches"], "launches")
    done.outcome("wrong_cells", found["most_wrong_cells"] / (task.point.problem.m * task.point.problem.n), "launches")
    done.row["launches_done"] = found["launches"]
