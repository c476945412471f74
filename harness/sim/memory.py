"""The global memory of a simulated launch: A, B and C between guard bands, and a shadow byte for every word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..problem import Operands, Problem
from ..words import several

BASE = 0x7F00_0000_0000
ALIGNMENT = 512  # bytes; cudaMalloc aligns at least to 256
GUARD = 64 * 1024  # bytes around every matrix
READABLE, WRITABLE, WRITTEN = 1, 2, 4


@dataclass(frozen=True)
class Region:
    """A matrix in the arena: first word, rows, columns, leading dimension (elements)."""

    name: str
    word: int
    rows: int
    columns: int
    ld: int

    @property
    def words(self) -> int:
        return (self.rows - 1) * self.ld + self.columns

    @property
    def address(self) -> int:
        return BASE + 4 * self.word


class Arena:
    """Device memory holding the operands of a problem.

    `words` is the memory as uint32, `shadow` one byte per word (READABLE, WRITABLE, WRITTEN), `regions` the matrices by
    name. Every word between and behind the rows is neither readable nor writable; C is not readable where beta is 0.
    """

    def __init__(self, problem: Problem, operands: Operands) -> None:
        self.problem = problem
        sizes = {
            "A": (problem.m, problem.k, problem.lda),
            "B": (problem.k, problem.n, problem.ldb),
            "C": (problem.m, problem.n, problem.ldc),
        }
        self.regions: dict[str, Region] = {}
        at = GUARD
        for name, (rows, columns, ld) in sizes.items():
            self.regions[name] = Region(name, at // 4, rows, columns, ld)
            at = -(-(at + 4 * rows * ld + GUARD) // ALIGNMENT) * ALIGNMENT
        self.words = np.zeros(at // 4, np.uint32)  # pages that nobody touches take no memory
        self.shadow = np.zeros(at // 4, np.uint8)
        self.operands = operands
        for name, data in (("A", operands.a), ("B", operands.b)):
            self.stored(name)[:] = data
            self.marks(name)[:] = READABLE
        self.renew()

    def renew(self) -> None:
        """C as it was before anything ran. With beta = 0 its cells hold whatever they held, since nobody may read them."""
        self.marks("C")[:] = WRITABLE | (READABLE if self.problem.beta else 0)
        if self.problem.beta:
            self.stored("C")[:] = self.operands.c
        else:
            self.stored("C")[:, self.problem.n :] = np.nan

    def stored(self, name: str) -> np.ndarray:
        """The matrix as stored: fp32, shape (rows, leading dimension); a view."""
        r = self.regions[name]
        return self.words[r.word : r.word + r.rows * r.ld].view(np.float32).reshape(r.rows, r.ld)

    def marks(self, name: str) -> np.ndarray:
        """The shadow of a matrix's cells: uint8, shape (rows, columns); a view. WRITTEN is its highest bit."""
        r = self.regions[name]
        return self.shadow[r.word : r.word + r.rows * r.ld].reshape(r.rows, r.ld)[:, : r.columns]

    def describe(self, address: int) -> str:
        """Where an address lies, in words: 'A[3][7]', 'the padding behind row 3 of A', '12 bytes past the end of B'."""
        for r in self.regions.values():
            offset = address - r.address
            if 0 <= offset < 4 * r.rows * r.ld:
                row, column = divmod(offset // 4, r.ld)
                if column < r.columns:
                    return f"{r.name}[{row}][{column}]"
                if row < r.rows - 1:
                    return f"the padding behind row {row} of {r.name}, {several(column - r.columns + 1, 'element')} past its {several(r.columns, 'column')}"
            if -GUARD // 2 <= offset < 0:
                return f"{several(-offset, 'byte')} before the start of {r.name} ({r.rows} x {r.columns})"
            if 0 <= offset - 4 * r.words < GUARD:
                return f"{several(offset - 4 * r.words, 'byte')} past the end of {r.name} ({r.rows} x {r.columns})"
        return "far outside A, B and C"
