"""An experiment's definition: experiments/NAME/experiment.toml, checked before anything runs, and the points it asks for.

question = "Does global traffic fall by TILE?"
backends = ["sim", "gpu"]          # where it can run; the first one of them that works here is the default
sources = ["sim", "ncu", "timing"] # what is taken; on the simulator `sim` and `trace` alone
metrics = ["global_load_bytes"]    # what the printed table shows; everything is recorded
devices = ["h200"]                 # to simulate
blocks = "sample"                  # of the simulator: all, auto, sample, count (harness.sim.run)
repeats = 1                        # how often a GPU measures each point, in a process of its own
launches = 1000                    # of source `launches`: how often a kernel is launched and its C checked
against = "cublas"                 # of source `timing`: the rival, or "none"; limit_s and cold as `make time` has them
per_line = false                   # record counts of every instruction too
seed = 0
distribution = "normal"

[[points]]                         # every stage with every combination of tunables on every problem
stages = ["tiled"]                 # or "ladder": every stage of kernels/
tunables = { TILE = [2, 4, 8] }    # or a list of such tables; skip_illegal = true leaves out what a stage refuses
sizes = [512]                      # or { from = 960, to = 1088, step = 1 }; or problems = [{ m = 1, n = 2, k = 3 }]
backends = ["sim"]                 # points of one backend alone

[[claims]]                         # see harness.expectations
says = "the bytes that lanes ask for fall by TILE"
metric = "global_load_bytes"
of = { stage = "tiled" }
against = { stage = "naive" }
equals = "TILE"
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from . import device as devices
from . import stage as stages
from .environment import ROOT
from .errors import TilescopeError, nearest
from .expectations import Claim, Measured, is_metric, known_metrics
from .problem import DISTRIBUTIONS, Problem, TooLarge

EXPERIMENTS = ROOT / "experiments"
FILE = "experiment.toml"
BACKENDS = ("sim", "gpu")
SOURCES = ("sim", "trace", "ncu", "timing", "racecheck", "launches")
"""sim: simulated counters; trace: one block's sums, phase by phase; ncu: Nsight Compute; timing: event times beside a rival;
racecheck: compute-sanitizer; launches: how many of many launches give a wrong C."""
SIMULATED = ("sim", "trace")
BLOCKS = ("all", "auto", "sample", "count")
LIBRARIES = ("cublas", "cublaslt")
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Point:
    """One thing to measure: a stage with its tunables on a problem and a device. `device` is empty for the GPU that is here."""

    stage: str
    tunables: tuple[tuple[str, int], ...]
    problem: Problem
    device: str
    repeat: int = 0

    def __str__(self) -> str:
        words = [self.stage, *(f"{name}={value}" for name, value in self.tunables), f"on {self.problem}"]
        return " ".join(words + ([f"(repeat {self.repeat})"] if self.repeat else []))

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage, "tunables": dict(self.tunables), "problem": asdict(self.problem), "device": self.device,
            "repeat": self.repeat,
        }  # fmt: skip

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Point:
        """The point that `to_json` wrote down."""
        tunables = tuple((name, int(value)) for name, value in data["tunables"].items())
        return cls(data["stage"], tunables, Problem(**data["problem"]), data["device"], data["repeat"])


@dataclass(frozen=True)
class How:
    """How every point of an experiment is measured; the fields of the same names in experiment.toml."""

    sources: tuple[str, ...] = ("sim",)
    blocks: str = "sample"
    launches: int = 1000
    against: str = "cublas"
    limit_s: float = 5.0
    cold: bool = True
    per_line: bool = False


@dataclass(frozen=True)
class Definition:
    """A checked experiment.toml. `folder` holds it and its runs; `text` is the file as it was read."""

    name: str
    folder: Path
    text: str
    question: str
    backends: tuple[str, ...]
    devices: tuple[str, ...]
    metrics: tuple[str, ...]
    repeats: int
    how: How
    claims: tuple[Claim, ...]
    sweeps: tuple[_Sweep, ...]

    def on(self, backend: str) -> How:
        """`how` with the sources that a backend has. Raises TilescopeError where it has none of them."""
        kept = tuple(s for s in self.how.sources if backend == "gpu" or s in SIMULATED)
        if backend not in self.backends or not kept:
            raise TilescopeError(
                f"experiment {self.name} does not run with BACKEND={backend}.",
                f"It runs with BACKEND={', '.join(self.backends)}.",
            )
        return replace(self.how, sources=kept)

    def points(self, backend: str) -> list[Point]:
        """What to measure on a backend, in order, nothing twice. Raises TilescopeError where that is nothing."""
        found: dict[Point, None] = {}
        for sweep in self.sweeps:
            if backend not in sweep.backends:
                continue
            for device in self.devices if backend == "sim" else ("",):
                for stage, tunables, problem in sweep.combinations(backend):
                    for repeat in range(self.repeats if backend == "gpu" else 1):
                        found[Point(stage, tunables, problem, device, repeat)] = None
        if not found:
            raise TilescopeError(f"experiment {self.name} has no points for BACKEND={backend}.")
        if len(found) > MOST_POINTS:
            raise TilescopeError(
                f"experiment {self.name} has {len(found):,} points; a run holds at most {MOST_POINTS:,}.",
                "Divide it into several experiments.",
            )
        return list(found)


@dataclass(frozen=True)
class _Sweep:
    """One [[points]] table: stages, their tunables to sweep, problems."""

    stages: tuple[str, ...]
    tunables: tuple[tuple[tuple[str, tuple[int, ...]], ...], ...]
    shapes: tuple[dict[str, Any], ...]
    backends: tuple[str, ...]
    skip_illegal: bool

    @cached_property
    def problems(self) -> list[Problem]:
        """Raises TooLarge where one does not fit into this machine's memory."""
        return [Problem(**shape) for shape in self.shapes]

    def combinations(self, backend: str) -> Iterator[tuple[str, tuple[tuple[str, int], ...], Problem]]:
        for name, tunables in self.configurations():
            if backend == "gpu" or name not in LIBRARIES:
                yield from ((name, tunables, p) for p in self.problems)

    def configurations(self) -> Iterator[tuple[str, tuple[tuple[str, int], ...]]]:
        """Each stage with each of its sets of tunables. Raises TilescopeError on illegal ones."""
        for name in self.stages:
            if name in LIBRARIES:
                yield name, ()
                continue
            stage = stages.find(name)
            for table in self.tunables:
                for values in itertools.product(*(v for _, v in table)):
                    given = dict(zip((n for n, _ in table), values, strict=True))
                    try:
                        chosen = tuple(stage.configure(given).items())
                    except TilescopeError:
                        if self.skip_illegal and set(given) <= set(stage.tunables):
                            continue
                        raise
                    yield name, chosen


