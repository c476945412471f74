"""`make tune`: Optuna over a stage's legal tunables, in two phases.

First, on any machine: candidates are compiled side by side and counted by the simulator, and those are dropped that spill,
keep too few warps on an SM, or whose largest bound is well above the best one's. Then, where a GPU is: the rest are timed,
the one expected to be the fastest first, with the referee's timer and the ready cubins; and some of those that the bounds dropped, to see whether they
dropped a winner. Without a GPU it ends with the ranked candidates.

What was tried lies in a journal, so that a search goes on where it stopped; it is named after the stage's source, the device, the
problem and the choices, and a copy is in each run. Carried to a machine with a GPU, together with the folder of compiled stages
(TILESCOPE_CACHE), it lets the second phase run there without a compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import bounds, disk, environment, profiling, record, roofs, sim, timings, toolchain
from . import cubin as elf
from . import stage as stages
from .device import Device
from .errors import NotCompiled, TilescopeError
from .journal import hold
from .problem import Problem
from .stage import Stage
from .words import several

if TYPE_CHECKING:
    import optuna
    from optuna.storages.journal import BaseJournalBackend

COUNT, TIMED, SAMPLED = 40, 12, 4
"""Candidates compiled, candidates timed, and candidates timed though the bounds dropped them."""
MARGIN = 1.15
"""A candidate is dropped whose largest bound is more than this times the best."""
LEAST_WARPS = 4
"""On an SM: one for each scheduler."""
DRAWS = 20_000
"""Combinations looked at for a legal one that is new; where there are fewer in all, all of them."""
SLACK = 0.01
"""A dropped candidate counts as a winner if it is faster than the best kept one by more than this."""
SHARPNESS = 4
"""Of the norm that joins the schedulers' bound and the data stage's: resources that are both near their limit wait for each other."""
INSTRUCTION_CACHE, REFETCH = 32 * 1024, 1.04
"""Bytes of a loop that an SM's instruction cache surely holds, and what a longer one costs: a factor that an H200 showed for 35 KiB."""
LIMIT_S = 2.0
RULES = 5
"""Rules shown, of those that suggestions broke; all are recorded."""
UNLAUNCHABLE = "its launches must be ones that a GPU takes"
"""What stands for a rule where the stage's own allow a combination whose launches are not possible."""
KEPT = "What was tried is kept: the same command goes on from there."
READY, TIMED_WELL = "ready", "timed"
STATES = {
    TIMED_WELL: "timed", READY: "ready to be timed", "wrong": "wrong or at fault when timed", "bounds": "dropped by the bounds",
    "occupancy": "dropped: too few warps on an SM", "spills": "dropped: registers spill", "fault": "dropped: the simulator found a fault",
    "compile": "dropped: does not compile", "illegal": "suggested against the stage's rules",
}  # fmt: skip
"""Of a candidate, best first."""
Choices = dict[str, tuple[int, ...]]


@dataclass
class Candidate:
    """Tunables and what became of them. state: of STATES; why: in words where it was dropped; sampled: timed though dropped;
    loop_bytes and bunched: of the loop with the most multiply-adds, the latter as roofs.Loop has it; expected_ms: of `expected`."""

    tunables: dict[str, int]
    state: str = READY
    why: str = ""
    registers: float = math.nan
    warps: float = math.nan
    bound: str = ""
    bound_ms: float = math.nan
    ms: float = math.nan
    ms_lo: float = math.nan
    ms_hi: float = math.nan
    ratio: float = math.nan
    sampled: bool = False
    sass: str = ""
    loop_bytes: int = 0
    bunched: float = math.nan
    expected_ms: float = math.nan


@dataclass(frozen=True)
class Timed:
    """What a timer says: ms with its 95 % interval, cuBLAS's time over this one's, and what is wrong, or nothing."""

    ms: float
    ms_lo: float
    ms_hi: float
    ratio: float = math.nan
    wrong: str = ""


Timer = Callable[[dict[str, int]], Timed]


