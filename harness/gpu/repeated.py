"""Launch a stage many times on a GPU and check C each time: how often does a race show? In a process of its own.

C is held against the float64 reference, unless it is to the bit a C that was found right before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from .. import stage as stages
from .. import watched
from ..errors import TilescopeError
from ..problem import Problem
from ..reference import Reference
from . import devices
from .driver import Session, StageContender, buffers

LIMIT_S = 300.0


def run(
    stage: str, problem: Problem, tunables: Mapping[str, int], cubin: bytes, launches: int, gpu: str
) -> dict[str, int]:
    """{'launches', 'wrong', 'most_wrong_cells'} of so many products. Raises TilescopeError where the process fails."""
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder:
        code = Path(folder) / "kernel.cubin"
        code.write_bytes(cubin)
        asked = json.dumps([stage, asdict(problem), dict(tunables), str(code), launches, gpu])
        said, status = watched.run([sys.executable, "-m", "harness.gpu.repeated", asked], LIMIT_S)
    last = said.strip().splitlines()[-1] if said.strip() else "nothing"
    if status:
        raise TilescopeError(f"{stage}, launched {launches} times: status {status}: {last}")
    return json.loads(last)


def count(
    stage: str, problem: Problem, tunables: Mapping[str, int], code: bytes, launches: int, gpu: str
) -> dict[str, int]:
    """The same in this process."""
    with Session(devices.find(gpu)) as session:
        contender = StageContender(session, stages.find(stage), tunables, code)
        operands = problem.operands()
        reference = Reference(operands)
        wrong, most, right = 0, 0, None
        with buffers(session, problem) as (target,):
            target.put(operands)
            product = contender.bind(problem, target)
            for _ in range(launches):
                target.matrices["C"].put(operands.c)
                product()
                session.wait(f"running {stage}")
                c = target.matrices["C"].get()
                if right is not None and np.array_equal(c, right, equal_nan=True):
                    continue
                found = reference.check(c)
                if found.ok:
                    right = c
                else:
                    wrong, most = wrong + 1, max(most, found.wrong)
    return {"launches": launches, "wrong": wrong, "most_wrong_cells": most}


def main() -> None:
    """What `run` starts: the arguments as JSON, the result as JSON on standard output."""
    stage, problem, tunables, code, launches, gpu = json.loads(sys.argv[1])
    try:
        found = count(stage, Problem(**problem), tunables, Path(code).read_bytes(), launches, gpu)
    except TilescopeError as e:
        print(str(e).replace("\n", " "), flush=True)
        os._exit(1)  # after a crash or a hang nothing that waits for the GPU returns
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
