"""`python -m harness launch`: what Nsight Compute and compute-sanitizer wrap. One warm product, then one in the stage's NVTX range.

It runs in this very process, which the tool watches. A crash or a hang of the kernel is raised as KernelFault or Hang: leave
the process with os._exit then, since nothing that waits for the GPU returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import stage as stages
from .. import toolchain
from ..accuracy import Accuracy
from ..errors import TilescopeError
from ..problem import Problem
from ..reference import Reference
from . import cublas, devices
from .devices import Gpu
from .driver import Session, StageContender, buffers, compile, span

TIMEOUT = 600.0
"""Seconds a launch may take: tools slow it down, and replay it."""


@dataclass(frozen=True)
class Launched:
    """What came of it: which GPU, how C compares, and what was written outside of C, in words."""

    name: str
    gpu: Gpu
    problem: Problem
    accuracy: Accuracy
    damage: str

    @property
    def ok(self) -> bool:
        return self.accuracy.ok and not self.damage

    def __str__(self) -> str:
        found = "; ".join(filter(None, [self.damage, str(self.accuracy)]))
        return f"{self.name} on {self.gpu}, {self.problem}: {'correct' if self.ok else 'WRONG'}: {found}"


def launch(
    kernel: str | Path,
    problem: Problem,
    tunables: Mapping[str, int] | None = None,
    *,
    gpu: str | int | None = None,
    cubin: str | Path | None = None,
    nvcc: str | None = None,
    timeout: float = TIMEOUT,
    guarded: bool = True,
) -> Launched:
    """Run a stage, or `cublas` or `cublaslt`, twice on a problem and check C of the second time.

    guarded: between guard bands; without them, compute-sanitizer sees an access past a matrix's end.
    cubin: machine code of the stage compiled before, on whatever machine; else it is compiled through PyCUDA. Raises
    TilescopeError where the GPU, PyCUDA, the compiler or memory is missing, KernelFault or Hang where the kernel fails.
    """
    stage = None if str(kernel) in cublas.NAMES else stages.find(str(kernel))
    configured = stage.configure(tunables) if stage else {}
    toolchain.check(nvcc)
    chosen = devices.find(gpu)
    with Session(chosen, timeout) as session:
        if stage is None:
            contender = cublas.open_library(session, str(kernel))
        else:
            contender = StageContender(
                session, stage, configured, code_for(session, stage, configured, chosen, cubin, nvcc)
            )
        operands = problem.operands()
        with buffers(session, problem, guarded=guarded) as (target,):
            target.put(operands)
            product = contender.bind(problem, target)
            with span("warm up"):
                product()
                session.wait(f"warming {contender.name} up")
            target.matrices["C"].put(operands.c)
            contender.launch(problem, target)
            c, damage = target.read_back(operands)
        if stage is None:
            contender.close()
    return Launched(contender.name, chosen, problem, Reference(operands).check(c), damage)


def code_for(
    session: Session,
    stage: stages.Stage,
    tunables: Mapping[str, int],
    gpu: Gpu,
    cubin: str | Path | None,
    nvcc: str | None,
) -> bytes:
    """The machine code of a stage: from a file, through PyCUDA's SourceModule, or as the toolchain compiled it elsewhere."""
    if cubin:
        try:
            return Path(cubin).read_bytes()
        except OSError as e:
            raise TilescopeError(f"cannot read CUBIN={cubin}: {e.strerror}.") from e
    binary = toolchain.compile(stage, tunables, gpu.cc, nvcc)
    gpu.check_runs(binary.compiler)
    compiler = compiler_of(binary, nvcc)
    return compile(session, stage, tunables, gpu.cc, binary.hash, compiler) if compiler else binary.cubin


def compiler_of(binary: toolchain.Binary, nvcc: str | None) -> Path | None:
    """The nvcc of the version that compiled a binary, if it is on this machine."""
    try:
        path, version = toolchain.compiler(nvcc)
    except TilescopeError:
        return None
    return path if version == binary.compiler else None