@dataclass
class Tuned:
    """A search's outcome: candidates best first; of those against the stage's rules only how many broke which.

    backend  'gpu' where candidates were timed, else 'sim'
    illegal  suggestions by the first rule that each breaks, most frequent first
    known    candidates that the journal held already; measured: how many were timed now
    """

    id: str
    stage: str
    problem: Problem
    device: str
    backend: str
    choices: Choices
    candidates: list[Candidate]
    illegal: dict[str, int]
    options: dict[str, Any]
    journal: Path | None = None
    path: Path | None = None
    interrupted: bool = False
    defaults: dict[str, int] = field(default_factory=dict)
    known: int = 0
    measured: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Candidates by state; `bounds` holds the sampled ones too."""
        found = {state: sum(c.state == state and not c.sampled for c in self.candidates) for state in STATES}
        found["bounds"] += sum(c.sampled for c in self.candidates)
        return found | {"illegal": sum(self.illegal.values())}

    @property
    def winner(self) -> Candidate | None:
        """The fastest that was timed and right, or without times the one expected to be."""
        timed = [c for c in self.candidates if c.state == TIMED_WELL]
        if timed:
            return min(timed, key=lambda c: c.ms)
        return min((c for c in self.candidates if c.state == READY), key=lambda c: c.expected_ms, default=None)

    @property
    def sampled(self) -> list[Candidate]:
        return [c for c in self.candidates if c.sampled and math.isfinite(c.ms)]

    @property
    def lost(self) -> list[Candidate]:
        """Candidates that the bounds dropped and that are faster than every one they kept."""
        kept = min((c.ms for c in self.candidates if c.state == TIMED_WELL and not c.sampled), default=math.inf)
        return [c for c in self.sampled if c.state == TIMED_WELL and c.ms < kept * (1 - SLACK)]

    @property
    def table(self) -> pd.DataFrame:
        rows = []
        for n, c in enumerate(self.candidates, 1):
            rows.append({"rank": n, **c.tunables, **{k: v for k, v in asdict(c).items() if k != "tunables"}})
        return pd.DataFrame(rows)

    @property
    def rules(self) -> pd.DataFrame:
        """Columns rule, suggestions: how many broke it first."""
        return pd.DataFrame(list(self.illegal.items()), columns=["rule", "suggestions"])

    def to_json(self) -> dict[str, Any]:
        winner = self.winner
        return {
            "run": self.id, "stage": self.stage, "problem": asdict(self.problem), "device": self.device, "backend": self.backend,
            "choices": self.choices, "defaults": self.defaults, "options": self.options, "counts": self.counts, "illegal": self.illegal,
            "known": self.known, "measured": self.measured, "interrupted": self.interrupted, "winner": asdict(winner) if winner else None, "winners_dropped": [asdict(c) for c in self.lost],
            "candidates": [asdict(c) for c in self.candidates], "path": str(self.path) if self.path else None,
        }  # fmt: skip


def choices(stage: Stage, given: Mapping[str, str | int | Sequence[int]] | None = None) -> Choices:
    """Values of each tunable to choose from: those given ('64,128'), else half, once and twice the stage's own, or near a small one.

    Raises TilescopeError for an unknown tunable, a word that is no integer, or a stage without tunables.
    """
    if not stage.tunables:
        raise TilescopeError(f"{stage.name} has no tunables.", "Choose another KERNEL.")
    found: Choices = {}
    given = dict(given or {})
    if odd := [name for name in given if name not in stage.tunables]:
        raise TilescopeError(f"unknown tunable {odd[0]}: {stage.name} has {', '.join(stage.tunables)}.")
    for name, own in stage.tunables.items():
        least = stage.least.get(name, 1)
        if name in given:
            words = given[name].split(",") if isinstance(given[name], str) else given[name]
            try:
                values = {int(w) for w in ([words] if isinstance(words, int) else words)}
            except ValueError:
                raise TilescopeError(
                    f"{name}={given[name]} is not integers.", "Give one or more, with commas between."
                ) from None
        elif own <= 3:
            values = {least, own, own + 1}
        else:
            values = {own // 2, own, own * 2} | ({0} if least == 0 else set())
        found[name] = tuple(sorted(v for v in values if v >= least)) or (own,)
    return found


def run(
    kernel: str | Path,
    *,
    problem: Problem | None = None,
    given: Mapping[str, str | int | Sequence[int]] | None = None,
    count: int = COUNT,
    timed: int = TIMED,
    sampled: int = SAMPLED,
    margin: float = MARGIN,
    seed: int = 0,
    device: str | None = None,
    backend: str = "auto",
    gpu: str | int | None = None,
    nvcc: str | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    timer: Timer | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Tuned:
    """Search a stage's tunables on a problem (default 4096^3); record the run.

    given: choices by tunable. count: candidates to have compiled, those of earlier runs included. timed: of those kept, how many
    to time; sampled: of those dropped by the bounds. timer: in place of the GPU's. Ctrl-C records what there is.

    Raises TilescopeError on bad input, where Optuna is missing, or where the journal cannot be written; NotRecorded, which holds what
    was found, where the run cannot be recorded.
    """
    from .gpu import client

    note = progress or (lambda fraction, words: None)
    for name, value, least in (("COUNT", count, 1), ("TIMED", timed, 0), ("SAMPLED", sampled, 0), ("MARGIN", margin, 1)):  # fmt: skip
        if not value >= least:
            raise TilescopeError(f"{name}={value:g} is less than {least}.")
    started = time.time()
    stage = stages.find(str(kernel))
    problem = problem or Problem(4096, 4096, 4096)
    chosen = choices(stage, given)
    name = record.new_id("tune", stage.name, problem)
    path = record.destination(out, stage.name, name)
    toolchain.check(nvcc)
    backend, target, live = profiling.backend_and_device(backend, device, gpu)
    journal = _journal(stage, target, problem, chosen)
    options = {"count": count, "timed": timed, "sampled": sampled, "margin": margin, "seed": seed}
    result = Tuned(name, stage.name, problem, target.name, backend, chosen, [], {}, options, journal, defaults=dict(stage.tunables))  # fmt: skip
    if live and timer is None:
        timer = _timer(kernel, problem, live.index, nvcc)
    if timer:
        result.backend = "gpu"
    with _alone(journal):
        search = _Search(stage, target, problem, chosen, journal, seed, nvcc, workers, note)
        result.known, timed_before = len(search.candidates()), len(search.times())
        try:
            search.fill(count)
        except KeyboardInterrupt:
            result.interrupted = True
        found = search.candidates()
        result.illegal = dict(search.illegal.most_common())
        if not found and not result.interrupted:
            raise TilescopeError(
                f"no legal candidate among the choices for {stage.name}: {next(iter(result.illegal))}.",
                "Give other values.",
            )
        _drop(found, margin)
        try:
            if timer and not result.interrupted:
                with client.keeping():
                    _time(found, search, timer, timed, sampled, seed, note)
        except KeyboardInterrupt:
            result.interrupted = True
        result.measured = len(search.times()) - timed_before
        order = list(STATES)
        result.candidates = sorted(found, key=lambda c: (order.index(c.state), c.ms if c.ms == c.ms else math.inf, c.expected_ms))  # fmt: skip
    _record(result, path, started)
    return result


def _journal(stage: Stage, device: Device, problem: Problem, chosen: Choices) -> Path:
    """The journal of a search: the same one for the same source, device, problem and choices."""
    texts = sorted(toolchain.sources(stage.source).values())
    key = hashlib.sha256(json.dumps([texts, device.name, repr(problem), chosen]).encode()).hexdigest()[:12]
    return (
        record.PROFILES / stage.name / f"tune-{device.name}-{problem.m}x{problem.n}x{problem.k}-{key}" / "study.journal"
    )


@contextlib.contextmanager
def _alone(journal: Path) -> Iterator[None]:
    """Holds a search's folder: two that write one journal would go on with each other's candidates."""
    with disk.explained(journal, remedy=KEPT):
        journal.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(journal.parent, os.O_RDONLY)
    try:
        hold(folder, f"making this search ({environment.public(journal.parent)} is held)")
        yield
    finally:
        os.close(folder)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise TilescopeError("tune needs Optuna, which is not installed.", "Type `make tune`, or pip install .[tune].") from None  # fmt: skip
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _backend(journal: Path) -> BaseJournalBackend:
    """Optuna's journal in a folder that `_alone` made, which holds whole lines whatever becomes of a writer. Raises TilescopeError where it cannot be written."""
    from optuna.storages.journal import JournalFileBackend

    def kept() -> AbstractContextManager[None]:
        return disk.explained(journal, remedy=KEPT)

    def mend() -> None:
        """Cut off what follows the last whole line: Optuna would go on behind it, and read neither."""
        with open(journal, "r+b") as f:
            f.truncate(f.read().rfind(b"\n") + 1)

    class Backend(JournalFileBackend):
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with kept():
                try:
                    super().append_logs(logs)
                except OSError:
                    mend()
                    raise

    with kept():
        found = Backend(str(journal))
        mend()
    return found


