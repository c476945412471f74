"""A problem: C = alpha*A*B + beta*C with row-major fp32 matrices, its seeded inputs, its reference and its error bound."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import TilescopeError

DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")
UNIT_ROUNDOFF = 2.0**-24
"""Half the distance from 1 to the next fp32 number."""
MAX_ELEMENTS = 2**31 - 1
"""The stages index a matrix with 32-bit integers."""
MAX_SEED = 2**63 - 1
"""A seed is recorded as a 64-bit integer."""
FIXED_MEMORY = 384 * 2**20
"""Bytes a profile takes whatever the size: Python, its libraries, and the pieces in which large matrices are handled."""
DRAWN = 2**22
"""Elements drawn at a time."""
WIDE = 2**21
"""Elements of A or B held in float64 at a time."""
SERIAL = 2**18
"""Products m*n*k that a BLAS computes without starting threads, which cost more than they save there."""


class TooLarge(TilescopeError):
    """A problem that does not fit into this machine's memory, though it may into another's."""


@dataclass(frozen=True)
class Problem:
    """C[m, n] = alpha * A[m, k] @ B[k, n] + beta * C[m, n], row-major, fp32.

    `lda`, `ldb`, `ldc` are leading dimensions in elements (0: the row length). Raises TilescopeError on
    sizes below 1, leading dimensions shorter than a row, an unknown distribution, or matrices that do not
    fit in memory.
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    distribution: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "lda", "ldb", "ldc", "seed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TilescopeError(f"{name.upper()}={value!r} is not an integer.")
            least = 1 if name in "mnk" else 0
            if value < least:
                raise TilescopeError(f"{name.upper()}={value} is less than {least}.")
            if name == "seed" and value > MAX_SEED:
                raise TilescopeError(f"SEED={value} is more than {MAX_SEED}, the largest that a run can record.")
            object.__setattr__(self, name, int(value))
        for name in ("alpha", "beta"):
            with np.errstate(over="ignore"):
                value = float(np.float32(getattr(self, name)))
            if not np.isfinite(value):
                raise TilescopeError(f"{name.upper()}={getattr(self, name)} is not a finite fp32 number.")
            object.__setattr__(self, name, value)
        for name, row in (("lda", self.k), ("ldb", self.n), ("ldc", self.n)):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, row)
            elif getattr(self, name) < row:
                raise TilescopeError(
                    f"{name.upper()}={getattr(self, name)} is shorter than the row of {row} elements it must span."
                )
        if self.distribution not in DISTRIBUTIONS:
            raise TilescopeError(
                f"unknown input distribution {self.distribution!r}.", f"Choose one of {', '.join(DISTRIBUTIONS)}."
            )
        self._check_memory()

    def _check_memory(self) -> None:
        for name, (rows, ld) in self.shapes.items():
            if rows * ld > MAX_ELEMENTS:
                raise TilescopeError(
                    f"{name} would have {rows * ld:,} elements; a stage indexes at most {MAX_ELEMENTS:,}.",
                    "Choose a smaller size.",
                )
        need, have = self.memory, _available_memory()
        if need > have:
            raise TooLarge(
                f"the problem {self} needs up to {need / 2**30:.1f} GiB of memory; {have / 2**30:.1f} GiB are free.",
                "Choose a smaller size.",
            )

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Stored shape (rows, leading dimension) of each matrix."""
        return {"A": (self.m, self.lda), "B": (self.k, self.ldb), "C": (self.m, self.ldc)}

    @property
    def bytes(self) -> int:
        """Bytes that A, B and C take as stored."""
        return 4 * sum(rows * ld for rows, ld in self.shapes.values())

    @property
    def memory(self) -> int:
        """Bytes that simulating it takes at most: inputs, the simulated memory with a byte of state per word, and the rest."""
        a, b, c = (rows * ld for rows, ld in self.shapes.values())
        return 9 * (a + b) + (9 if self.beta else 5) * c + FIXED_MEMORY

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add for each of the m*n*k products."""
        return 2 * self.m * self.n * self.k

    @property
    def compulsory_bytes(self) -> int:
        """Least DRAM traffic: A and B read once, C written once, and read once where beta is not 0."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n * (2 if self.beta else 1))

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        if self.alpha != 1 or self.beta != 0:
            text += f" alpha={self.alpha:g} beta={self.beta:g}"
        if (self.lda, self.ldb, self.ldc) != (self.k, self.n, self.n):
            text += f" lda={self.lda} ldb={self.ldb} ldc={self.ldc}"
        return text

    def operands(self) -> Operands:
        """The seeded inputs of this problem."""
        return Operands(self)


def _available_memory() -> int:
    """Bytes of memory this process may still take: the machine's, or its control group's where that is less."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo") as f:
            fields = dict(line.split(":", 1) for line in f)
        free = int(fields["MemAvailable"].split()[0]) * 1024
        with open("/sys/fs/cgroup/memory.max") as f, open("/sys/fs/cgroup/memory.current") as g:
            limit = f.read().strip()
            if limit != "max":
                free = min(free, int(limit) - int(g.read()))
    except (OSError, KeyError, ValueError):
        pass
    return free


