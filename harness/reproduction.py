"""`make reproduce EXP=RUN`: measure a recorded run of an experiment again, and say what differs.

Counters must be equal wherever the machine code is. Times are compared from their raw samples. The repetition is a run of its
own beside the recorded one, whose manifest names what it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import agreement, backends, experiment_record, experiments, statistics
from . import definition as definitions
from . import record as records
from .comparison import DOUBTFUL
from .errors import NotRecorded, TilescopeError, nearest
from .expectations import HOLDS
from .experiment_record import Experiment
from .experiments import Progress
from .measuring import Measurement
from .words import listed, several

NAMED = 3
"""Runs named of an experiment that has several."""


@dataclass(frozen=True)
class Difference:
    """A value that is not what it was. broken: it had to be, as the machine code is the same and the source counts exactly."""

    point: str
    metric: str
    source: str
    then: float
    now: float
    broken: bool


@dataclass(frozen=True)
class Timed:
    """A point's time then over its time now, with its interval and verdict; note: flags that speak against it."""

    point: str
    ratio: float
    lo: float
    hi: float
    verdict: str
    note: str = ""


@dataclass(frozen=True)
class Claimed:
    """A claim's verdict then and now."""

    says: str
    then: str
    now: str

    @property
    def lost(self) -> bool:
        """It held and was found not to hold any more."""
        return self.then == HOLDS and self.now != HOLDS


@dataclass
class Reproduction:
    """A recorded run beside its repetition.

    environment  (what, then, now) of what differs
    same_code    points that ran the same instructions; other_code: the others, in words
    equal        values that are equal; different: those that are not
    """

    experiment: str
    recorded: str
    again: str
    points: int
    environment: list[tuple[str, str, str]] = field(default_factory=list)
    same_code: int = 0
    other_code: list[str] = field(default_factory=list)
    equal: int = 0
    different: list[Difference] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)
    claims: list[Claimed] = field(default_factory=list)
    troubles: dict[str, str] = field(default_factory=dict)
    path: Path | None = None

    @property
    def why(self) -> str:
        """Why it is not reproduced, or nothing."""
        lost = [c.says for c in self.claims if c.lost]
        broken = sum(d.broken for d in self.different)
        words = [f"no longer holds: {x}" for x in lost]
        if broken:
            words.append(
                f"{several(broken, 'counter')} differ{'s' * (broken == 1)} although the machine code is the same"
            )
        if self.troubles:
            words.append(f"{several(len(self.troubles), 'point')} could not be measured")
        return "; ".join(words)

    @property
    def ok(self) -> bool:
        """Whether every claim that held still holds, and every counter that had to be equal is."""
        return not self.why

    def __str__(self) -> str:
        from . import experiment_report

        return experiment_report.render_reproduction(self)

    def to_json(self) -> dict[str, Any]:
        return records.plain(
            asdict(self) | {"ok": self.ok, "why": self.why, "path": str(self.path) if self.path else None}
        )