class _Search:
    """The studies of a search in its journal: `compiled`, whose value is expected_ms, and `timed`, whose value is ms."""

    def __init__(
        self,
        stage: Stage,
        device: Device,
        problem: Problem,
        chosen: Choices,
        journal: Path,
        seed: int,
        nvcc: str | None,
        workers: int | None,
        note: Callable[[float, str], None],
    ) -> None:
        self.optuna = _optuna()
        self.stage, self.device, self.problem, self.chosen = stage, device, problem, chosen
        self.nvcc, self.workers, self.note = nvcc, workers or environment.cores(), note
        storage = self.optuna.storages.JournalStorage(_backend(journal))
        sampler = self.optuna.samplers.TPESampler(seed=seed)
        self.compiled = self.optuna.create_study(
            storage=storage, study_name="compiled", sampler=sampler, load_if_exists=True
        )
        self.timed = self.optuna.create_study(storage=storage, study_name="timed", load_if_exists=True)
        self.widths = roofs.recorded_widths(device)
        self._arena: sim.Arena | None = None
        self.random = random.Random(seed)
        state = self.optuna.trial.TrialState
        for trial in self.compiled.get_trials(deepcopy=False, states=(state.RUNNING,)):  # of a search that was stopped
            self.compiled.tell(trial.number, state=state.FAIL)
        if self.compiled.get_trials(deepcopy=False):  # else a search that goes on would suggest the same again
            sampler.reseed_rng()
        pruned = self.compiled.get_trials(deepcopy=False, states=(state.PRUNED,))
        suggested = [self._broken(t.params) for t in pruned if t.user_attrs.get("state") == "illegal"]
        self.illegal = Counter(filter(None, suggested))

    @property
    def arena(self) -> sim.Arena:
        if self._arena is None:
            zeros = Problem(**{**asdict(self.problem), "distribution": "zeros"})
            self._arena = sim.Arena(zeros, zeros.operands())
        return self._arena

    def trials(self) -> Iterator[optuna.trial.FrozenTrial]:
        """Those of `compiled` that are finished and not against the rules."""
        state = self.optuna.trial.TrialState
        for trial in self.compiled.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED)):
            if "candidate" in trial.user_attrs:
                yield trial

    def candidates(self) -> list[Candidate]:
        """Every candidate once."""
        found: dict[tuple, Candidate] = {}
        for trial in self.trials():
            candidate = Candidate(**json.loads(trial.user_attrs["candidate"]))
            found.setdefault(tuple(candidate.tunables.items()), candidate)
        return list(found.values())

    def fill(self, count: int) -> None:
        """Suggest, compile and count until there are `count` candidates, or nothing new comes."""
        known = {tuple(c.tunables.items()) for c in self.candidates()}
        if not known and all(self.stage.tunables[n] in values for n, values in self.chosen.items()):
            self.compiled.enqueue_trial(dict(self.stage.tunables))
        dry = False
        with ThreadPoolExecutor(self.workers) as pool:
            while len(known) < count and not dry:
                batch, wanted = [], min(self.workers, count - len(known))
                while len(batch) < wanted:
                    trial = self.compiled.ask()
                    tunables = {n: trial.suggest_categorical(n, values) for n, values in self.chosen.items()}
                    key = tuple(tunables.items())
                    rule = self._broken(tunables)
                    if key not in known and not rule:
                        known.add(key)
                        batch.append((trial, tunables))
                        continue
                    trial.set_user_attr("state", "illegal" if rule else "known")
                    self.illegal.update([rule] if rule else [])
                    self.compiled.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
                    fresh = self._fresh(known)  # legal combinations are rare: the next one is drawn among them
                    if dry := fresh is None:
                        break
                    self.compiled.enqueue_trial(fresh)
                made = [pool.submit(self._compile, tunables) for _, tunables in batch]
                for (trial, tunables), future in zip(batch, made, strict=True):
                    self.note(0.8 * len(known) / count, f"candidate {len(known)} of {count}")
                    self._tell(trial, self._counted(tunables, future.result()))

    def _fresh(self, known: set[tuple]) -> dict[str, int] | None:
        """A legal combination that is not known, at random; None where none is found."""
        if math.prod(map(len, self.chosen.values())) <= DRAWS:
            pool = list(itertools.product(*self.chosen.values()))
            self.random.shuffle(pool)
        else:
            pool = (tuple(map(self.random.choice, self.chosen.values())) for _ in range(DRAWS))
        for values in pool:
            tunables = dict(zip(self.chosen, values, strict=True))
            if tuple(tunables.items()) not in known and not self._broken(tunables):
                return tunables
        return None

    def _broken(self, tunables: dict[str, int]) -> str:
        """The first rule that a combination breaks, or nothing."""
        if rule := self.stage.broken(tunables):
            return rule.says
        try:
            self.stage.plan(self.problem, tunables)
        except TilescopeError:
            return UNLAUNCHABLE
        return ""

    def compile(self, several: Sequence[dict[str, int]]) -> None:
        """Machine code for these, side by side; there is some already unless the search began on another machine."""
        with ThreadPoolExecutor(self.workers) as pool:
            list(pool.map(self._compile, several))

    def _compile(self, tunables: dict[str, int]) -> str:
        """Puts the machine code into the cache; what nvcc complains of, or nothing. What fails for other reasons is no candidate's
        fault, and is raised: a journal would hold it against the tunables for good."""
        try:
            toolchain.compile(self.stage, tunables, self.device.cc, self.nvcc)
        except NotCompiled as e:
            return e.what
        return ""

    def _counted(self, tunables: dict[str, int], complaint: str) -> Candidate:
        """A candidate with its bound, or why it is dropped."""
        found = Candidate(tunables)
        if complaint:
            found.state, found.why = "compile", complaint
            return found
        binary = toolchain.compile(self.stage, tunables, self.device.cc, self.nvcc)
        kernels = binary.kernels.values()
        found.sass, found.registers = binary.hash, max(k.function.registers for k in kernels)
        if spilled := sum(k.spill_stores + k.spill_loads for k in kernels):
            found.state, found.why = "spills", f"{spilled:,} bytes of spills"
            return found
        try:
            _, parts = profiling.count(self.stage, tunables, self.problem, self.device, self.arena, self.nvcc, self.widths)  # fmt: skip
        except sim.Fault as e:
            found.state, found.why = "fault", str(e)
            return found
        except sim.NotSimulated:
            raise
        except TilescopeError as e:  # not even one block fits
            found.state, found.why = "occupancy", e.what
            return found
        found.warps = parts[0].occupancy.warps
        if found.warps < LEAST_WARPS:
            found.state, found.why = "occupancy", f"{found.warps:.0f} warps on an SM, fewer than its schedulers"
            return found
        limits = bounds.total(self.problem, [p.bounds for p in parts], self.device, self.widths)
        top = bounds.bottleneck(limits)
        found.bound, found.bound_ms = top.name, top.seconds * 1e3
        by_name = {b.name: b.seconds * 1e3 for b in limits}
        if loop := hottest(kernels):
            found.loop_bytes, found.bunched = elf.INSTRUCTION_BYTES * loop.count(), loop.bunched
        found.expected_ms = expected(max(by_name[n] for n in SCHEDULER), by_name["data stage"], found.loop_bytes)
        return found

    def _tell(self, trial: optuna.Trial, candidate: Candidate) -> None:
        trial.set_user_attr("candidate", json.dumps(asdict(candidate)))
        trial.set_user_attr("state", candidate.state)
        state = self.optuna.trial.TrialState
        if candidate.state == READY:
            self.compiled.tell(trial, candidate.expected_ms)
        else:
            self.compiled.tell(trial, state=state.PRUNED)

    def times(self) -> dict[tuple, Timed]:
        """What was timed before, by tunables."""
        found = {}
        for trial in self.timed.get_trials(deepcopy=False):
            found[tuple(json.loads(trial.user_attrs["tunables"]).items())] = Timed(**json.loads(trial.user_attrs["timed"]))  # fmt: skip
        return found

    def keep(self, tunables: dict[str, int], timed: Timed) -> None:
        """Write a time down."""
        state = self.optuna.trial.TrialState
        bad = bool(timed.wrong) or not math.isfinite(timed.ms)
        over = {n: self.optuna.distributions.CategoricalDistribution(v) for n, v in self.chosen.items()}
        self.timed.add_trial(self.optuna.create_trial(
            params=tunables, distributions=over, value=None if bad else timed.ms, state=state.FAIL if bad else state.COMPLETE,
            user_attrs={"tunables": json.dumps(tunables), "timed": json.dumps(asdict(timed))},
        ))  # fmt: skip