class Operands:
    """A, B and C of a problem as stored: fp32 arrays of shape (rows, leading dimension).

    The padding behind each row is NaN, so a stage that reads it is found out. With beta = 0 all of C is NaN:
    BLAS says C is then not read. `integers` draws from -8..8, so that a product of up to 2^17 terms is exact.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.a = self._draw(0, problem.m, problem.k, problem.lda)
        self.b = self._draw(1, problem.k, problem.n, problem.ldb)

    @cached_property
    def c(self) -> np.ndarray:
        """Made when first asked for: with beta = 0 hardly anyone does."""
        p = self.problem
        return self._draw(2, p.m, p.n, p.ldc) if p.beta else np.full((p.m, p.ldc), np.nan, np.float32)

    def _draw(self, stream: int, rows: int, columns: int, ld: int) -> np.ndarray:
        rng = np.random.default_rng([self.problem.seed, stream])
        stored = np.empty((rows, ld), np.float32)
        stored[:, columns:] = np.nan
        high, wide = max(1, DRAWN // columns), min(columns, DRAWN)
        for row in range(0, rows, high):
            for column in range(0, columns, wide):
                piece = stored[row : row + high, column : min(columns, column + wide)]
                piece[:] = self._values(rng, piece.shape)
        return stored

    def _values(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray | float:
        match self.problem.distribution:
            case "normal":
                return rng.standard_normal(shape, dtype=np.float32)
            case "uniform":
                return rng.random(shape, dtype=np.float32)
            case "integers":
                return rng.integers(-8, 9, shape)
        return 0.0

    def reference(self, rows: slice | np.ndarray, columns: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(C, bound) in float64 for a block of rows and columns.

        `bound` is the largest |error| an fp32 stage may show, elementwise, whatever order it sums in:
        gamma(k + 2) * |alpha| |A||B| + gamma(3) * |beta C|, gamma(n) = n*u / (1 - n*u), u = 2^-24
        (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.5).
        """
        p = self.problem
        a, b = self.a[rows, : p.k], self.b[:, : p.n][:, columns]
        product, bound = np.zeros((2, len(a), b.shape[1]))
        for at in range(0, p.k, step := _depth(*product.shape)):
            left, right = (x.astype(np.float64) for x in (a[:, at : at + step], b[at : at + step]))
            product += left @ right
            bound += np.abs(left, out=left) @ np.abs(right, out=right)
        product *= p.alpha
        bound *= abs(p.alpha) * gamma(p.k + 2)
        if p.beta:
            c = self.c[rows, : p.n][:, columns].astype(np.float64)
            product += p.beta * c
            bound += gamma(3) * abs(p.beta) * np.abs(c)
        return product, bound + np.finfo(np.float32).tiny


def _depth(rows: int, columns: int) -> int:
    """How far along K a float64 product of so many rows and columns goes at a time."""
    serial = SERIAL // max(1, rows * columns)
    return serial if serial >= 16 else max(64, WIDE // max(rows, columns))


def gamma(n: int) -> float:
    """Higham's gamma(n) = n*u / (1 - n*u) for fp32 rounding."""
    return n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)
