"""What a stage's author writes: Stage, Launch, Rule, Claim; and how stages are found.

A stage is a `.cu` file and the `.py` file beside it, which binds the name `stage` to a Stage. Nothing here knows
of backends, and `kernels/` imports only this module.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .errors import TilescopeError, nearest
from .problem import Problem

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
ARGUMENTS = ("M", "N", "K", "alpha", "A", "lda", "B", "ldb", "beta", "C", "ldc")
"""The kernel arguments every stage of the ladder shares, in this order; extra ones follow."""
Dim3 = tuple[int, int, int]


def ceil_div(a: int, b: int) -> int:
    """The least integer not below a / b."""
    return -(-a // b)


@dataclass(frozen=True)
class Launch:
    """One kernel launch, and which tile of C each block owns.

    entry      the kernel's name in the .cu file (`extern "C"`)
    grid       blocks in x, y, z
    block      threads in x, y, z
    tile       (rows, columns) of C that one block computes, or None if blocks own no such tile: every block is
               then simulated
    origin     (x, y, z) -> (row, column) of the first cell of the block's tile, for integer arrays of block
               indices; by default y walks down the rows and x along the columns
    shared     dynamic shared memory per block, bytes
    args       kernel arguments: a name of ARGUMENTS, or a number for an extra int (int) or float (float)
    label      what to call the launch where a stage has several
    """

    entry: str
    grid: Dim3
    block: Dim3
    tile: tuple[int, int] | None = None
    origin: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    shared: int = 0
    args: tuple[str | int | float, ...] = ARGUMENTS
    label: str = "main"

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def origins(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) where the tiles of linear block indices start. Raises ValueError without a tile."""
        if self.tile is None:
            raise ValueError(f"launch {self.label} has no block-to-tile map")
        x, rest = block % self.grid[0], block // self.grid[0]
        y, z = rest % self.grid[1], rest // self.grid[1]
        if self.origin is not None:
            return self.origin(x, y, z)
        return y * self.tile[0], x * self.tile[1]


@dataclass(frozen=True)
class Rule:
    """A condition that tunables must meet: what it says, and the test, given the tunables as attributes."""

    says: str
    holds: Callable[[SimpleNamespace], bool]


@dataclass(frozen=True)
class Claim:
    """A quantitative statement of an article about a stage, checked against metrics.

    says       the statement; {TILE} and other tunables are filled in
    article    where it stands: 'beginners', 'deep dive' or '2D', with the section
    metrics    names from harness.metrics; the first is the one the article means, the others are what else a
               reader may take it to mean
    expect     the value claimed, from a context with `t` (tunables) and `p` (problem) as attributes
    against    baseline stage: the value compared is then baseline / this stage for each metric
    tolerance  relative
    why        shown where some metric does not bear the claim out
    when       whether the claim speaks of this context at all
    """

    says: str
    article: str
    metrics: tuple[str, ...]
    expect: Callable[[SimpleNamespace], float]
    against: str | None = None
    tolerance: float = 1e-9
    why: str = ""
    when: Callable[[SimpleNamespace], bool] = lambda c: True


@dataclass(frozen=True)
class Stage:
    """One kernel design.

    name       as typed after KERNEL=
    idea       one line for `make list`
    launches   (problem, tunables) -> launches, in order; tunables come as attributes (t.BM)
    parent     the stage this one is a diff against, or None
    tunables   compile-time integer constants and their defaults, passed to the compiler as -DNAME=VALUE
    least      the least value of a tunable where that is not 1
    rules      what legal tunables satisfy
    least_arch the oldest architecture it compiles for (75: Turing)
    claims     what the articles say of it
    aims       what the change from the parent is meant to better: names of metrics (harness.metrics) or of bounds
    source     the .cu file; by default the one beside the .py file
    """

    name: str
    idea: str
    launches: Callable[[Problem, SimpleNamespace], list[Launch]]
    parent: str | None = None
    tunables: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    least_arch: int = 75
    claims: tuple[Claim, ...] = ()
    aims: tuple[str, ...] = ()
    source: Path | None = None

    def configure(self, overrides: Mapping[str, int] | None = None) -> dict[str, int]:
        """The stage's tunables with overrides applied. Raises TilescopeError naming an unknown one or the rule broken."""
        values = dict(self.tunables)
        for name, value in (overrides or {}).items():
            if name not in values:
                known = f"{self.name} has {', '.join(values)}." if values else f"{self.name} has none."
                raise TilescopeError(f"unknown tunable {name}: {known}{nearest(name, list(values))}")
            try:
                values[name] = int(str(value) if str(value).isascii() else "", 0)
            except ValueError:
                raise TilescopeError(f"{name}={value!r} is not an integer.") from None
            if values[name] < self.least.get(name, 1):
                raise TilescopeError(f"{name}={values[name]} is less than {self.least.get(name, 1)}.")
        if rule := self.broken(values):
            shown = " ".join(f"{k}={v}" for k, v in values.items())
            raise TilescopeError(f"illegal tunables for {self.name} ({shown}): {rule.says}.")
        return values

    def broken(self, values: Mapping[str, int]) -> Rule | None:
        """The first rule that values of all tunables do not meet, or None. A rule may rely on those before it."""
        t = SimpleNamespace(**values)
        return next((rule for rule in self.rules if not rule.holds(t)), None)

    def plan(self, problem: Problem, tunables: Mapping[str, int]) -> list[Launch]:
        """The launches for a problem. Raises TilescopeError if the stage's own code fails or a block is too large."""
        try:
            launches = list(self.launches(problem, SimpleNamespace(**tunables)))
        except TilescopeError:
            raise
        except Exception as e:
            raise TilescopeError(f"stage {self.name}: launches() failed on {problem}: {type(e).__name__}: {e}") from e
        if not launches:
            raise TilescopeError(f"stage {self.name} makes no launch for {problem}.")
        for launch in launches:
            if launch.threads > 1024:
                raise TilescopeError(
                    f"stage {self.name}, launch {launch.label}: {launch.threads} threads a block; a GPU takes at most 1024."
                )
            if min(*launch.grid, *launch.block) < 1 or launch.grid[1] > 65535 or launch.grid[2] > 65535:
                raise TilescopeError(
                    f"stage {self.name}, launch {launch.label}: grid {launch.grid} with block {launch.block} cannot be"
                    " launched (x up to 2^31-1, y and z up to 65535, none 0)."
                )
        return launches