SCHEDULER = ("issue", "FMA pipe", "register bank 0", "register bank 1")
"""Bounds of what a scheduler does for its warps."""


def expected(scheduler_ms: float, data_stage_ms: float, loop_bytes: int) -> float:
    """A time to rank candidates by, ms; no bound and no prediction. Of 41 tiles of warptiled timed on an H200 it orders those at 4096
    by a rank correlation of 0.90, the largest bound alone by 0.83; at 4097 by 0.77 and 0.69 (tests/data/ranking_h200.csv).
    Loads from shared memory one upon another are left out: how many are does not tell what this leaves (0.11 and -0.06).

    scheduler_ms: the largest bound of SCHEDULER. loop_bytes: of the loop with the most multiply-adds.
    """
    together = (scheduler_ms**SHARPNESS + data_stage_ms**SHARPNESS) ** (1 / SHARPNESS)
    return together * (REFETCH if loop_bytes > INSTRUCTION_CACHE else 1.0)


def hottest(kernels: Iterable[toolchain.Kernel]) -> roofs.Loop | None:
    """The loop with the most multiply-adds, or None where there is no loop."""
    found = []
    for kernel in kernels:
        with contextlib.suppress(ValueError):
            found.append(roofs.Loop.hottest(kernel))
    return max(found, key=lambda loop: (loop.count("FFMA"), loop.count()), default=None)


