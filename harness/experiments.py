"""`make experiment NAME=`: measure every point of a definition and record them as one run; go on where a killed one stopped.

A point is known by its key (harness.measuring.key): machine code, launch, problem, device, sources, and tool versions. What
the journal or an earlier run of the experiment has under the same key is not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import backends, experiment_record, measuring, roofs, toolchain
from . import definition as definitions
from . import device as devices
from . import record as records
from .definition import Definition, Point
from .errors import TilescopeError
from .experiment_record import Experiment
from .journal import Journal
from .measuring import Measurement, Task

if TYPE_CHECKING:
    from .gpu.devices import Gpu
    from .toolchain import Binary

Progress = Callable[[float, str], None]


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
    if out:  # refused here, before what is missing for the backend is
        records.destination(out, definition.name, "")
    toolchain.check(nvcc)
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
    """Measure points of a definition; see `experiment`. reproduces: id of the run that is repeated. Raises NotRecorded, which holds the
    Experiment, where the run cannot be recorded: its points stay in the journal."""
    note = progress or (lambda fraction, words: None)
    started = time.time()
    identity = records.new_id(definition.name, tuple(points))
    path = records.destination(out or definition.folder / "runs" / identity, definition.name, identity)
    live, versions = _surroundings(definition, backend, gpu, scheduler)
    note(0.0, "compiling")
    tasks, binaries = _tasks(definition, backend, points, live, versions, nvcc, note)
    mark = f"reproduce-{reproduces}" if reproduces else f"{definition.name}-{backend}"
    with Journal(path.parent / f".journal-{mark}.jsonl") as journal:
        known = {} if fresh else experiment_record.earlier(definition, {t.key for t in tasks})
        if not fresh and (same := experiment_record.earlier_run(definition, tasks, known)):
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
            identity, definition, backend, list(points), measurements, experiment_record.rows(definition, tasks, binaries, live), taken, [], started, time.time()
        )  # fmt: skip
        result.claims = [c.judge(result.measured) for c in definition.claims]
        note(1.0, "recording")
        experiment_record.write(result, path, binaries, tasks, versions, reproduces)
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