def load(path: Path) -> Stage:
    """The stage that a .py file (or the .py beside a .cu file) defines. Raises TilescopeError if it has none or raises."""
    path = path.with_suffix(".py").resolve()
    if not path.exists():
        raise TilescopeError(
            f"no stage file {path}.", "A stage is a .cu file and a .py file of the same name beside it."
        )
    spec = importlib.util.spec_from_file_location(f"tilescope_stage_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look a module up by name
    try:
        spec.loader.exec_module(module)
    except TilescopeError:
        raise
    except (Exception, SystemExit) as e:
        line = _line_in(path, e)
        raise TilescopeError(f"stage file {path}{line} raised {type(e).__name__}: {e}") from e
    stage = getattr(module, "stage", None)
    if not isinstance(stage, Stage):
        raise TilescopeError(f"{path} does not bind `stage` to a harness.stage.Stage.")
    source = stage.source or path.with_suffix(".cu")
    if not Path(source).exists():
        raise TilescopeError(f"stage {stage.name} has no source {source}.")
    return replace(stage, source=Path(source))


def _line_in(path: Path, error: BaseException) -> str:
    """':LINE' of the last frame inside the file, or nothing."""
    line, tb = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None, error.__traceback__
    while tb:
        if tb.tb_frame.f_code.co_filename == str(path):
            line = tb.tb_lineno
        tb = tb.tb_next
    return f":{line}" if line else ""


def names() -> list[str]:
    """Names of the stages in kernels/, ladder order: a parent before its children, else alphabetical."""
    return [s.name for s in ladder()]


def ladder() -> list[Stage]:
    """Every stage in kernels/ (not kernels/faulty/), a parent before its children."""
    found = {s.name: s for s in (load(p) for p in sorted(KERNELS.glob("*.py")) if not p.name.startswith("_"))}
    placed: list[Stage] = []

    def place(parent: str | None) -> None:
        children = [s for s in found.values() if (s.parent if s.parent in found else None) == parent]
        for child in sorted(children, key=lambda s: (any(x.parent == s.name for x in found.values()), s.name)):
            placed.append(child)
            place(child.name)

    place(None)
    return placed


def find(name: str) -> Stage:
    """A stage by name, or by a path to its .py or .cu file. Raises TilescopeError with the nearest name."""
    if _is_path(name):
        return load(Path(name).expanduser())
    for path in (KERNELS / f"{name}.py", KERNELS / "faulty" / f"{name}.py"):
        if path.exists() and not name.startswith("_"):
            return load(path)
    known = [p.stem for p in sorted(KERNELS.glob("*.py")) if not p.name.startswith("_")]
    raise TilescopeError(
        f"unknown kernel {name!r}.{nearest(name, known)}", f"Known: {', '.join(known)}; or a path to a stage file."
    )


def changed(name: str, tunables: Mapping[str, int]) -> str:
    """The tunables that differ from those of a stage, as one types them; all of them where the stage is not known."""
    try:
        own = find(name).tunables
    except TilescopeError:  # from outside the checkout, or gone
        own = {}
    return " ".join(f"{k}={v}" for k, v in tunables.items() if own.get(k) != v)


def anywhere(name: str) -> str:
    """A stage's name, or its path made absolute: what finds it from another folder too."""
    return str(Path(name).expanduser().resolve()) if _is_path(name) else name


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith((".py", ".cu"))
