"""Is a C that was computed many times over right? The reference is computed once and then serves every contender.

Small products are compared cell by cell with float64. Of large ones, rows and columns are sampled, first and last
included, and every cell must be a finite number. Integer-valued inputs, whose product fp32 holds exactly, are checked in
every cell at any size: C x = A (B x) for random integer vectors x, in exact arithmetic (R. Freivalds, 1977).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .accuracy import Accuracy
from .problem import Operands, Problem

FULL = 2**30
"""Products m*n*k up to which every cell is compared with float64."""
SAMPLED = 48
"""Rows, and columns, compared of a larger one."""
VECTORS = 2
"""Random vectors of the exact check: one wrong row escapes one of them with a chance of 1 in 2001."""
SPREAD = 1000
EXACT_K = 2**17
"""Inner dimension up to which products of integers from -8 to 8 are exact in fp32 in any order: 64 * 2^17 < 2^24."""


def exact_problem(problem: Problem) -> Problem:
    """The same shapes with integer inputs, alpha = 1 and beta = 0: C must then be right to the bit."""
    return replace(problem, distribution="integers", alpha=1.0, beta=0.0)


@dataclass(frozen=True)
class _Piece:
    """A block of rows or columns of the reference: where it is, what is expected, and how far off it may be."""

    rows: np.ndarray
    columns: np.ndarray
    expected: np.ndarray
    bound: np.ndarray


class Reference:
    """What C must be for some operands."""

    def __init__(self, operands: Operands) -> None:
        p = self.problem = operands.problem
        self.operands = operands
        if p.m * p.n * p.k <= FULL:
            self.pieces = [self._piece(None, None)]
        else:
            rng = np.random.default_rng([p.seed, 3])
            self.pieces = [self._piece(_drawn(rng, p.m), None), self._piece(None, _drawn(rng, p.n))]

    def _piece(self, rows: np.ndarray | None, columns: np.ndarray | None) -> _Piece:
        """The reference for some rows or columns; None for all of them."""
        p = self.problem
        expected, bound = self.operands.reference(
            slice(0, p.m) if rows is None else rows, slice(0, p.n) if columns is None else columns
        )
        return _Piece(
            np.arange(p.m) if rows is None else rows, np.arange(p.n) if columns is None else columns, expected, bound
        )

    def check(self, c: np.ndarray) -> Accuracy:
        """Compare C, fp32 (m, ldc), with the reference."""
        found = [self._compare(piece, c) for piece in self.pieces]
        worst = max(found, key=lambda a: a.share)
        everywhere = c[:, : self.problem.n]
        bad = np.argwhere(~np.isfinite(everywhere)) if not np.isfinite(everywhere).all() else []
        wrong, checked = sum(a.wrong for a in found), sum(a.checked for a in found)
        if len(bad) and not wrong:
            row, column = map(int, bad[0])
            expected, bound = self.operands.reference(np.array([row]), np.array([column]))
            worst = Accuracy(
                np.inf,
                float(bound[0, 0]),
                np.inf,
                row,
                column,
                float(c[row, column]),
                float(expected[0, 0]),
                checked,
                len(bad),
            )
            wrong = len(bad)
        return replace(
            worst,
            max=max(a.max for a in found) if not len(bad) else np.inf,
            checked=checked,
            wrong=wrong,
            cells=self.problem.m * self.problem.n,
        )

    def _compare(self, piece: _Piece, c: np.ndarray) -> Accuracy:
        got = c[np.ix_(piece.rows, piece.columns)]
        error = np.nan_to_num(np.abs(got - piece.expected), nan=np.inf, posinf=np.inf)
        share = error / piece.bound
        i, j = np.unravel_index(int(np.argmax(share)), share.shape)
        top = np.unravel_index(int(np.argmax(error)), error.shape)
        return Accuracy(
            float(error[top]), float(piece.bound[top]), float(share[i, j]), int(piece.rows[i]), int(piece.columns[j]),
            float(got[i, j]), float(piece.expected[i, j]), error.size, int(np.count_nonzero(share > 1)),
        )  # fmt: skip


class ExactReference:
    """What C must be to the bit, for operands of `exact_problem`."""

    def __init__(self, operands: Operands) -> None:
        p = self.problem = operands.problem
        if p.distribution != "integers" or p.alpha != 1 or p.beta != 0 or p.k > EXACT_K:
            raise ValueError("not an exact problem")
        self.operands = operands
        rng = np.random.default_rng([p.seed, 4])
        self.x = rng.integers(-SPREAD, SPREAD + 1, (p.n, VECTORS)).astype(np.float64)
        self.expected = _times(operands.a[:, : p.k], _times(operands.b[:, : p.n], self.x))

    def check(self, c: np.ndarray) -> Accuracy:
        """Compare every cell of C, fp32 (m, ldc). `wrong` counts cells of the first wrong row, and other wrong rows as one each."""
        p = self.problem
        with np.errstate(invalid="ignore", over="ignore"):
            got = _times(c[:, : p.n], self.x)
        rows = np.flatnonzero(~(got == self.expected).all(axis=1))
        row = int(rows[0]) if rows.size else 0
        expected = self.operands.reference(np.array([row]), slice(0, p.n))[0][0]
        error = np.nan_to_num(np.abs(c[row, : p.n] - expected), nan=np.inf, posinf=np.inf)
        column = int(np.argmax(error))
        wrong = (int(np.count_nonzero(error)) + rows.size - 1) if rows.size else 0
        off = float(error[column]) if rows.size else 0.0
        return Accuracy(
            off,
            0.0,
            np.inf if wrong else 0.0,
            row,
            column,
            float(c[row, column]),
            float(expected[column]),
            p.m * p.n,
            wrong,
            True,
        )


def _times(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """a @ x in float64, for an fp32 matrix and a narrow one, with no float64 copy of all of a."""
    return np.concatenate([a[row : row + 1024].astype(np.float64) @ x for row in range(0, len(a), 1024)])


def _drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """SAMPLED different indices below `count`, the first and the last among them, in order."""
    if count <= SAMPLED:
        return np.arange(count)
    middle = rng.choice(np.arange(1, count - 1), SAMPLED - 2, replace=False)
    return np.sort(np.concatenate([[0, count - 1], middle]))