def find(name: str | Path) -> Path:
    """The experiment.toml of an experiment, by its name or by a path to it or to its folder. Raises TilescopeError."""
    path = Path(name).expanduser()
    if "/" not in str(name) and not str(name).endswith(".toml"):
        path = EXPERIMENTS / str(name)
    path = path / FILE if path.is_dir() or path.suffix != ".toml" else path
    if path.is_file():
        return path.resolve()
    known = names()
    raise TilescopeError(
        f"unknown experiment {str(name)!r}.{nearest(str(name), known)}",
        f"Known: {', '.join(known)}; or a path to a folder with {FILE}.",
    )


def names() -> list[str]:
    """Names of the experiments in experiments/."""
    return sorted(p.parent.name for p in EXPERIMENTS.glob(f"*/{FILE}"))


def load(name: str | Path) -> Definition:
    """The definition of an experiment by name or path. Raises TilescopeError with the line and the reason."""
    path = find(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise TilescopeError(f"cannot read {path}: {e}.") from e
    return parse(text, path.parent)


def parse(text: str, folder: Path) -> Definition:
    """A definition from the text of experiment.toml. Raises TilescopeError with the line and the reason."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(e))
        where = f"line {at[1]}, column {at[2]}" if at else f"line {len(text.splitlines())}, the end"
        said = re.sub(r" \(at .*\)$", "", str(e))
        shown = text.splitlines()[int(at[1]) - 1].strip() if at and int(at[1]) <= len(text.splitlines()) else ""
        raise TilescopeError(
            f"{folder.name}/{FILE}, {where}: {said[0].lower()}{said[1:]}." + (f" The line: {shown}" if shown else ""),
            "Correct it; https://toml.io explains the format.",
        ) from None
    return _Reader(text, folder).definition(data)


class _Reader:
    """Turns the tables of a TOML file into a Definition; complaints name the line."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text, self.folder = text, folder

    def wrong(self, key: str, what: str, remedy: str = "", within: str = "", number: int = 0) -> TilescopeError:
        """A complaint about `key`, at its line: the first that has it, behind the `number`-th [[within]] where given."""
        lines = self.text.splitlines()
        start = 0
        if within:
            heads = [n for n, line in enumerate(lines) if re.match(rf"\s*\[\[\s*{within}\s*\]\]", line)]
            start = heads[number] if number < len(heads) else 0
        word = re.compile(rf"(?<![\w.]){re.escape(key)}(?![\w.])")
        found = next((n for n in range(start, len(lines)) if word.search(lines[n].split("#")[0])), None)
        if found is None and within:
            found = start
        where = f", line {found + 1}" if found is not None else ""
        return TilescopeError(f"{self.folder.name}/{FILE}{where}: {what}", remedy)

    def definition(self, data: dict[str, Any]) -> Definition:
        known = {
            "title", "question", "backends", "sources", "metrics", "devices", "blocks", "repeats", "launches", "against", "limit_s",
            "cold", "per_line", "seed", "distribution", "points", "claims",
        }  # fmt: skip
        self._known(data, known, "")
        question = data.get("question")
        if not isinstance(question, str) or not question.strip():
            raise self.wrong("question", "`question` is missing: what does the experiment ask?")
        backends = self._words(data, "backends", BACKENDS, list(BACKENDS))
        sources = self._words(data, "sources", SOURCES, ["sim"])
        names = self._strings(data, "devices", ["h200"])
        for name in names:
            try:
                devices.find(name)
            except TilescopeError as e:
                raise self.wrong(name, e.what, e.remedy) from None
        metrics = self._strings(data, "metrics", [])
        for name in metrics:
            if not is_metric(name):
                raise self.wrong(name, f"unknown metric {name!r}.{nearest(name, known_metrics())}")
        how = How(
            tuple(sources), self._one_of(data, "blocks", BLOCKS, "sample"), self._whole(data, "launches", 1000),
            self._one_of(data, "against", (*LIBRARIES, "none"), "cublas"), self._positive(data, "limit_s", 5.0),
            self._flag(data, "cold", True), self._flag(data, "per_line", False),
        )  # fmt: skip
        claims = tuple(self._claim(x, n) for n, x in enumerate(self._tables(data, "claims")))
        sweeps = tuple(self._sweeps(data))
        points = [
            Measured(name, "", *(shape[x] for x in "mnk"), dict(tunables), {})
            for sweep in sweeps
            for name, tunables in sweep.configurations()
            for shape in sweep.shapes
        ]
        for number, claim in enumerate(claims):
            try:
                claim.check_names(points)
            except TilescopeError as e:
                raise self.wrong("of", e.what, e.remedy, within="claims", number=number) from None
        return Definition(
            self.folder.name, self.folder, self.text, " ".join(question.split()), tuple(backends), tuple(names), tuple(metrics),
            self._whole(data, "repeats", 1), how, claims, sweeps,
        )  # fmt: skip

    def _sweeps(self, data: dict[str, Any]) -> Iterator[_Sweep]:
        tables = self._tables(data, "points")
        if not tables:
            raise self.wrong("points", "`[[points]]` is missing: what is to be measured?")
        seed, distribution = data.get("seed", 0), self._one_of(data, "distribution", DISTRIBUTIONS, "normal")
        known = {"stages", "tunables", "sizes", "problems", "backends", "skip_illegal", "distribution"}
        for number, table in enumerate(tables):
            self._known(table, known, "points", number)
            at = {"within": "points", "number": number}
            given = table.get("stages")
            chosen = stages.names() if given == "ladder" else given
            if not isinstance(chosen, list) or not chosen or not all(isinstance(x, str) for x in chosen):
                raise self.wrong("stages", '`stages` must be "ladder" or a list of names.', **at)
            for name in chosen:
                if name not in LIBRARIES:
                    try:
                        stages.find(name)
                    except TilescopeError as e:
                        raise self.wrong(name, e.what, e.remedy, **at) from None
            inputs = self._one_of(table, "distribution", DISTRIBUTIONS, distribution)
            sweep = _Sweep(
                tuple(chosen), tuple(self._tunables(table, at)), tuple(self._shapes(table, seed, inputs, at)),
                tuple(self._words(table, "backends", BACKENDS, list(BACKENDS))), self._flag(table, "skip_illegal", False),
            )  # fmt: skip
            try:
                list(sweep.configurations())
            except TilescopeError as e:
                raise self.wrong("tunables", e.what, e.remedy, **at) from None
            yield sweep

    def _tunables(self, table: dict[str, Any], at: dict) -> Iterator[tuple[tuple[str, tuple[int, ...]], ...]]:
        given = table.get("tunables", {})
        for choice in given if isinstance(given, list) else [given]:
            if not isinstance(choice, dict):
                raise self.wrong("tunables", "`tunables` must be a table such as { TILE = [8, 16] }.", **at)
            found = []
            for name, values in choice.items():
                values = values if isinstance(values, list) else [values]
                if not values or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
                    raise self.wrong(name, f"{name} must be an integer or a list of integers.", **at)
                found.append((name, tuple(values)))
            yield tuple(found)

    def _shapes(self, table: dict[str, Any], seed: Any, distribution: str, at: dict) -> list[dict[str, Any]]:
        """What makes each problem: the arguments of Problem, tried once."""
        if ("sizes" in table) == ("problems" in table):
            raise self.wrong("sizes", "give either `sizes` or `problems`.", **at)
        key = "sizes" if "sizes" in table else "problems"
        given = table[key]
        if key == "sizes" and isinstance(given, dict):
            try:
                first, last, step = given.pop("from"), given.pop("to"), given.pop("step", 1)
                given = None if given else list(range(first, last + 1, step))
            except (KeyError, TypeError, ValueError):
                given = None
            if not given:
                raise self.wrong("sizes", "a range of sizes is { from = 960, to = 1088, step = 1 }.", **at)
        if not isinstance(given, list) or not given:
            raise self.wrong(key, f"`{key}` must be a list with at least one entry.", **at)
        if not all(isinstance(x, dict) for x in given) and key == "problems":
            raise self.wrong(key, "a problem is { m = 64, n = 64, k = 64 }.", **at)
        base = {"seed": seed, "distribution": distribution}
        shapes = [base | ({"m": x, "n": x, "k": x} if key == "sizes" else x) for x in given]
        try:
            for shape in shapes:
                try:
                    Problem(**shape)
                except TooLarge:
                    pass  # this machine need not be the one that runs it
            return shapes
        except TilescopeError as e:
            raise self.wrong(key, e.what, e.remedy, **at) from None
        except TypeError:
            raise self.wrong(
                key, "a problem is { m = 64, n = 64, k = 64 }, with alpha, beta, lda, ldb, ldc as needed.", **at
            ) from None

    def _claim(self, table: dict[str, Any], number: int) -> Claim:
        try:
            return Claim.read(table)
        except TilescopeError as e:
            key = next((k for k in re.findall(r"[`'\"]([^`'\"]+)[`'\"]", e.what)), "says")
            raise self.wrong(key, e.what, e.remedy, within="claims", number=number) from None

    def _tables(self, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
        found = data.get(key, [])
        if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
            raise self.wrong(key, f"`{key}` must be tables headed [[{key}]].")
        return found

    def _known(self, table: Mapping[str, Any], known: set[str], within: str, number: int = 0) -> None:
        for key in table:
            if key not in known:
                raise self.wrong(
                    key, f"unknown key {key!r}.{nearest(key, sorted(known))}", f"Known: {', '.join(sorted(known))}.",
                    within, number,
                )  # fmt: skip

    def _strings(self, table: Mapping[str, Any], key: str, default: Sequence[str]) -> list[str]:
        found = table.get(key, default)
        if not isinstance(found, (list, tuple)) or not all(isinstance(x, str) for x in found):
            raise self.wrong(key, f"`{key}` must be a list of words.")
        return list(dict.fromkeys(found))

    def _words(self, table: Mapping[str, Any], key: str, known: Sequence[str], default: Sequence[str]) -> list[str]:
        found = self._strings(table, key, default)
        for word in found:
            if word not in known:
                raise self.wrong(
                    word, f"unknown {key} {word!r}.{nearest(word, list(known))}", f"Known: {', '.join(known)}."
                )
        if not found:
            raise self.wrong(key, f"`{key}` is empty.", f"Known: {', '.join(known)}.")
        return found

    def _one_of(self, table: Mapping[str, Any], key: str, known: Sequence[str], default: str) -> str:
        return self._words({key: [table[key]]} if key in table else {}, key, known, [default])[0]

    def _whole(self, table: Mapping[str, Any], key: str, default: int) -> int:
        value = table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, f"`{key}` = {value!r} must be an integer from 1.")
        return value

    def _positive(self, table: Mapping[str, Any], key: str, default: float) -> float:
        value = table.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.wrong(key, f"`{key}` = {value!r} must be a number above 0.")
        return float(value)

    def _flag(self, table: Mapping[str, Any], key: str, default: bool) -> bool:
        value = table.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"`{key}` = {value!r} must be true or false.")
        return value