def _drop(found: list[Candidate], margin: float) -> None:
    """Drop what the bounds rule out."""
    ready = [c for c in found if c.state == READY]
    best = min((c.bound_ms for c in ready), default=math.nan)
    for c in ready:
        if c.bound_ms > margin * best:
            c.state, c.why = "bounds", f"{c.bound} takes {c.bound_ms / best:.3g} times the best bound"


def _time(
    found: list[Candidate],
    search: _Search,
    timer: Timer,
    timed: int,
    sampled: int,
    seed: int,
    note: Callable[[float, str], None],
) -> None:
    """Time the best of those kept, and a sample of those that the bounds dropped; what was timed before is not timed again."""
    kept = sorted((c for c in found if c.state == READY), key=lambda c: c.expected_ms)[:timed]
    dropped = sorted((c for c in found if c.state == "bounds"), key=lambda c: c.bound_ms)
    own = search.stage.tunables  # it is timed in any case, for the others to be compared with
    chance = [c for c in dropped if c.tunables != own]
    kept += [c for c in found if c.state == READY and c.tunables == own and c not in kept]
    for c in [
        *(c for c in dropped if c.tunables == own),
        *random.Random(seed).sample(chance, min(sampled, len(chance))),
    ]:
        c.sampled = True
        kept.append(c)
    known = search.times()
    search.compile([c.tunables for c in kept if tuple(c.tunables.items()) not in known])
    for n, c in enumerate(kept):
        note(0.8 + 0.2 * n / len(kept), f"timing {n + 1} of {len(kept)}")
        key = tuple(c.tunables.items())
        if key not in known:
            known[key] = timer(c.tunables)
            search.keep(c.tunables, known[key])
        t = known[key]
        c.ms, c.ms_lo, c.ms_hi, c.ratio = t.ms, t.ms_lo, t.ms_hi, t.ratio
        c.state, c.why = ("wrong", t.wrong) if t.wrong else (TIMED_WELL, c.why)