def reproduce(
    run: str | Path,
    *,
    backend: str | None = None,
    gpu: str | int | None = None,
    nvcc: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Measure every point of a recorded run anew and compare. run: see `find`. backend: the recorded one; 'sim' repeats what was
    simulated of a run on a GPU.

    Raises TilescopeError where the run is damaged, no experiment, made by a newer version, or needs a GPU that is not here; NotRecorded,
    which holds the Reproduction, where the repetition cannot be recorded.
    """
    recorded = find(run)
    before = experiment_record.loaded(recorded)
    definition = before.definition
    chosen = backend or before.backend
    try:
        experiments.choose(definition, chosen, scheduler)
    except TilescopeError as e:
        remedy = "BACKEND=sim repeats what was simulated." if "sim" in definition.backends else e.remedy
        raise TilescopeError(e.what, remedy) from e
    points = before.points
    if chosen == "sim" and before.backend == "gpu":
        points = definition.points("sim")
    try:
        again = experiments.run(
            definition, chosen, points, fresh=True, reproduces=recorded.id, gpu=gpu, nvcc=nvcc, workers=workers, scheduler=scheduler,
            out=out, progress=progress,
        )  # fmt: skip
    except NotRecorded as e:
        e.result = compare(before, e.result)
        raise
    return compare(before, again)


def find(run: str | Path) -> records.Run:
    """A run by its directory or id; or that of an experiment, by the experiment's name or folder, where there is only one that can
    be measured again here: on a GPU where there is one, else on the simulator.

    Runs that repeat another do not count. Raises TilescopeError where there is no such run; where an experiment has several,
    naming the newest.
    """
    path = Path(run).expanduser()
    if path.parent.name == "runs" or (path / "manifest.json").is_file():
        return records.load(run)
    try:
        folder = definitions.find(run).parent
    except TilescopeError:
        try:
            return records.load(run)
        except TilescopeError as e:
            near = nearest(str(run), definitions.names())
            raise TilescopeError(
                f"{e.what}{near}", "Give a run's directory or id, or an experiment that has one run."
            ) from e
    found = [
        r for r in map(_readable, sorted(folder.glob("runs/*/manifest.json"))) if r and not r.manifest.get("reproduces")
    ]
    found.sort(key=lambda r: r.manifest["started"])
    if not found:
        raise TilescopeError(f"experiment {folder.name} has no recorded run.", f"Run it: make experiment NAME={run}")
    here = "sim" if backends.gpu_missing() else "gpu"
    found = [r for r in found if r.manifest["backend"] == here] or found
    if len(found) > 1:
        newest = [f"{r.id} ({r.manifest['backend']}, {', '.join(r.manifest['devices'])})" for r in reversed(found)]
        raise TilescopeError(
            f"experiment {folder.name} has {len(found)} recorded runs: {listed(newest, NAMED)}.",
            f"Say which: EXP={found[-1].id}",
        )
    return records.load(found[0].path)


def _readable(manifest: Path) -> records.Run | None:
    try:
        return records.load(manifest.parent, check=False)
    except TilescopeError:
        return None


def compare(before: Experiment, again: Experiment) -> Reproduction:
    """A run of an experiment beside another."""
    found = Reproduction(
        before.definition.name, before.id, again.id, len(again.points), list(_environment(before.manifest, again.manifest)),
        troubles=again.troubles, path=again.path,
    )  # fmt: skip
    then = {_place(p): n for n, p in enumerate(before.points)}
    for n, point in enumerate(again.points):
        at = then.get(_place(point))
        if at is None:
            continue
        same = before.rows[at]["sass"] == again.rows[n]["sass"]
        found.same_code += same
        if not same:
            found.other_code.append(str(point))
        _counters(found, str(point), before.measurements[at], again.measurements[n], same)
        _times(found, str(point), before.measurements[at], again.measurements[n])
    verdicts = {c.says: c.verdict for c in again.claims}
    found.claims = [Claimed(c.says, c.verdict, verdicts.get(c.says, "not stated")) for c in before.claims]
    return found


def _place(point: Any) -> tuple:
    """What makes a point of one run that of another; on a GPU the device is whatever is there."""
    return point.stage, point.tunables, point.problem, point.repeat


def _environment(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(what, then, now) wherever the two runs' surroundings differ."""
    a, b = ({**m["environment"], **m["environment"].get("packages", {}), **m["tools"], "backend": m["backend"],
             "devices": ", ".join(m["devices"])} for m in (then, now))  # fmt: skip
    for side in (a, b):
        side.pop("packages", None)
        git = side.pop("git", None) or {}
        side["commit"] = f"{git.get('commit') or ''}{' and changes' if git.get('dirty') else ''}"
    for what in dict.fromkeys([*a, *b]):
        if a.get(what) != b.get(what):
            yield what, str(a.get(what) or ""), str(b.get(what) or "")


def _counters(found: Reproduction, point: str, then: Measurement, now: Measurement, same_code: bool) -> None:
    old = {(v[0], v[1], v[2], v[5]): v[3] for v in then.values if _counted(v[1], v[5])}
    new = {(v[0], v[1], v[2], v[5]): v[3] for v in now.values if _counted(v[1], v[5])}
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key, math.nan), new.get(key, math.nan)
        if a == b or math.isnan(a) and math.isnan(b):
            found.equal += 1
        elif key in old and key in new or same_code and key[3] == "sim":
            broken = same_code and not key[1].startswith("bound")
            found.different.append(Difference(point, key[1], key[3], a, b, broken))


def _counted(metric: str, source: str) -> bool:
    """Whether a value must be the same each time the same machine code runs: all that is simulated, and ncu's exact counters."""
    return source in ("sim", "trace") or source == "ncu" and metric in agreement.EXACT


def _times(found: Reproduction, point: str, then: Measurement, now: Measurement) -> None:
    if not then.samples or not now.samples:
        return
    ratio = statistics.unpaired_ratio([x[1] for x in now.samples], [x[1] for x in then.samples])
    doubts = sorted(DOUBTFUL & {*str(then.row.get("flags", "")).split(), *str(now.row.get("flags", "")).split()})
    verdict = "AMBIGUOUS" if doubts else statistics.verdict(ratio)
    found.times.append(Timed(point, ratio.value, ratio.lo, ratio.hi, verdict, " ".join(doubts)))
