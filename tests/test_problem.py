"""harness.problem: what is refused, inputs that do not depend on how they are drawn, memory that is foretold."""

import subprocess
import sys

import numpy as np
import pytest

from harness import problem as problems
from harness.errors import TilescopeError
from harness.problem import Problem

CHILD = """
import resource, sys
from harness import profiling
p = profiling.profile("tiled2d", **eval(sys.argv[1]), backend="sim", record=False)
assert p.ok
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, p.problem.memory, p.problem.bytes)
"""


@pytest.mark.parametrize("shape", [{"m": 9000, "n": 9000, "k": 1}, {"m": 64, "n": 64, "k": 500_000, "beta": 1.0}])
def test_memory_stays_below_what_is_foretold(shape):
    run = subprocess.run([sys.executable, "-c", CHILD, repr(shape)], capture_output=True, text=True, check=True)
    peak, foretold, matrices = map(int, run.stdout.split())
    assert matrices < peak < foretold


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(problems, "_available_memory", lambda: 2**30)
    Problem(4096, 4096, 4096)
    with pytest.raises(TilescopeError, match="needs up to 10.4 GiB of memory; 1.0 GiB are free"):
        Problem(46340, 46340, 1)


@pytest.mark.parametrize("distribution", problems.DISTRIBUTIONS)
def test_inputs_do_not_depend_on_the_pieces_they_are_drawn_in(distribution, monkeypatch):
    whole = Problem(40, 30, 50, lda=53, beta=1.0, distribution=distribution).operands()
    monkeypatch.setattr(problems, "DRAWN", 20)
    pieces = Problem(40, 30, 50, lda=53, beta=1.0, distribution=distribution).operands()
    for name in "abc":
        assert np.array_equal(getattr(whole, name), getattr(pieces, name), equal_nan=True)


def test_a_reference_summed_in_pieces_is_the_whole_one(monkeypatch):
    monkeypatch.setattr(problems, "SERIAL", 0)
    monkeypatch.setattr(problems, "WIDE", 64)
    operands = Problem(30, 20, 200, alpha=0.5, beta=2.0).operands()
    c, bound = operands.reference(slice(3, 9), np.array([1, 7]))
    a, b, old = (x.astype(np.float64) for x in (operands.a[3:9], operands.b[:, [1, 7]], operands.c[3:9, [1, 7]]))
    assert np.allclose(c, 0.5 * (a @ b) + 2 * old, rtol=1e-13)
    assert np.allclose(
        bound, 0.5 * problems.gamma(202) * (abs(a) @ abs(b)) + 2 * problems.gamma(3) * abs(old), rtol=1e-13
    )


def test_a_seed_beyond_64_bits_is_refused():
    assert Problem(1, 1, 1, seed=2**63 - 1).operands().a.shape == (1, 1)
    with pytest.raises(TilescopeError, match="SEED=99999999999999999999 is more than"):
        Problem(1, 1, 1, seed=99999999999999999999)