def _timer(kernel: str | Path, problem: Problem, gpu: int, nvcc: str | None) -> Timer:
    """The referee's timer beside cuBLAS, from the cubins that are ready."""

    def measure(tunables: dict[str, int]) -> Timed:
        try:
            done = timings.time(
                kernel, problem=problem, limit=LIMIT_S, gpu=gpu, nvcc=nvcc, load="cubin", record=False, **tunables
            )
        except TilescopeError as e:
            return Timed(math.nan, math.nan, math.nan, wrong=e.what)
        if done.interrupted:
            raise KeyboardInterrupt
        point = next((p for p in done.points if p.backend == "gpu"), None)
        if point is None:
            return Timed(math.nan, math.nan, math.nan, wrong="it was not timed")
        return Timed(point.ms.value, point.ms.lo, point.ms.hi, point.ratio.value, "" if point.ok else point.error)

    return measure


def winners(device: Device) -> dict[tuple[str, Problem], dict[str, int]]:
    """Tunables that won a search with times on a device, by stage and problem (inputs as by default): of every recorded run the
    newest's, and a person's own before those that came with Tilescope. Those that a stage no longer allows are left out."""
    found: dict[tuple[str, Problem], dict[str, int]] = {}
    for run in searches(device):
        best, problem = run.manifest["winner"], _alike(Problem(**run.manifest["problem"]))
        try:
            stage = stages.find(run.manifest["stage"])
            stage.plan(problem, stage.configure(best["tunables"]))
        except TilescopeError:
            continue
        found[stage.name, problem] = best["tunables"]
    return found


