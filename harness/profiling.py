"""harness.profile: from a stage's name to a recorded Profile."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import (
    accuracy,
    backends,
    bounds,
    claims,
    environment,
    findings,
    measured,
    metrics,
    ncu,
    roofs,
    sim,
    timings,
    toolchain,
    watched,
)
from . import device as devices
from . import record as records
from . import stage as stages
from .device import Device
from .errors import TilescopeError
from .measurement import Point
from .occupancy import Occupancy, occupancy, static_shared
from .problem import Problem
from .stage import Claim, Launch, Stage
from .timings import Timings
from .toolchain import Binary, Kernel

if TYPE_CHECKING:
    from .gpu.devices import Gpu

SIZE = 1024
"""M, N and K where the caller names none."""
TIME_LIMIT_S = 1.0
"""Seconds that a profile spends on timing, the warm-up left out."""
Progress = Callable[[float, str], None]

PER_PC = {
    "executed": ("inst_executed", "inst"),
    "threads": ("thread_inst_executed", "inst"),
    "threads_on": ("thread_inst_executed_true", "inst"),
    "predicted": (metrics.SHARED, "wavefronts"),
    "predicted_ideal": (metrics.SHARED_IDEAL, "wavefronts"),
    "sectors": (metrics.L2_SECTORS, "sectors"),
    "sectors_ideal": (metrics.L2_SECTORS_IDEAL, "sectors"),
    "requests": ("requests", "requests"),
    "lines": ("lines", "lines"),
}
"""Column of the counts -> (metric, unit) that each instruction's count is recorded under."""


@dataclass
class LaunchProfile:
    """One launch: what was simulated and what follows. `counts` is indexed by pc; `metrics` maps names to values."""

    launch: Launch
    kernel: Kernel
    counts: pd.DataFrame
    blocks_run: int
    metrics: dict[str, float]
    occupancy: Occupancy
    bounds: list[bounds.Bound]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.launch.label,
            "kernel": self.kernel.name,
            "grid": self.launch.grid,
            "block": self.launch.block,
            "blocks_simulated": self.blocks_run,
            "metrics": self.metrics,
            "occupancy": asdict(self.occupancy) | {"limiter": self.occupancy.limiter},
            "bounds": _bounds_json(self.bounds),
        }


