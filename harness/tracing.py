"""`make trace`: one block of a stage, phase by phase, as the simulator executes it: what each thread loads, the shared tiles
after the barrier, and every partial sum. A and B count 1, 2, 3, ... along their rows, as in the deep-dive article.

Where a word in shared memory came from is not guessed: the block is traced a second time with inputs that name their own
place (A's n-th element is n, B's is n past all of A's), which changes no address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import device as devices
from . import sim, toolchain
from . import stage as stages
from .errors import TilescopeError
from .problem import Operands, Problem
from .profiling import configure
from .sim.memory import Arena
from .stage import Launch, Stage

SIZE = 4
MOST_WORK = 65536
"""Multiply-adds of a block that is traced: a person reads it."""
LIMIT = 200_000
EXACT = 2**24
"""Numbers up to which fp32 counts without a gap."""
Cell = tuple[str, int, int]
"""An element of a matrix: 'A', 'B' or 'C', row, column."""


@dataclass
class Phase:
    """What happens from one round of stores into shared memory to the next.

    loads   (thread, element, value) from global memory
    tiles   what shared memory then holds: element -> value
    sums    (thread, row, column, products that this phase adds as (a, b), sum so far)
    """

    loads: list[tuple[int, Cell, float]] = field(default_factory=list)
    tiles: dict[Cell, float] = field(default_factory=dict)
    sums: list[tuple[int, int, int, list[tuple[float, float]], float]] = field(default_factory=list)


@dataclass(repr=False)
class Trace:
    """A traced block. stores: (thread, row, column, value) of C; sums: C's partial sum by (row, column, phase)."""

    stage: Stage
    tunables: dict[str, int]
    problem: Problem
    launch: Launch
    block: int
    phases: list[Phase]
    stores: list[tuple[int, int, int, float]]

    @property
    def sums(self) -> dict[tuple[int, int, int], float]:
        return {(row, column, n): s for n, p in enumerate(self.phases) for _, row, column, _, s in p.sums}

    def __repr__(self) -> str:
        return f"<Trace of {self.stage.name} on {self.problem}: {len(self.phases)} phases>"

    def __str__(self) -> str:
        return render(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage.name, "tunables": self.tunables, "launch": self.launch.label, "block": self.block,
            "problem": str(self.problem),
            "phases": [
                {
                    "loads": [{"thread": self.thread(t), "element": _name(c), "value": v} for t, c, v in p.loads],
                    "shared": {_name(c): v for c, v in p.tiles.items()},
                    "sums": [
                        {"thread": self.thread(t), "cell": _name(("C", r, c)), "products": products, "sum": s}
                        for t, r, c, products, s in p.sums
                    ],
                }
                for p in self.phases
            ],
            "stores": [{"thread": self.thread(t), "cell": _name(("C", r, c)), "value": v} for t, r, c, v in self.stores],
        }  # fmt: skip

    def thread(self, number: int) -> tuple[int, ...]:
        """threadIdx of a thread: (x, y), or (x, y, z) where the block has depth."""
        x, y, z = self.launch.block
        place = (number % x, number // x % y, number // (x * y))
        return place if z > 1 else place[:2]


def trace(
    kernel: str | Path,
    problem: Problem | None = None,
    *,
    block: int = 0,
    device: str = "h200",
    nvcc: str | None = None,
    **tunables: int,
) -> Trace:
    """Trace one block of a stage's first launch. block: its number, x first.

    Raises TilescopeError where the block is too much for a person to read or does not exist, or the stage does not compile;
    sim.Fault where it fails a check.
    """
    stage = stages.find(str(kernel))
    chosen = configure(stage, tunables)
    problem = problem or Problem(SIZE, SIZE, SIZE)
    launch = stage.plan(problem, chosen)[0]
    if not 0 <= block < launch.blocks:
        raise TilescopeError(f"BLOCK={block}: launch {launch.label} has blocks 0 to {launch.blocks - 1}.")
    high, wide = launch.tile or (problem.m, problem.n)
    work = min(high, problem.m) * min(wide, problem.n) * problem.k
    if work > MOST_WORK:
        raise TilescopeError(
            f"a block with {work:,} multiply-adds is too much to read.",
            f"Choose a smaller tile and SIZE: at most {MOST_WORK:,} multiply-adds; TILE=2 SIZE=4 is the article's example.",
        )
    binary = toolchain.compile(stage, chosen, devices.find(device).cc, nvcc)
    operands, named = problem.operands(), problem.operands()
    _count_up(operands, 1, 1)
    _count_up(named, 1, 1 + problem.m * problem.k)
    steps, names = (sim.trace(binary, launch, problem, x, block=block, limit=LIMIT) for x in (operands, named))
    steps = steps.assign(element=_elements(names, problem))
    return Trace(
        stage, chosen, problem, launch, block, _phases(steps, operands, launch), _stores(steps, problem, operands)
    )


def _count_up(operands: Operands, a: int, b: int) -> None:
    """A counts from `a` along its rows, B from `b`. Raises TilescopeError where fp32 cannot count so far."""
    p = operands.problem
    if b + p.k * p.n > EXACT or a + p.m * p.k > EXACT:
        raise TilescopeError(f"{p} has too many elements to trace.", "Choose a smaller SIZE.")
    operands.a[:, : p.k] = np.arange(a, a + p.m * p.k, dtype=np.float32).reshape(p.m, p.k)
    operands.b[:, : p.n] = np.arange(b, b + p.k * p.n, dtype=np.float32).reshape(p.k, p.n)


def _elements(names: pd.DataFrame, problem: Problem) -> list[Cell | None]:
    """The element that every traced word is, by the value that names it; None for padding and what is neither A's nor B's."""
    first = 1 + problem.m * problem.k
    found: list[Cell | None] = []
    for value in names.value:
        n = int(value) if np.isfinite(value) and value == int(value) else 0
        if 1 <= n < first:
            found.append(("A", *divmod(n - 1, problem.k)))
        elif first <= n < first + problem.k * problem.n:
            found.append(("B", *divmod(n - first, problem.n)))
        else:
            found.append(None)
    return found


def _phases(steps: pd.DataFrame, operands: Operands, launch: Launch) -> list[Phase]:
    """The intervals between barriers, joined so that each begins with stores into shared memory, and what was summed in each."""
    shared = steps[(steps.space == "shared") | (steps.op == "copy")]
    starts = sorted(shared[shared.op.isin(("store", "copy"))].phase.unique())
    starts = [p for n, p in enumerate(starts) if not n or _loads_between(shared, starts[n - 1], p)]
    if not starts:
        return [_direct(steps, operands)]
    seen: dict[int, set[Cell]] = {}
    used: dict[tuple[int, int, int], int] = {}
    totals: dict[tuple[int, int, int], float] = {}
    owners = _owners(steps, operands.problem)
    found = []
    for n, first in enumerate(starts):
        last = starts[n + 1] if n + 1 < len(starts) else int(steps.phase.max()) + 1
        part = shared[(shared.phase >= first) & (shared.phase < last)]
        phase = Phase()
        for row in part[part.op.isin(("store", "copy"))].itertuples():
            if row.element:
                phase.loads.append((row.thread, row.element, _value(operands, row.element)))
                phase.tiles[row.element] = _value(operands, row.element)
        for row in part[part.op == "load"].itertuples():
            if row.element:
                seen.setdefault(row.thread, set()).add(row.element)
        _add_up(phase, owners, seen, used, totals, operands)
        found.append(phase)
    return found


def _loads_between(shared: pd.DataFrame, first: int, last: int) -> bool:
    """Whether anything was read from shared memory from one barrier interval up to another."""
    return bool(((shared.op == "load") & (shared.phase >= first) & (shared.phase < last)).any())


def _direct(steps: pd.DataFrame, operands: Operands) -> Phase:
    """The only phase of a stage without shared memory."""
    phase = Phase()
    seen: dict[int, set[Cell]] = {}
    for row in steps[(steps.space == "global") & (steps.op == "load")].itertuples():
        if row.element:
            phase.loads.append((row.thread, row.element, _value(operands, row.element)))
            seen.setdefault(row.thread, set()).add(row.element)
    _add_up(phase, _owners(steps, operands.problem), seen, {}, {}, operands)
    return phase


def _add_up(
    phase: Phase,
    owners: Sequence[tuple[int, int, int]],
    seen: dict[int, set[Cell]],
    used: dict[tuple[int, int, int], int],
    totals: dict[tuple[int, int, int], float],
    operands: Operands,
) -> None:
    """Each thread's sums as far as both operands have been read by it, in the order of k."""
    for owner in owners:
        thread, row, column = owner
        mine, products = seen.get(thread, set()), []
        k = used.get(owner, 0)
        while k < operands.problem.k and ("A", row, k) in mine and ("B", k, column) in mine:
            products.append((float(operands.a[row, k]), float(operands.b[k, column])))
            k += 1
        used[owner] = k
        totals[owner] = totals.get(owner, 0.0) + sum(a * b for a, b in products)
        phase.sums.append((thread, row, column, products, totals[owner]))


def _value(operands: Operands, cell: Cell) -> float:
    return float((operands.a if cell[0] == "A" else operands.b)[cell[1], cell[2]])


def _owners(steps: pd.DataFrame, problem: Problem) -> list[tuple[int, int, int]]:
    """(thread, row, column) of the cells of C that each thread stores, thread by thread."""
    stored = steps[(steps.space == "global") & (steps.op == "store")]
    start = Arena(problem, problem.operands()).regions["C"].address
    cells = [divmod((int(x) - start) // 4, problem.ldc) for x in stored.address]
    return sorted({(int(t), *cell) for t, cell in zip(stored.thread, cells, strict=True)})


def _stores(steps: pd.DataFrame, problem: Problem, operands: Operands) -> list[tuple[int, int, int, float]]:
    stored = steps[(steps.space == "global") & (steps.op == "store")]
    start = Arena(problem, operands).regions["C"].address
    rows = [
        (int(t), *divmod((int(x) - start) // 4, problem.ldc), float(v))
        for t, x, v in zip(stored.thread, stored.address, stored.value, strict=True)
    ]
    return sorted(rows)


def _name(cell: Cell) -> str:
    return f"{cell[0]}[{cell[1]}][{cell[2]}]"


def render(t: Trace) -> str:
    """The trace as text."""
    x, y = t.block % t.launch.grid[0], t.block // t.launch.grid[0] % t.launch.grid[1]
    given = "".join(f" {name}={value}" for name, value in t.tunables.items())
    out = [
        f"{t.stage.name}{given} on {t.problem}: block ({x}, {y}) of {t.launch.grid[0]} x {t.launch.grid[1]}, {t.launch.threads} threads",
        "A and B count 1, 2, 3, ... along their rows. Threads are (x, y): x is the column.",
    ]
    shared = any(p.tiles for p in t.phases)
    for number, phase in enumerate(t.phases):
        out += ["", f"PHASE {number}", f"  each thread loads{', and stores in shared memory' if shared else ''}"]
        for thread in sorted({th for th, _, _ in phase.loads}):
            words = [f"{_name(c)} = {v:g}" for th, c, v in phase.loads if th == thread]
            out.append(f"    {_who(t, thread)}  {', '.join(words)}")
        if shared:
            out.append("  after the barrier, shared memory holds")
            for matrix in "AB":
                out += _grid(matrix, {c: v for c, v in phase.tiles.items() if c[0] == matrix})
        out.append("  partial sums")
        for thread, row, column, products, total in phase.sums:
            before = total - sum(a * b for a, b in products)
            terms = [f"{a:g}*{b:g}" for a, b in products]
            start = [f"{before:g}"] if before else []
            out.append(f"    {_who(t, thread)}  C[{row}][{column}]: {' + '.join([*start, *terms]) or '0'} = {total:g}")
    out += ["", "STORED"]
    out += [f"    {_who(t, thread)}  C[{r}][{c}] = {v:g}" for thread, r, c, v in t.stores]
    return "\n".join(out) + "\n"


def _who(t: Trace, thread: int) -> str:
    return f"thread ({', '.join(map(str, t.thread(thread)))})"


def _grid(matrix: str, cells: dict[Cell, float]) -> list[str]:
    """A tile as rows of numbers, under the name of what it is a part of."""
    if not cells:
        return []
    rows, columns = (sorted({c[i] for c in cells}) for i in (1, 2))
    width = max(len(f"{v:g}") for v in cells.values())
    out = [f"    {matrix}[{_span(rows)}][{_span(columns)}]"]
    for r in rows:
        out.append(
            "      " + " ".join(f"{cells[matrix, r, c]:{width}g}" if (matrix, r, c) in cells else " " * width for c in columns)
        )  # fmt: skip
    return out


def _span(values: Sequence[int]) -> str:
    whole = list(values) == list(range(values[0], values[-1] + 1))
    return f"{values[0]}..{values[-1]}" if whole and len(values) > 1 else ", ".join(map(str, values))
