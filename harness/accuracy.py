"""Is C right? Against the float64 reference within its error bound, or to the bit where the product is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .problem import Operands
from .words import several

CHUNK = (512, 2048)
"""Rows and columns of a float64 reference held at a time."""


@dataclass(frozen=True)
class Accuracy:
    """How far the cells of C that were checked lie from the reference.

    max      largest |error|; infinite if a cell is not a finite number
    bound    what that cell's |error| may be at most
    share    largest |error| / bound of any cell
    row, column, got, expected   the cell of that share
    checked  cells compared; wrong: those beyond their bound
    exact    cells had to equal the reference to the bit
    cells    cells C has, compared or not; 0 where nobody said
    """

    max: float
    bound: float
    share: float
    row: int
    column: int
    got: float
    expected: float
    checked: int
    wrong: int
    exact: bool = False
    cells: int = 0

    @property
    def ok(self) -> bool:
        return self.wrong == 0

    def to_json(self) -> dict:
        return {
            "max": self.max, "bound": self.bound, "share_of_bound": self.share, "checked": self.checked, "cells": self.cells, "wrong": self.wrong,
            "exact": self.exact, "ok": self.ok,
            "worst": {"row": self.row, "column": self.column, "got": self.got, "expected": self.expected},
        }  # fmt: skip

    def __str__(self) -> str:
        """One sentence about the worst cell."""
        cell = f"C[{self.row},{self.column}] is {self.got:.9g} and should be {self.expected:.9g}"
        if self.wrong:
            much = (
                "" if self.exact or not np.isfinite(self.share) else f", {self.share:,.3g} times the error bound away"
            )
            return f"{self.wrong:,} of {several(self.checked, 'cell')} {'is' if self.wrong == 1 else 'are'} wrong; {cell}{much}"
        part = f"{self.checked:,} of " if self.checked < self.cells else ""
        return f"{part}{several(self.cells if part else self.checked, 'cell')} checked; largest error {self.max:.3g}, bound {self.bound:.3g}"


def check(c: np.ndarray, tiles: np.ndarray | None, operands: Operands, exact: bool = False) -> Accuracy:
    """Compare computed cells of C (m, ldc) with the reference.

    tiles: (count, 4) of row0, row1, col0, col1 that were computed, or None for all of C. exact: demand equality, for
    integer inputs whose product fp32 holds exactly.
    """
    checked = wrong = 0
    top, worst = (-1.0, 0.0), (-1.0, 0, 0, 0.0, 0.0)
    for row0, row1, col0, col1 in _blocks(tiles, operands.problem.m, operands.problem.n):
        expected, bound = operands.reference(slice(row0, row1), slice(col0, col1))
        got = c[row0:row1, col0:col1]
        error = np.nan_to_num(np.abs(got - expected), nan=np.inf, posinf=np.inf)
        share = error / bound
        checked += error.size
        wrong += int(np.count_nonzero(got != expected if exact else share > 1))
        at = _largest(error)
        if error[at] > top[0]:
            top = (float(error[at]), float(bound[at]))
        at = _largest(share)
        if share[at] > worst[0]:
            worst = (float(share[at]), row0 + at[0], col0 + at[1], float(got[at]), float(expected[at]))
    return Accuracy(
        *top, *worst, checked=checked, wrong=wrong, exact=exact, cells=operands.problem.m * operands.problem.n
    )


def _blocks(tiles: np.ndarray | None, m: int, n: int) -> Iterator[tuple[int, int, int, int]]:
    """The rectangles to check, none larger than CHUNK."""
    for tile in [(0, m, 0, n)] if tiles is None else tiles:
        row0, row1, column0, column1 = map(int, tile)
        for row in range(row0, row1, CHUNK[0]):
            for column in range(column0, column1, CHUNK[1]):
                yield row, min(row1, row + CHUNK[0]), column, min(column1, column + CHUNK[1])


def _largest(x: np.ndarray) -> tuple[int, int]:
    row, column = np.unravel_index(int(np.argmax(x)), x.shape)
    return int(row), int(column)