@dataclass(repr=False)
class Profile:
    """What a stage does with a problem on a device; print() shows all of it.

    With a `fault`, the kernel was stopped and nothing was counted.

    claims    a Verdict for each claim that speaks of this problem
    findings  at most five, costliest first
    measured  what Nsight Compute counted, on the gpu backend where it could; else `notes` say why not
    timing    the stage and cuBLAS timed, on the gpu backend: its Point is `timed`
    damage    in words, what the stage wrote outside of C on the GPU
    bounds    of all launches together
    path      the run directory, or None where none was recorded
    """

    id: str
    stage: Stage
    problem: Problem
    tunables: dict[str, int]
    device: Device
    backend: str
    binary: Binary
    parts: list[LaunchProfile]
    totals: dict[str, float]
    bounds: list[bounds.Bound]
    claims: list[claims.Verdict]
    findings: list[findings.Finding]
    error: accuracy.Accuracy | None
    fault: sim.Fault | None
    started: float
    ended: float
    measured: measured.Measured | None = None
    timing: Timings | None = None
    damage: str = ""
    notes: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def timed(self) -> Point | None:
        """The stage's times; None where nothing was timed."""
        return self.timing.points[0] if self.timing else None

    def __repr__(self) -> str:
        return f"<Profile {self.id}: {self.stage.name} {self.problem} on {self.device.name}, {'ok' if self.ok else 'NOT OK'}>"

    def __str__(self) -> str:
        from . import report

        return report.render(self)

    @property
    def ok(self) -> bool:
        """Whether the kernel ran without a fault and C is right. A claim that does not hold is a finding, not a failure."""
        return self.fault is None and self.error is not None and self.error.ok and not self.damage

    @cached_property
    def launches(self) -> pd.DataFrame:
        """One row per launch: kernel, grid, block, blocks, blocks_simulated, and a column per metric."""
        rows = [
            {
                "launch": p.launch.label, "kernel": p.kernel.name, "grid": p.launch.grid, "block": p.launch.block,
                "blocks": p.launch.blocks, "blocks_simulated": p.blocks_run, **p.metrics,
            }
            for p in self.parts
        ]  # fmt: skip
        return pd.DataFrame(rows)

    @cached_property
    def values(self) -> pd.DataFrame:
        """Every value in long form, columns of record.VALUES: per instruction, per launch, and (launch empty) in total."""
        rows: list[tuple] = []
        units = {name: m.unit for name, m in metrics.METRICS.items()}
        for p in self.parts:
            label = p.launch.label
            rows += [(label, name, None, value, units[name], "sim") for name, value in p.metrics.items()]
            rows += [(label, f"bound: {b.name}", None, b.seconds, "s", "sim") for b in p.bounds]
        rows += [(None, name, None, value, units[name], "sim") for name, value in self.totals.items()]
        rows += [(None, f"bound: {b.name}", None, b.seconds, "s", "sim") for b in self.bounds]
        for claim in self.claims:
            unit = "x" if claim.against else None
            rows += [(None, r.metric, None, claim.expected, unit or units[r.metric], "claim") for r in claim.readings]
        if self.measured:
            rows += self.measured.rows()
        if self.timed:
            rows += [(None, *row) for row in timings.values(self.timed)]
        if self.error:
            rows += [
                (None, "error max", None, self.error.max, "", "sim"),
                (None, "error bound", None, self.error.bound, "", "sim"),
            ]
        table = pd.DataFrame(rows, columns=["launch", "metric", "pc", "value", "unit", "source"])
        table = pd.concat([table.astype({"pc": "Int64"}), *map(_per_pc, self.parts)], ignore_index=True)
        return records.frame(records.VALUES, table.assign(run=self.id))

    @cached_property
    def source_lines(self) -> pd.DataFrame:
        """Counts per source line, all launches together: file, line, text, and the columns of metrics.lines."""
        if not self.parts:
            return pd.DataFrame(columns=["file", "line", "text"])
        table = (
            pd.concat([metrics.lines(p.kernel, p.counts) for p in self.parts])
            .groupby(level=["file", "line"])
            .sum()
            .reset_index()
        )
        table.insert(2, "text", [self.binary.source_line(f, n) for f, n in zip(table.file, table.line, strict=True)])
        return table

    @cached_property
    def lines(self) -> pd.DataFrame:
        """The machine code, each instruction with its source line: what a run records, columns of record.LINES."""
        return instructions(self.binary)

    def to_json(self) -> dict[str, Any]:
        """The profile as JSON can hold it; NaN becomes null."""
        return records.plain(
            {
                "run": self.id,
                "ok": self.ok,
                "stage": self.stage.name,
                "problem": asdict(self.problem),
                "tunables": self.tunables,
                "device": self.device.name,
                "arch": self.device.arch,
                "backend": self.backend,
                "binary": _binary_json(self.binary, self.device),
                "launches": [p.to_json() for p in self.parts],
                "totals": self.totals,
                "bounds": _bounds_json(self.bounds) if self.bounds else None,
                "attainable_tflops": bounds.attainable_tflops(self.problem, self.bounds) if self.bounds else None,
                "claims": [asdict(c) | {"holds": c.holds} for c in self.claims],
                "findings": [asdict(f) | {"file": environment.public(f.file) if f.file else ""} for f in self.findings],
                "error": self.error.to_json() if self.error else None,
                "fault": _fault_json(self.fault) if self.fault else None,
                "measured": self.measured.to_json() if self.measured else None,
                "timing": self.timing.to_json() if self.timing else None,
                "damage": self.damage or None,
                "notes": self.notes,
                "path": str(self.path) if self.path else None,
            }
        )


