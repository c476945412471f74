"""Kernels written down as SASS, for tests that need no compiler."""

import pandas as pd

from harness import cubin
from harness.toolchain import Instruction, Kernel, split_operands

COUNTERS = "executed threads threads_on requests sectors lines sectors_ideal wavefronts wavefronts_ideal".split()


def instruction(text: str, pc: int = 0, line: int = 1) -> Instruction:
    """An Instruction from the text nvdisasm prints: '@P0 LDG.E R2, desc[UR4][R2.64]'."""
    predicate, rest = text.split(" ", 1) if text.startswith("@") else ("", text)
    opcode, _, operands = rest.partition(" ")
    return Instruction(pc, 0, predicate, opcode, split_operands(operands), "/src/kernel.cu", line)


def listing(*texts: str | tuple[int, str], registers: int = 32, shared: int = 0, frame: int = 0) -> Kernel:
    """A Kernel from instructions, each with its source line or without."""
    lines = [t if isinstance(t, tuple) else (1, t) for t in texts]
    function = cubin.Function("kernel", [], registers, shared, frame, 0x210, 0, [])
    return Kernel(function, [instruction(text, 16 * n, line) for n, (line, text) in enumerate(lines)])


def counts(kernel: Kernel, *rows: dict[str, int], warps: int = 1) -> pd.DataFrame:
    """Counts: every instruction executed by `warps` full warps, and per row what differs."""
    full = {**dict.fromkeys(COUNTERS, 0), "executed": warps, "threads": 32 * warps, "threads_on": 32 * warps}
    table = [full | row for row in (*rows, *[{}] * (len(kernel.instructions) - len(rows)))]
    return pd.DataFrame(table, index=pd.Index([i.pc for i in kernel.instructions], name="pc"))
