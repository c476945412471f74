"""What the compiler may make of each rung: registers, spills, and the loop in which the time goes. Budgets are what was measured
when they were written; a change that breaks one must say why it is worth it."""

import pytest

from harness import isa, stage, toolchain
from harness.roofs import Loop

INSTRUCTION_CACHE = 32 * 1024
"""Bytes of a loop that an SM's L1 instruction cache surely holds."""

BUDGETS = {
    ("tiled2d", 75): (123, 0.760, 2.46),
    ("tiled2d", 80): (123, 0.759, 2.47),
    ("tiled2d", 86): (128, 0.759, 2.33),
    ("tiled2d", 90): (96, 0.810, 2.35),
    ("vectorized", 75): (127, 0.891, 2.34),
    ("vectorized", 80): (128, 0.888, 2.33),
    ("vectorized", 86): (128, 0.885, 2.19),
    ("vectorized", 90): (128, 0.888, 2.17),
    ("bankfree", 75): (128, 0.890, 2.36),
    ("bankfree", 80): (127, 0.887, 2.34),
    ("bankfree", 86): (128, 0.884, 2.17),
    ("bankfree", 90): (128, 0.888, 2.21),
    ("doublebuffered", 75): (149, 0.864, 2.35),
    ("doublebuffered", 80): (151, 0.864, 2.37),
    ("doublebuffered", 86): (159, 0.864, 2.20),
    ("doublebuffered", 90): (161, 0.863, 2.20),
    ("cpasync", 80): (168, 0.900, 2.38),
    ("cpasync", 86): (168, 0.900, 2.22),
    ("cpasync", 90): (168, 0.892, 2.22),
    ("warptiled", 80): (219, 0.910, 2.19),
    ("warptiled", 86): (222, 0.910, 2.04),
    ("warptiled", 90): (218, 0.910, 1.99),
}
"""(stage, sm): registers a thread at most, FFMA share of the hot loop at least, register reads per FFMA there at most."""
COMPILED_BY = "13.0"
"""The compiler whose code the budgets are of."""


@pytest.mark.parametrize("name, arch", BUDGETS)
def test_budget(name, arch):
    s = stage.find(name)
    binary = toolchain.compile(s, s.configure(), arch)
    if not binary.compiler.startswith(COMPILED_BY):
        pytest.skip(f"budgets are of nvcc {COMPILED_BY}, this is {binary.compiler}")
    registers, share, reads = BUDGETS[name, arch]
    kernel = binary.kernels[name]
    assert sum(k.spill_stores + k.spill_loads for k in binary.kernels.values()) == 0
    assert kernel.function.registers <= registers
    loop = Loop.hottest(kernel)
    assert loop.count("FFMA") / loop.count() >= share
    assert ffma_reads(loop) <= reads
    wide = {i.base for i in loop.body if ".128" in i.opcode}
    assert "LDS" in wide  # operands in fours; on sm_90 tiled2d takes one of its two so
    if name != "tiled2d":
        assert "LDG" in wide or "LDGSTS" in wide
    if name == "warptiled":
        assert 16 * loop.count() < INSTRUCTION_CACHE


def ffma_reads(loop: Loop) -> float:
    """Registers that a multiply-add of the loop fetches, once it has gone round."""
    steady = isa.register_reads([*loop.body, *loop.body])[loop.count() :]
    return sum(sum(r) for r, i in zip(steady, loop.body, strict=True) if i.base == "FFMA") / loop.count("FFMA")


def test_every_rung_has_a_budget():
    """For every architecture of the table that the stage compiles for."""
    rungs = [s for s in stage.ladder() if s.name in {name for name, _ in BUDGETS}]
    assert {"tiled2d", "warptiled"} <= {s.name for s in rungs}
    expected = {(s.name, arch) for s in rungs for arch in (75, 80, 86, 90) if arch >= s.least_arch}
    later = [s.name for s in stage.ladder() if s.parent in {r.name for r in rungs}]
    assert expected == set(BUDGETS) and set(later) <= {r.name for r in rungs}