def profile(
    kernel: str | Path,
    *,
    size: int | None = None,
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    lda: int = 0,
    ldb: int = 0,
    ldc: int = 0,
    distribution: str = "normal",
    seed: int = 0,
    device: str | None = None,
    backend: str = "auto",
    gpu: str | int | None = None,
    out: str | Path | None = None,
    record: bool = True,
    nvcc: str | None = None,
    counters: ncu.Options | None = None,
    tuned: bool = False,
    progress: Progress | None = None,
    **tunables: int,
) -> Profile:
    """Compile a stage, execute it, check C, and say what it does with the hardware.

    kernel: a stage's name or a path to its file. size: m, n and k at once (SIZE where nothing is given). tunables: in any
    case, tile=16 or TILE=16. out: the run directory (default profiles/STAGE/RUN). progress: called with (fraction done,
    what is being done). counters: what Nsight Compute collects on the gpu backend. tuned: with the tunables that won a recorded search.

    A wrong C or a fault of the kernel is a Profile that is not `ok`. Raises TilescopeError on bad input, where the stage
    does not compile or does not fit the device; NotRecorded, which holds the Profile, where the run cannot be recorded.
    """
    note = progress or (lambda fraction, text: None)
    started = time.time()
    stage = stages.find(str(kernel))
    chosen = configure(stage, tunables)
    problem = Problem(*shape(size, m, n, k), alpha, beta, lda, ldb, ldc, distribution, seed)
    run = records.new_id(stage.name, problem, chosen)
    path = records.destination(out, stage.name, run) if record else None
    toolchain.check(nvcc)
    backend, target, live = backend_and_device(backend, device, gpu)
    if tuned:
        from . import tune

        chosen = configure(stage, tune.winner(stage, problem, target) | tunables)
    launches = stage.plan(problem, chosen)
    widths = roofs.recorded_widths(target)

    note(0.0, f"compiling {stage.name}")
    binary = toolchain.compile(stage, chosen, target.cc, nvcc)
    operands = problem.operands()
    error = fault = timing = None
    notes: tuple[str, ...] = ()
    parts: list[LaunchProfile] = []
    try:
        arena = sim.Arena(problem, operands)
        done = sim.run(
            binary, launches, problem, operands, progress=lambda f, text: note(0.1 + 0.6 * f, text), arena=arena
        )
        parts = [_measured(x, problem, target, widths) for x in done.launches]
        note(0.7, "checking C against float64")
        error = accuracy.check(done.c, done.tiles, operands)
    except sim.Fault as e:
        fault = e
    except sim.NotSimulated as e:
        if not live:
            raise
        notes = (f"{e.what[0].upper()}{e.what[1:]}",)
    totals = metrics.totals([p.metrics for p in parts], target)
    counted, damage = None, ""
    if live and not fault:
        timing = _timed(kernel, problem, chosen, live, nvcc, lambda f, text: note(0.7 + 0.05 * f, text))
        error, damage = _worst(error, timing.points[0]), timing.points[0].damage
        note(0.75, "Nsight Compute")
        counted, more = _counters(
            kernel, stage, problem, chosen, launches, binary, parts, counters or ncu.Options(), live.uuid, note
        )
        notes = (*notes, *more, *timing.warnings)
    note(0.8, "comparing with what the articles claim")
    verdicts = _claims(stage, chosen, problem, target, arena, totals, nvcc) if parts else []
    result = Profile(
        run, stage, problem, chosen, target, backend, binary, parts, totals,
        bounds=bounds.total(problem, [p.bounds for p in parts], target, widths) if parts else [],
        claims=verdicts,
        findings=findings.findings([(p.launch, p.kernel, p.counts) for p in parts], problem, target, widths),
        error=error, fault=fault, started=started, ended=time.time(), measured=counted, timing=timing, damage=damage, notes=notes,
    )  # fmt: skip
    if path:
        note(0.95, "recording")
        _record(result, path)
    return result


def backend_and_device(backend: str, device: str | None, gpu: str | int | None) -> tuple[str, Device, Gpu | None]:
    """(backend, the device to compile for, the GPU to run on or None). DEVICE= for another kind of GPU than is here means `sim`."""
    named = devices.find(device) if device else None
    chosen = backends.choose(backend)
    if chosen == "sim":
        if gpu is not None:
            raise TilescopeError(
                f"GPU={gpu} needs BACKEND=gpu.", f"Here: {backends.gpu_missing() or 'BACKEND=sim was asked for'}."
            )
        return "sim", named or devices.find("h200"), None
    from .gpu import devices as live

    found = live.find(gpu)
    if named and named.name != found.device.name:
        if backend == "auto" and gpu is None:
            return "sim", named, None
        raise TilescopeError(
            f"DEVICE={named.name} is not what is here: {found}.",
            "Leave DEVICE out, or use BACKEND=sim to simulate another GPU.",
        )
    return "gpu", found.device, found


def _timed(
    kernel: str | Path, problem: Problem, tunables: dict[str, int], gpu: Gpu, nvcc: str | None, note: Progress
) -> Timings:
    """A stage checked on the GPU and timed beside cuBLAS, shortly. Raises TilescopeError where it crashes or hangs."""
    done = timings.time(
        kernel, problem=problem, limit=TIME_LIMIT_S, gpu=gpu.index, nvcc=nvcc, record=False, progress=note, **tunables
    )
    if done.interrupted:
        raise KeyboardInterrupt
    if done.points[0].backend != "gpu":  # the rival alone
        raise next(iter(done.missing.values()))
    if done.points[0].fault:
        what, *remedy = done.points[0].fault.splitlines()
        raise TilescopeError(what, "\n".join(remedy))
    return done


