"""`make bench`: how long Tilescope itself takes, and how much memory, on the machine at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import environment, sim, toolchain
from . import record as records
from . import stage as stages
from .errors import TilescopeError
from .problem import Problem
from .words import several

SIZES = (1024, 4095, 4096)
TARGETS = {
    "profile 1024": 3.0,
    "profile 4095": 5.0,
    "profile 4096": 5.0,
    "list": 0.4,
    "memory": 2048.0,
    "one core": 1.5,
    "index": 2.0,
}
"""What is asked for, in the unit of the figure: seconds, MiB, 1e9 thread instructions a second (the last one at least)."""
ARCH = 90
THROUGHPUT_SIZE = 512


@dataclass(frozen=True)
class Figure:
    """One measured figure. `target` in words, where there is one, and whether it was met."""

    what: str
    value: float
    unit: str
    target: str = ""
    met: bool = True


@dataclass
class Bench:
    """The figures and the machine; `path` is the run directory."""

    figures: list[Figure]
    cpu: str
    cores: int
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "cpu": self.cpu,
            "cores": self.cores,
            "figures": [asdict(f) for f in self.figures],
            "path": str(self.path) if self.path else None,
        }


def run(
    *, sizes: Sequence[int] = SIZES, out: str | Path | None = None, progress: Callable[[float, str], None] | None = None
) -> Bench:
    """Measure everything once stages and engine are compiled, and record the figures as a run of kind 'bench'.

    Raises TilescopeError on sizes that no problem can have, before anything is measured.
    """
    if not sizes:
        raise TilescopeError("SIZES names no size.", "Give one or more, with commas between.")
    for n in sizes:
        Problem(n, n, n)
    note = progress or (lambda fraction, text: None)
    started = time.time()
    run_id = records.new_id("bench", tuple(sizes))
    path = records.destination(out, "bench", run_id)
    names = stages.names()
    steps = len(names) * (len(sizes) + 1) + 5
    figures: list[Figure] = []
    step = 0

    def doing(what: str) -> None:
        nonlocal step
        note(step / steps, what)
        step += 1

    for name in names:
        doing(f"compiling {name}")
        _command("profile", name, "--size", "64", "--record", "no")
    doing("list")
    seconds = min(_command("list")[0] for _ in range(3))
    figures.append(_below("list", seconds, "s", TARGETS["list"]))
    for n in sizes:
        for name in names:
            doing(f"profile {name} at {n}")
            seconds, peak = _command("profile", name, "--size", str(n), "--record", "no")
            figures.append(_below(f"profile {name}, {n:,}^3", seconds, "s", TARGETS.get(f"profile {n}")))
            if n == max(sizes):
                figures.append(_below(f"peak memory, {name}, {n:,}^3", peak, "MiB", TARGETS["memory"]))
    figures += _throughput(doing)
    figures += _index(doing)
    result = Bench(figures, environment.cpu(), environment.cores())
    _record(result, run_id, path, started)
    return result


def _below(what: str, value: float, unit: str, limit: float | None) -> Figure:
    if limit is None:
        return Figure(what, value, unit)
    return Figure(what, value, unit, f"under {limit:g} {unit}", value < limit)


def _command(*words: str) -> tuple[float, float]:
    """(wall seconds, peak resident MiB) of a harness command. Raises TilescopeError where it fails."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "harness", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=records.ROOT
    )
    with child.stderr:
        complaint = child.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise TilescopeError(f"`{' '.join(words)}` failed with status {child.returncode}: {complaint.strip()}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def _throughput(doing: Callable[[str], None]) -> Iterator[Figure]:
    """Thread instructions a second of the simulator, on one core and on all, best of three."""
    stage = stages.find("tiled2d")
    problem = Problem(THROUGHPUT_SIZE, THROUGHPUT_SIZE, THROUGHPUT_SIZE)
    tunables = stage.configure()
    binary = toolchain.compile(stage, tunables, ARCH)
    operands, launches = problem.operands(), stage.plan(problem, tunables)
    for workers in sorted({1, environment.cores()}):
        doing(f"simulator, {several(workers, 'core')}")
        runs = [sim.run(binary, launches, problem, operands, blocks="all", workers=workers) for _ in range(3)]
        rate = max(r.thread_instructions / r.seconds for r in runs) / 1e9
        what = f"simulator, tiled2d {THROUGHPUT_SIZE}^3, {several(workers, 'core')}"
        unit = "G thread inst/s"
        if workers == 1:
            yield Figure(what, rate, unit, f"at least {TARGETS['one core']:g} {unit}", rate >= TARGETS["one core"])
        else:
            yield Figure(what, rate, unit)


def _index(doing: Callable[[str], None]) -> Iterator[Figure]:
    """Seconds to list 10,000 points: of 100 runs of an experiment, run by run and point by point."""
    import pandas as pd

    from . import indexing

    doing("index of 10,000 points")
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        root = Path(folder)
        for number in range(100):
            rows = [{"run": f"{number}/{n}", "kind": "experiment", "experiment": "x", "stage": "tiled2d", "m": n, "n": n, "k": n,
                     "tunables": '{"BM": 64}', "device": "h200", "backend": "sim", "ok": True, "started": f"{number}"} for n in range(100)]  # fmt: skip
            manifest = {
                "id": f"{number}",
                "kind": "experiment",
                "experiment": "x",
                "points": 100,
                "started": f"{number}",
            }
            records.write(root / f"experiments/x/runs/{number}", manifest, {"runs": pd.DataFrame(rows)})
        for what, points in (("index, 100 runs", False), ("index, 10,000 points", True)):
            start = time.perf_counter()
            indexing.index(points=points, root=root)
            yield _below(what, time.perf_counter() - start, "s", TARGETS["index"])


def _record(result: Bench, run_id: str, path: Path, started: float) -> None:
    import pandas as pd

    from . import report

    where = environment.describe()
    manifest = {
        "id": run_id, "kind": "bench", "started": records.timestamp(started), "ended": records.timestamp(time.time()),
        "environment": where, "figures": [asdict(f) for f in result.figures],
    }  # fmt: skip
    values = [(run_id, None, f.what, None, f.value, f.unit, "timing") for f in result.figures]
    row = {"run": run_id, "kind": "bench", "cpu": where["cpu"], "cores": where["cores"], "started": manifest["started"]}
    tables = {
        "runs": pd.DataFrame([row]),
        "values": records.frame(records.VALUES, values),
        "lines": records.frame(records.LINES, []),
    }
    records.save(result, path, manifest, tables, {"profile.txt": report.render_bench(result)})
