"""The reference that serves every contender: it finds what is wrong, wherever it is, at any size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import accuracy, reference
from harness.problem import Problem
from harness.reference import ExactReference, Reference, exact_problem


def product(operands):
    p = operands.problem
    c = operands.c.copy()
    found = np.float32(p.alpha) * (operands.a[:, : p.k] @ operands.b[:, : p.n])
    c[:, : p.n] = found + np.float32(p.beta) * c[:, : p.n] if p.beta else found
    return c


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.0, 0.5]), st.integers(0, 3))
def test_it_agrees_with_the_tile_by_tile_check(m, n, k, beta, pad):
    operands = Problem(m, n, k, beta=beta, lda=k + pad, ldb=n + pad, ldc=n + pad).operands()
    c = product(operands)
    mine, theirs = Reference(operands).check(c), accuracy.check(c, None, operands)
    assert (mine.ok, mine.checked, mine.wrong) == (theirs.ok, theirs.checked, theirs.wrong) == (True, m * n, 0)
    assert mine.share == pytest.approx(theirs.share)


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(reference, "FULL", 0)
    monkeypatch.setattr(reference, "SAMPLED", 5)
    return Problem(60, 70, 30, ldc=73).operands()


def test_a_large_product_is_sampled_first_and_last_included(large):
    found = Reference(large)
    rows, columns = (x for x in found.pieces)
    assert rows.rows[[0, -1]].tolist() == [0, 59] and columns.columns[[0, -1]].tolist() == [0, 69]
    assert len(rows.rows) == len(columns.columns) == 5
    assert found.check(product(large)).ok


@pytest.mark.parametrize("cell", [(0, 0), (59, 69), (0, 33), (41, 69)])
def test_a_wrong_cell_of_a_sampled_row_or_column_is_found(large, cell):
    c = product(large)
    c[cell] += 1
    found = Reference(large).check(c)
    assert not found.ok and (found.row, found.column) == cell and found.share > 1


def test_a_cell_that_was_never_written_is_found_anywhere(large):
    reference_ = Reference(large)
    row = next(r for r in range(60) if r not in reference_.pieces[0].rows)
    column = next(x for x in range(70) if x not in reference_.pieces[1].columns)
    c = product(large)
    c[row, column] = np.nan
    found = reference_.check(c)
    assert not found.ok and (found.row, found.column, found.wrong) == (row, column, 1) and found.max == np.inf


def test_the_padding_of_c_does_not_count(large):
    c = product(large)
    assert np.isnan(c[:, 70:]).all() and Reference(large).check(c).ok


@pytest.fixture
def whole():
    return exact_problem(Problem(130, 90, 200, alpha=0.5, beta=2.0, lda=210, ldb=95, ldc=99)).operands()


def test_integers_are_exact(whole):
    assert (whole.problem.alpha, whole.problem.beta, whole.problem.distribution) == (1.0, 0.0, "integers")
    found = ExactReference(whole).check(product(whole))
    assert found.ok and found.exact and found.checked == 130 * 90 and found.max == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 129), st.integers(0, 89), st.sampled_from([1, -1, 0.5, np.nan, np.inf, 2**-10]))
def test_every_wrong_cell_is_found_and_named(row, column, change):
    operands = exact_problem(Problem(130, 90, 200)).operands()
    c = product(operands)
    c[row, column] += change
    found = ExactReference(operands).check(c)
    assert not found.ok and (found.row, found.column, found.wrong) == (row, column, 1)


def test_several_wrong_rows_are_counted(whole):
    c = product(whole)
    c[3, [5, 6]] += 1
    c[7] += 1
    found = ExactReference(whole).check(c)
    assert (found.wrong, found.row) == (3, 3) and found.column in (5, 6)


def test_two_errors_that_cancel_in_a_sum_of_the_row_are_found(whole):
    c = product(whole)
    c[3, 5] += 1
    c[3, 6] -= 1
    assert not ExactReference(whole).check(c).ok


def test_only_exact_problems_are_taken():
    for p in (Problem(4, 4, 4), Problem(4, 4, 4, distribution="integers", beta=1.0)):
        with pytest.raises(ValueError):
            ExactReference(p.operands())