def _worst(simulated: accuracy.Accuracy | None, point: Point) -> accuracy.Accuracy | None:
    """What to report of C: whatever is wrong, the GPU's first; else the GPU's against float64."""
    found = [a for a in (point.accuracy, point.exact, simulated) if a is not None]
    return next((a for a in found if not a.ok), found[0] if found else None)


def configure(stage: Stage, tunables: Mapping[str, int | str]) -> dict[str, int]:
    """The stage's tunables, with those given in whatever case. Raises TilescopeError as Stage.configure does, or on one given twice."""
    spelt = {name.upper(): name for name in stage.tunables}
    given: dict[str, int | str] = {}
    for name, value in tunables.items():
        proper = spelt.get(name.upper(), name)
        if proper in given:
            raise TilescopeError(f"{proper} is given twice: {given[proper]} and {value}.")
        given[proper] = value
    return stage.configure(given)


def shape(size: int | None, m: int | None, n: int | None, k: int | None) -> tuple[int, int, int]:
    """(m, n, k) from either `size` or any of m, n, k; SIZE for those not given. Raises TilescopeError if both are given."""
    given = [name for name, value in (("M", m), ("N", n), ("K", k)) if value is not None]
    if size is not None and given:
        raise TilescopeError(f"SIZE={size} and {given[0]} are both given.", "Give SIZE, or M, N and K.")
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TilescopeError(f"SIZE={size!r} is not an integer.")
        if size < 1:
            raise TilescopeError(f"SIZE={size} is less than 1.")
    default = SIZE if size is None else size
    return tuple(default if x is None else x for x in (m, n, k))


def _measured(
    done: sim.LaunchCounts, problem: Problem, device: Device, widths: Mapping[str, float] | None = None
) -> LaunchProfile:
    return LaunchProfile(
        done.launch,
        done.kernel,
        done.counts,
        done.blocks_run,
        metrics=metrics.launch_values(done.launch, done.kernel, done.counts, problem, device),
        occupancy=occupancy(done.kernel, done.launch, device),
        bounds=bounds.bounds(done.launch, done.kernel, done.counts, device, widths),
    )


def _counters(
    kernel: str | Path,
    stage: Stage,
    problem: Problem,
    tunables: dict[str, int],
    launches: list[Launch],
    binary: Binary,
    parts: list[LaunchProfile],
    options: ncu.Options,
    gpu: str,
    note: Progress,
) -> tuple[measured.Measured | None, tuple[str, ...]]:
    """What Nsight Compute counts of the very machine code that was simulated; or None, and why this machine gives no counters."""
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.cubin)
        words = watched.launch_words(kernel, problem, tunables, cubin, gpu)
        try:
            collection = ncu.collect(
                stage.name, words, launches, options, progress=lambda f, text: note(0.75 + 0.05 * f, text)
            )
        except ncu.Unavailable as e:
            return None, (f"No hardware counters: {e}",)
    simulated = {p.launch.label: measured.Simulated(p.metrics, p.counts) for p in parts}
    return measured.join(collection, problem, launches, simulated, binary), ()


def _claims(
    stage: Stage,
    tunables: dict[str, int],
    problem: Problem,
    device: Device,
    arena: sim.Arena,
    totals: dict[str, float],
    nvcc: str | None,
) -> list[claims.Verdict]:
    """The verdicts, with the baselines that the claims compare against counted on the same problem."""
    context = SimpleNamespace(t=SimpleNamespace(**tunables), p=problem, d=device)
    baselines = {}
    for name in sorted({c.against for c in stage.claims if c.against and _speaks(c, context)}):
        try:
            baselines[name] = _counted(name, problem, device, arena, nvcc)
        except (TilescopeError, sim.Fault):
            continue  # claims.check says of the claim that its baseline is missing
    return claims.check(stage, context, totals, baselines)


def _speaks(claim: Claim, context: SimpleNamespace) -> bool:
    try:
        return bool(claim.when(context))
    except Exception:  # the stage author's code; claims.check reports it
        return False


def count(
    stage: Stage,
    tunables: dict[str, int],
    problem: Problem,
    device: Device,
    arena: sim.Arena,
    nvcc: str | None = None,
    widths: Mapping[str, float] | None = None,
) -> tuple[Binary, list[LaunchProfile]]:
    """The machine code of a stage, and its launches counted from one block of each class. C is not checked."""
    binary = toolchain.compile(stage, tunables, device.cc, nvcc)
    done = sim.run(binary, stage.plan(problem, tunables), problem, arena.operands, blocks="count", arena=arena)
    return binary, [_measured(x, problem, device, widths) for x in done.launches]


