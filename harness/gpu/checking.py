"""A stage's products on many problems, checked one by one: what `make verify` asks of the process that holds the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import accuracy
from .. import stage as stages
from ..problem import Problem
from .devices import Gpu
from .driver import Hang, KernelFault, Session, StageContender, buffers


@dataclass(frozen=True)
class Checks:
    """What to check: a stage, by its name or path, tunables and cubin.

    cases      problems, in order, and for each whether C must be right to the bit
    timeout    seconds one product may take
    """

    gpu: Gpu
    kernel: str
    tunables: Mapping[str, int]
    code: bytes
    cases: tuple[tuple[Problem, bool], ...]
    timeout: float


def serve(checks: Checks, session: Session, send: Callable[[tuple[Any, ...]], None], leave: Callable[[], None]) -> None:
    """Load the stage once and check every case between guard bands, sending messages:

    ('doing', words, seconds it may take)
    ('checked', Accuracy, damage)    the next case: how C compares with float64, and what was written outside of C, in words
    ('fault', words, remedy)         the next case crashed or hung; `leave` is called then

    Raises TilescopeError where the GPU refuses the module or a launch.
    """
    send(("doing", f"loading {checks.kernel}", 300.0))
    contender = StageContender(session, stages.find(checks.kernel), checks.tunables, checks.code)
    for problem, exact in checks.cases:
        send(("doing", f"checking {contender.name} on {problem}", checks.timeout + 60))
        operands = problem.operands()
        with buffers(session, problem) as (target,):
            target.put(operands)
            try:
                contender.launch(problem, target)
            except (Hang, KernelFault) as e:
                send(("fault", e.what, e.remedy))
                leave()
                raise
            c, damage = target.read_back(operands)
        send(("checked", accuracy.check(c, None, operands, exact), damage))