def searches(device: Device) -> list[record.Run]:
    """The recorded searches that have a winner by time on a device: those that came with Tilescope first, then by age."""
    from . import indexing

    runs = indexing.index()
    runs = runs[(runs.kind == "tune") & (runs.backend == "gpu") & (runs.device == device.name)]
    found = [
        record.load(record.ROOT / p) for p in sorted(runs.path, key=lambda p: not p.startswith("profiles/recorded/"))
    ]
    return [run for run in found if run.manifest["winner"] and run.manifest["winner"]["state"] == TIMED_WELL]


def markdown(runs: Sequence[record.Run]) -> str:
    """Searches as a table for README: what won, and what the bounds dropped."""
    lines = [
        "| problem | winner | ms | of cuBLAS's speed | candidates | dropped by the bounds | of these timed | faster than the winner |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for run in sorted(runs, key=lambda r: (r.manifest["stage"], r.manifest["problem"]["m"])):
        m, best, all_ = run.manifest, run.manifest["winner"], run.table("candidates")
        size = Problem(**m["problem"])
        tried = int((all_.sampled & all_.ms.notna()).sum())
        words = stages.changed(m["stage"], best["tunables"]) or "its own tunables"
        lines.append(
            f"| `{m['stage']}` {size} | {words} | {best['ms']:.4g} | {100 * best['ratio']:.3g} % | {len(all_)} | {m['counts']['bounds']}"
            f" | {tried} | {len(m['winners_dropped'])} |"
        )
    return "\n".join(lines)


def winner(
    stage: Stage, problem: Problem, device: Device, known: Mapping[tuple[str, Problem], dict[str, int]] | None = None
) -> dict[str, int]:
    """The stage's tunables of `winners` for a problem; known: those, where they are at hand. Raises TilescopeError where none are
    recorded."""
    found = (winners(device) if known is None else known).get((stage.name, _alike(problem)))
    if found is None:
        m, n, k = problem.m, problem.n, problem.k
        size = f"SIZE={m}" if m == n == k else f"M={m} N={n} K={k}"
        raise TilescopeError(
            f"no search of {stage.name}'s tunables on {problem} is recorded for {device.name}.",
            f"Type `make tune KERNEL={stage.name} {size}` on a machine with a GPU.",
        )
    return dict(found)


def _alike(problem: Problem) -> Problem:
    """The problem with the inputs that it has by default: a search's outcome does not depend on them."""
    return replace(problem, distribution="normal", seed=0)


def render(t: Tuned, width: int = 100, colour: bool = False) -> str:
    """The ranked candidates, what was dropped and why, and the winner."""
    from .report import Page, figure

    page = Page(width, colour)
    page.say(f"Tuning {t.stage} on {t.problem}, {t.device}", "bold", indent=0)
    varied = {n for n in t.choices if len({c.tunables[n] for c in t.candidates}) > 1}

    def words(c: Candidate) -> str:
        """What `make profile` needs to have this candidate: all that varies, and all that is not the stage's own."""
        if c.tunables == t.defaults and not varied:
            return "the stage's own"
        told = " ".join(f"{k}={v}" for k, v in c.tunables.items() if k in varied or v != t.defaults.get(k))
        return told + (" (the stage's own)" if c.tunables == t.defaults else "")

    shown = [c for c in t.candidates if c.state in (TIMED_WELL, READY, "wrong")]
    page.section(
        "Candidates",
        "best first; bound: the least time by the simulator; expected: what ranks them before they are timed",
    )
    rows = [
        [str(n), words(c),
         figure(c.registers), figure(c.warps), figure(c.bound_ms, 4), figure(c.expected_ms, 4), figure(c.ms, 4), figure(c.ratio), "dropped by bounds" if c.sampled else c.why]
        for n, c in enumerate(shown[:20], 1)
    ]  # fmt: skip
    page.table(["", "<tunables", "regs", "warps", "bound ms", "expected", "ms", "cuBLAS / this", "<"], rows)
    same = {k: v for k, v in t.candidates[0].tunables.items() if k not in varied} if len(t.candidates) > 1 else {}
    if other := [f"{k}={v}" for k, v in same.items() if v != t.defaults.get(k)]:
        page.say(f"The same in all: {' '.join(other)}")
    if t.known:
        page.say(known(t.known, len(t.candidates), t.measured))
    page.section("What became of them")
    page.pairs([(STATES[state], str(n)) for state, n in t.counts.items() if n])
    if t.illegal:
        page.section("Rules broken", "by suggestions, each counted for the first that it breaks")
        page.pairs([(str(n), rule) for rule, n in list(t.illegal.items())[:RULES]])
        if len(t.illegal) > RULES:
            page.say(f"and {several(len(t.illegal) - RULES, 'more rule')} in rules.csv", "dim")
    if t.interrupted:
        page.say("Interrupted: the next search of the same choices goes on from here.", "yellow")
    if (winner := t.winner) is None:
        page.say("No candidate is left." if t.candidates else "No candidate is finished yet.", "bold red")
        return page.text()
    page.section("Winner" if winner.state == TIMED_WELL else "Expected to be the fastest", "" if winner.state == TIMED_WELL else "nothing was timed: no GPU here")  # fmt: skip
    page.say(" ".join(f"{k}={v}" for k, v in winner.tunables.items()))
    page.say(pruning(t.counts["bounds"], len(t.sampled), len(t.lost)), "bold red" if t.lost else "")
    return page.text()


def known(before: int, now: int, measured: int) -> str:
    """A sentence on a search that went on: how many candidates an earlier one left in the journal, and what is new."""
    said = f"{before} of {now} candidates were known"
    if now > before:
        said += f", {now - before} {'is' if now - before == 1 else 'are'} new"
    elif not measured:
        said += "; nothing new was compiled or timed"
    return f"{said}."


def pruning(dropped: int, timed: int, lost: int) -> str:
    """A sentence on what the bounds dropped: how many, how many of them were timed nevertheless, and whether one was a winner."""
    if not dropped:
        return "The bounds dropped none."
    if not timed:
        return (
            f"The bounds dropped {dropped}; none of them was timed, so it is not known whether a winner is among them."
        )
    found = (
        f"{lost} of them faster than every one kept: the bounds dropped a winner" if lost else "none of them a winner"
    )
    return f"The bounds dropped {dropped}; {timed} of them were timed nevertheless, {found}."


def _record(t: Tuned, path: Path, started: float) -> None:
    table = t.table
    manifest = {
        "id": t.id, "kind": "tune", "started": record.timestamp(started), "ended": record.timestamp(time.time()),
        "environment": environment.describe(), **{k: v for k, v in t.to_json().items() if k not in ("run", "path", "candidates")},
    }  # fmt: skip
    runs = pd.DataFrame(
        [
            {"run": f"{t.id}/{n}", "kind": "tune", "stage": t.stage, **asdict(t.problem), "tunables": json.dumps(c.tunables),
             "device": t.device, "backend": t.backend, "sass": c.sass, "ok": {TIMED_WELL: True, READY: True, "wrong": False, "fault": False}.get(c.state),
             "started": manifest["started"], "ended": manifest["ended"]}
            for n, c in enumerate(t.candidates)
        ]
    )  # fmt: skip
    files: dict[str, str | bytes] = {
        "candidates.csv": table.to_csv(index=False), "rules.csv": t.rules.to_csv(index=False), "profile.txt": render(t),
    }  # fmt: skip
    if t.journal and t.journal.exists():
        files["study.journal"] = t.journal.read_bytes()
    record.save(t, path, manifest, {"runs": runs, "candidates": table, "rules": t.rules}, files, KEPT)
