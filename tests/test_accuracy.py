"""C against the reference: right, slightly wrong, not a number, exact, whole and by tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.accuracy import CHUNK, check
from harness.problem import Problem


def product(problem: Problem) -> tuple[np.ndarray, object]:
    operands = problem.operands()
    c = np.full((problem.m, problem.ldc), np.nan, np.float32)
    c[:, : problem.n] = operands.reference(slice(None), slice(None))[0]
    return c, operands


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.0, 1.0, -0.5]))
@settings(max_examples=25, deadline=None)
def test_a_rounded_reference_is_right(m, n, k, beta):
    c, operands = product(Problem(m, n, k, beta=beta, ldc=n + 3))
    found = check(c, None, operands)
    assert found.ok and found.checked == m * n and found.share <= 1 and found.max <= found.bound


def test_one_wrong_cell_is_named():
    c, operands = product(Problem(CHUNK[0] + 9, CHUNK[1] + 5, 11))
    c[CHUNK[0] + 3, CHUNK[1] + 2] += 1
    found = check(c, None, operands)
    assert (found.wrong, found.row, found.column) == (1, CHUNK[0] + 3, CHUNK[1] + 2)
    assert found.share > 1 and found.max == pytest.approx(1, abs=1e-5) and "C[515,2050]" in str(found)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_is_wrong(bad):
    c, operands = product(Problem(8, 8, 8))
    c[2, 3] = bad
    found = check(c, None, operands)
    assert (found.wrong, found.row, found.column) == (1, 2, 3) and np.isinf(found.max)


def test_only_the_tiles_computed_count():
    c, operands = product(Problem(100, 90, 30))
    c[50:] = np.nan
    tiles = np.array([[0, 32, 0, 32], [32, 50, 64, 90], [40, 40, 0, 9]])
    assert check(c, tiles, operands).checked == 32 * 32 + 18 * 26
    assert check(c, tiles, operands).ok


def test_exact_means_to_the_bit():
    c, operands = product(Problem(33, 34, 35, distribution="integers"))
    assert check(c, None, operands, exact=True).ok
    c[0, 0] = np.nextafter(c[0, 0], np.inf, dtype=np.float32)
    assert check(c, None, operands).ok
    assert not check(c, None, operands, exact=True).ok