def _counted(name: str, problem: Problem, device: Device, arena: sim.Arena, nvcc: str | None) -> dict[str, float]:
    """The totals of a stage with its default tunables."""
    stage = stages.find(name)
    _, parts = count(stage, stage.configure(), problem, device, arena, nvcc)
    return metrics.totals([p.metrics for p in parts], device)


def instructions(binary: Binary) -> pd.DataFrame:
    """The machine code of a binary, each instruction with its source line: columns of record.LINES."""
    rows = [
        (k.hash, k.name, i.pc, i.opcode, environment.public(i.file), i.line, binary.source_line(i.file, i.line))
        for k in binary.kernels.values()
        for i in k.instructions
    ]
    return records.frame(records.LINES, rows)


def _per_pc(part: LaunchProfile) -> pd.DataFrame:
    """The counts of a launch in long form; zeros are left out."""
    names = {column: name for column, (name, _) in PER_PC.items()}
    units = dict(PER_PC.values())
    table = part.counts[list(PER_PC)].rename(columns=names).rename_axis(columns="metric").stack().rename("value")
    table = table[table != 0].reset_index()
    return table.assign(launch=part.launch.label, unit=table.metric.map(units), source="sim").astype({"pc": "Int64"})


def _bounds_json(found: list[bounds.Bound]) -> dict[str, Any]:
    return {"bottleneck": bounds.bottleneck(found).name, "resources": [asdict(b) for b in found]}


def _binary_json(binary: Binary, device: Device) -> dict[str, Any]:
    kernels = binary.kernels.values()
    return {
        "registers": max(k.function.registers for k in kernels),
        "shared_bytes": max(static_shared(k, device) for k in kernels),
        "spills": {
            "store_bytes": sum(k.spill_stores for k in kernels),
            "load_bytes": sum(k.spill_loads for k in kernels),
        },
        "hashes": {
            "sass": binary.hash,
            "cubin": _sha256(binary.portable_cubin()),
            "source": {
                environment.public(path): _sha256(text.encode()) for path, text in sorted(binary.sources.items())
            },
        },
        "kernels": {
            k.name: {"registers": k.function.registers, "sass": k.hash, "instructions": len(k.instructions)}
            for k in kernels
        },
        "flags": binary.flags,
        "nvcc": binary.compiler,
        "nvdisasm": binary.disassembler,
    }


def _fault_json(fault: sim.Fault) -> dict[str, Any]:
    return {
        "kind": fault.kind, "message": fault.message, "kernel": fault.kernel, "file": environment.public(fault.file) if fault.file else "",
        "line": fault.line, "text": fault.text, "block": fault.block, "thread": fault.thread, "address": fault.address,
    }  # fmt: skip


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _record(profile: Profile, path: Path) -> None:
    from . import report

    summary = profile.to_json()
    del summary["path"], summary["run"]
    where = environment.describe()
    manifest = {
        "id": profile.id,
        "kind": "profile",
        "started": records.timestamp(profile.started),
        "ended": records.timestamp(profile.ended),
        "environment": where,
        "units": {name: m.unit for name, m in metrics.METRICS.items() if name in profile.totals},
        **summary,
    }
    row = {
        "run": profile.id, "kind": "profile", "stage": profile.stage.name, **asdict(profile.problem),
        "tunables": json.dumps(profile.tunables), "arch": profile.device.arch, "device": profile.device.name,
        "backend": profile.backend, "nvcc": profile.binary.compiler, "nvdisasm": profile.binary.disassembler,
        "python": where["python"], "sass": profile.binary.hash, "cubin": summary["binary"]["hashes"]["cubin"],
        "source": _sha256(json.dumps(summary["binary"]["hashes"]["source"]).encode()),
        "commit": (where["git"] or {}).get("commit"), "dirty": (where["git"] or {}).get("dirty"),
        "started": manifest["started"], "ended": manifest["ended"], "ok": profile.ok,
    }  # fmt: skip
    records.save(
        profile,
        path,
        manifest,
        {
            "runs": pd.DataFrame([row | timings.run_columns(profile.timing, 0) if profile.timing else row]),
            "values": profile.values,
            "lines": profile.lines,
            **(profile.timing.tables(profile.id) if profile.timing else {}),
        },
        {
            "sass.txt": profile.binary.sass(),
            "kernel.cubin": profile.binary.portable_cubin(),
            "profile.txt": report.render(profile),
            **{Path(path).name: text for path, text in profile.binary.sources.items()},
            **(profile.measured.files() if profile.measured else {}),
        },
        "RECORD=no records nothing.",
    )
