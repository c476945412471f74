"""The verification pack: is a stage right on every kind of problem? On a GPU, or through the simulator with all of its checks on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from . import accuracy, sim, toolchain
from . import device as devices
from . import stage as stages
from .errors import TilescopeError
from .problem import Problem
from .profiling import backend_and_device, configure
from .stage import Stage

if TYPE_CHECKING:
    from .gpu.devices import Gpu

COLUMNS = (
    "stage", "tunables", "group", "cases", "failed", "error_share", "backend", "device", "gpu", "driver", "nvcc", "sass",
)  # fmt: skip
"""Of the table of verdicts. group: of problems; error_share: largest error over its bound, no value where every kernel was
stopped; nvcc: version of the compiler; sass: hash of the machine code."""
COUNT = 30
"""Random problems unless the caller says otherwise."""
SQUARES = 64
"""Largest of the squares of which the pack has every size."""
TIMEOUT_S = 10.0
"""Seconds that one product of the pack may take on a GPU before it counts as hung; it takes microseconds."""
LARGEST = 200
"""Largest m, n of a random problem: all kinds of edges at a cost of milliseconds."""


@dataclass(frozen=True)
class Case:
    """One problem of the pack, and the group it stands for in the table."""

    group: str
    problem: Problem

    @property
    def exact(self) -> bool:
        """Integer inputs whose product fp32 holds exactly: C must be right to the bit."""
        p = self.problem
        return (
            p.distribution == "integers" and float(p.alpha).is_integer() and float(p.beta).is_integer() and p.k <= 2**14
        )


@dataclass(frozen=True)
class Verdict:
    """What came of a case: how C compares; and a fault: what the simulator stopped at, or on a GPU a crash, a hang, or what was
    written outside of C. After a fault that ends the kernel there is no accuracy."""

    case: Case
    accuracy: accuracy.Accuracy | None
    fault: str = ""

    @property
    def ok(self) -> bool:
        return self.accuracy is not None and self.accuracy.ok and not self.fault

    @property
    def why(self) -> str:
        """One line or more on what is wrong, or nothing."""
        wrong = str(self.accuracy) if self.accuracy and not self.accuracy.ok else ""
        return "\n".join(filter(None, [self.fault, wrong]))

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.case.group, "problem": asdict(self.case.problem), "ok": self.ok,
            "error": self.accuracy.to_json() if self.accuracy else None, "fault": self.fault or None,
        }  # fmt: skip


@dataclass(repr=False)
class Verification:
    """Verdicts of a stage, in the order they were reached; print() shows the table.

    sass, nvcc   hash of the machine code, and the compiler's version
    gpu, driver  the GPU's name and its driver's version, where the backend is `gpu`
    interrupted  by Ctrl-C, before the last of the `planned` cases
    """

    stage: Stage
    tunables: dict[str, int]
    device: devices.Device
    backend: str
    sass: str
    nvcc: str
    planned: int
    gpu: str = ""
    driver: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"<Verification of {self.stage.name}: {len(self.failed)} of {len(self.verdicts)} wrong>"

    def __str__(self) -> str:
        from . import report

        return report.render_verification(self)

    @property
    def ok(self) -> bool:
        return all(v.ok for v in self.verdicts)

    @property
    def failed(self) -> list[Verdict]:
        return [v for v in self.verdicts if not v.ok]

    def groups(self) -> dict[str, list[Verdict]]:
        """Verdicts by group, in the order of the pack."""
        found: dict[str, list[Verdict]] = {}
        for v in self.verdicts:
            found.setdefault(v.case.group, []).append(v)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage.name, "tunables": self.tunables, "device": self.device.name, "backend": self.backend,
            "gpu": self.gpu or None, "driver": self.driver or None, "sass": self.sass, "nvcc": self.nvcc, "ok": self.ok,
            "planned": self.planned, "interrupted": self.interrupted, "verdicts": [v.to_json() for v in self.verdicts],
        }  # fmt: skip


def verify(
    kernel: str | Path,
    *,
    count: int = COUNT,
    seed: int = 0,
    device: str | None = None,
    backend: str = "auto",
    gpu: str | int | None = None,
    timeout: float = TIMEOUT_S,
    nvcc: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    **tunables: int,
) -> Verification:
    """Run a stage on every case of the pack and on `count` seeded random problems.

    backend: `gpu` runs them between guard bands on a GPU, in a process of its own (harness.gpu.client.keeping: in one for
    several calls); `sim` through the simulator; `auto` is `gpu` where there is one, unless `device` names another kind.
    timeout: seconds that one product may take on a GPU.

    A wrong C or a fault is a failed verdict, and the rest still runs: on a GPU, after a crash or a hang, in a new process.
    Ctrl-C ends the pack early and keeps what is finished. Raises TilescopeError on bad input, where the stage does not compile,
    or where the GPU refuses it.
    """
    if count < 0:
        raise TilescopeError(f"COUNT={count} is less than 0.")
    if not 0 < timeout < math.inf:
        raise TilescopeError(f"TIMEOUT={timeout:g} is not more than 0.")
    note = progress or (lambda fraction, words: None)
    stage = stages.find(str(kernel))
    chosen = configure(stage, tunables)
    backend, target, live = backend_and_device(backend, device, gpu)
    cases = [*pack(chosen), *random_cases(count, seed)]
    note(0.0, f"compiling {stage.name}")
    binary = toolchain.compile(stage, chosen, target.cc, nvcc)
    result = Verification(stage, chosen, target, backend, binary.hash, binary.compiler, len(cases))
    if live:
        from .gpu import clocks

        live.check_runs(binary.compiler)
        result.gpu, result.driver = live.name, clocks.Monitor(live).driver()
        judged = _on_gpu(live, str(kernel), chosen, binary, cases, timeout)
    else:
        judged = (_judge(stage, chosen, binary, case) for case in cases)
    try:
        for verdict in judged:
            result.verdicts.append(verdict)
            note(len(result.verdicts) / len(cases), f"{stage.name}: {len(result.verdicts)} of {len(cases)} problems")
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _on_gpu(
    gpu: Gpu, kernel: str, tunables: dict[str, int], binary: toolchain.Binary, cases: Sequence[Case], timeout: float
) -> Iterator[Verdict]:
    from .gpu import client
    from .gpu.checking import Checks

    asked = tuple((case.problem, case.exact) for case in cases)
    found = client.check(Checks(gpu, stages.anywhere(kernel), tunables, binary.cubin, asked, timeout))
    for case, (compared, fault) in zip(cases, found, strict=True):
        yield Verdict(case, compared, fault)


def _judge(stage: Stage, tunables: dict[str, int], binary: toolchain.Binary, case: Case) -> Verdict:
    operands = case.problem.operands()
    try:
        done = sim.run(binary, stage.plan(case.problem, tunables), case.problem, operands, blocks="all")
    except sim.Fault as fault:
        return Verdict(case, None, str(fault))
    return Verdict(case, accuracy.check(done.c, done.tiles, operands, case.exact))


def table(results: Sequence[Verification]) -> pd.DataFrame:
    """Columns of COLUMNS, a row per stage and group of problems."""
    rows = [
        (
            r.stage.name, json.dumps(r.tunables), group, len(verdicts), sum(not v.ok for v in verdicts),
            max((v.accuracy.share for v in verdicts if v.accuracy), default=math.nan), r.backend, r.device.name, r.gpu, r.driver, r.nvcc, r.sass,
        )
        for r in results
        for group, verdicts in r.groups().items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def pack(tunables: dict[str, int]) -> Iterator[Case]:
    """The fixed cases: every square up to SQUARES, sizes around the stage's own tiles, all shapes, and what BLAS says of alpha, beta
    and C."""
    tile = max([v for name, v in tunables.items() if name in ("TILE", "BM", "BN")], default=32)
    depth = tunables.get("BK", tile)
    for size in range(1, SQUARES + 1):
        yield Case("squares from 1", Problem(size, size, size, seed=size))
    for size in sorted({tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 3} - {0}):
        yield Case("around the tile", Problem(size, size, size, seed=size))
    for m, n, k in ((11, 13, 17), (37, 41, 43), (67, 71, 29), (101, 103, 7)):
        yield Case("primes", Problem(m, n, k, seed=m))
    for k in sorted({1, 2, depth - 1, depth, depth + 1, 2 * depth, 3 * depth - 1} - {0}):
        yield Case("short and uneven K", Problem(tile + 5, tile + 3, k, seed=k))
    for m, n, k in ((1, 129, 33), (257, 1, 40), (4 * tile + 1, 3, 19), (5, 4 * tile + 1, 19), (1, 1, 300), (3, 2, 515)):
        yield Case("tall, wide, deep", Problem(m, n, k, seed=k))
    for m, n, k in (
        (tile, tile + 1, depth),
        (tile + 1, tile, depth),
        (2 * tile, tile, 2 * depth),
        (tile - 1 or 1, 2 * tile, depth + 1),
    ):
        yield Case("one edge ragged", Problem(m, n, k, seed=m + n))
    for lda, ldb, ldc in ((40, 0, 0), (0, 80, 0), (0, 0, 81), (53, 77, 96)):
        yield Case("rows longer than the matrix", Problem(45, 70, 37, lda=lda, ldb=ldb, ldc=ldc, seed=lda + ldb + ldc))
        yield Case(
            "rows longer than the matrix",
            Problem(45, 70, 37, lda=lda, ldb=ldb, ldc=ldc, beta=0.5, seed=lda + ldb + ldc),
        )
    for alpha, beta in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-1.5, 0.25), (0.5, -2.0), (1e-20, 1e10)):
        yield Case("alpha and beta", Problem(70, 67, 33, alpha=alpha, beta=beta, seed=3))
    for m, n, k in ((1, 1, 1), (64, 64, 64), (70, 67, 33)):
        yield Case("NaN in C with beta = 0", Problem(m, n, k, alpha=2.0, beta=0.0, seed=5))
    for m, n, k, alpha, beta in (
        (64, 64, 64, 1, 0),
        (67, 71, 59, 1, 0),
        (130, 65, 100, 2, -1),
        (1, 200, 257, -1, 1),
        (33, 1, 1000, 1, 0),
    ):
        yield Case(
            "exact integers, to the bit", Problem(m, n, k, alpha=alpha, beta=beta, distribution="integers", seed=7)
        )
    yield Case("zeros", Problem(65, 66, 67, distribution="zeros", beta=1.0))


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Seeded random problems: sizes up to LARGEST, with every option drawn."""
    rng = np.random.default_rng([seed, 1])
    for number in range(count):
        m, n, k = (int(x) for x in np.exp(rng.uniform(0, np.log(LARGEST + 1), 3)))
        pad = [int(x) for x in rng.integers(0, 9, 3) * rng.integers(0, 2, 3)]
        yield Case(
            "random",
            Problem(
                m, n, k, alpha=float(rng.choice([1.0, 1.0, -0.5, 3.0])), beta=float(rng.choice([0.0, 0.0, 1.0, -2.0])),
                lda=k + pad[0], ldb=n + pad[1], ldc=n + pad[2],
                distribution=str(rng.choice(["normal", "uniform", "integers"])), seed=number,
            ),
        )  # fmt: skip
