"""On an NVIDIA GPU: the driver with kernels that are right, wrong, out of bounds, crashing and endless; the timer against itself."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

import harness
from harness import stage, statistics, toolchain
from harness.errors import TilescopeError
from harness.gpu import client, cublas, devices, timing
from harness.gpu.driver import Session, StageContender, buffers, span
from harness.gpu.launch import launch
from harness.problem import Problem

pytestmark = pytest.mark.gpu

KERNEL = """
extern "C" __global__ void odd(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
                               int ldc)
{
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N)
        return;
    float sum = 0;
    for (int k = 0; k < K; ++k)
        sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);
    C[row * ldc + col] = alpha * sum + (beta != 0 ? beta * C[row * ldc + col] : 0);
    %s
}
"""
STAGE = """
from harness.stage import Launch, Stage, ceil_div
stage = Stage("odd", "for a test", lambda p, t: [Launch("odd", (ceil_div(p.n, 16), ceil_div(p.m, 16), 1), (16, 16, 1), tile=(16, 16))])
"""


@pytest.fixture(scope="module", autouse=True)
def gpu():
    try:
        return devices.find()
    except TilescopeError as e:
        pytest.skip(e.what)


@pytest.fixture
def odd(tmp_path):
    """Makes a stage that is right, but for a statement at its end."""

    def make(statement=""):
        (tmp_path / "odd.cu").write_text(KERNEL % statement)
        (tmp_path / "odd.py").write_text(STAGE)
        return str(tmp_path / "odd.py")

    return make


@pytest.mark.parametrize("name", [*stage.names(), *cublas.NAMES])
@pytest.mark.parametrize(
    "problem",
    [Problem(512, 512, 512), Problem(333, 257, 129, lda=140, ldb=260, ldc=261, alpha=0.5, beta=2.0), Problem(1, 1, 1)],
    ids=str,
)
def test_everyone_is_right(name, problem):
    assert launch(name, problem).ok


@pytest.mark.parametrize("name", stage.names())
def test_pycuda_and_the_simulator_have_the_same_machine_code(name):
    found = stage.find(name)
    binary = toolchain.compile(found, found.configure(), devices.find().cc)
    from harness.gpu import driver

    with Session(devices.find()) as session:
        code = driver.compile(
            session, found, found.configure(), devices.find().cc, binary.hash, toolchain.compiler()[0]
        )
    assert toolchain.machine_code_hash(code) == binary.hash


@pytest.mark.parametrize(
    "statement, says",
    [
        (
            "if (row == M - 1 && col == N - 1) C[row * ldc + ldc] = 1;",
            "a word behind C was written, 0 bytes past its end",
        ),
        ("if (row == 0 && col == 0) C[-5] = 1;", "a word before C was written, 20 bytes before it"),
        ("if (row == 0 && col == 0) ((float*)A)[3] = 1;", "A was written"),
    ],
)
def test_writes_outside_c_are_found(odd, statement, says):
    done = launch(odd(statement), Problem(64, 64, 64))
    assert not done.ok and done.damage == says


def test_a_wrong_cell_is_found(odd):
    t = harness.time(
        odd("if (row == 40 && col == 41) C[row * ldc + col] += 1;"), sizes=[64], against=None, record=False
    )
    p = t.points[0]
    assert p.wrong and not p.samples and (p.exact.row, p.exact.column) == (40, 41) and not t.ok


@pytest.mark.parametrize(
    "statement, says",
    [
        ("*(volatile float*)nullptr = 1;", "illegal memory access"),
        ("while (K) __nanosleep(1000);", "did not end within 2 s"),
    ],
)
def test_a_crash_or_a_hang_is_told_and_the_next_run_works(odd, statement, says):
    t = harness.time(odd(statement), sizes=[64], timeout=2.0, limit=0.2, record=False)
    by = {p.stage: p for p in t.points}
    assert says in by["odd"].fault and by["cublas"].samples
    assert harness.time("naive", sizes=[64], limit=0.2, record=False).ok


def test_a_hang_ends_the_launch_command(odd):
    words = [sys.executable, "-m", "harness", "launch", odd("while (K) __nanosleep(1000);"), "SIZE=64", "TIMEOUT=2"]
    done = subprocess.run(words, cwd=toolchain.ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "did not end within 2 s" in done.stderr


def test_the_pack_is_verified():
    """Two stages in one process; and a faulty one, which is right for one block of 8 rows and for no larger square."""
    with client.keeping():
        for name in ("naive", "warptiled"):
            done = harness.verify(name, count=10, backend="gpu")
            assert done.ok and len(done.verdicts) == done.planned and done.gpu == devices.find().name and done.driver
        wrong = harness.verify("naive_mixed_axes", count=0, backend="gpu")
        assert len(wrong.verdicts) == wrong.planned
        assert [v.ok for v in wrong.groups()["squares from 1"]] == 8 * [True] + 56 * [False]


def test_a_crash_and_a_hang_are_verdicts_and_the_rest_is_verified(odd):
    statement = "if (M == 7) *(volatile float*)nullptr = 1; while (M == 9) __nanosleep(1000);"
    done = harness.verify(odd(statement), count=0, backend="gpu", timeout=2.0)
    assert len(done.verdicts) == done.planned
    (crash, hang) = done.failed
    assert (crash.case.problem.m, hang.case.problem.m) == (7, 9)
    assert "illegal memory access" in crash.why and "did not end within 2 s" in hang.why


def test_memory_comes_back():
    with Session(devices.find()) as session:
        before = session.free_bytes()[0]
        for _ in range(3):
            with buffers(session, Problem(2048, 2048, 2048), 4):
                assert session.free_bytes()[0] <= before - 4 * 3 * 2**24
        assert session.free_bytes()[0] >= before - 2**22


def test_too_much_memory_is_refused_with_the_amount():
    with Session(devices.find()) as session, pytest.raises(TilescopeError, match="GiB of GPU memory are needed"):
        with buffers(session, Problem(8192, 8192, 8192), 2000):
            pass


def test_launching_costs_nothing_behind_the_blocking_kernel():
    """A product of a microsecond, launched with a pause in between: the pauses are not in the time."""
    import time

    problem = Problem(16, 16, 16)
    found = stage.find("naive")
    code = toolchain.compile(found, {}, devices.find().cc).cubin
    with Session(devices.find()) as session, buffers(session, problem) as (target,):
        target.put(problem.operands())
        product = StageContender(session, found, {}, code).bind(problem, target)
        product()
        session.wait("warming up")
        timer = timing.Timer(session)

        def late():
            time.sleep(1e-3)
            product()

        quick, slow = (np.median([timer.batch([p] * 20, "timing") for _ in range(5)]) for p in (product, late))
        assert slow < 0.05 and slow == pytest.approx(quick, rel=0.3) and timer.unheld == 0
        timer.close()


def test_the_blocking_kernel_gives_up(monkeypatch):
    import time

    monkeypatch.setattr(timing, "HOLD_S", 0.05)
    with Session(devices.find()) as session:
        timer = timing.Timer(session)
        assert math.isnan(timer.batch([lambda: time.sleep(0.2)], "timing")) and timer.unheld == 1
        timer.close()


def test_a_stage_beside_itself_is_the_same():
    t = harness.time("tiled2d", sizes=[1024], against="tiled2d", limit=2.0, record=False)
    p = t.points[0]
    assert p.ratio.value == pytest.approx(1, abs=0.01) and statistics.verdict(p.ratio) == "SAME"


def test_cold_is_not_faster_than_hot():
    cold, hot = (
        harness.time("tiled2d", sizes=[1024], against=None, limit=1.0, cold=c, record=False).points[0]
        for c in (True, False)
    )
    assert cold.ms.value >= 0.98 * hot.ms.value and cold.sets > 1 and hot.sets == 1


def test_cublas_leaves_tf32_off():
    """TF32 would miss the fp32 error bound by far."""
    t = harness.time("tiled2d", sizes=[1024], limit=0.5, record=False)
    assert t.ok and all(p.accuracy.share < 0.1 for p in t.points)


def test_ranges_need_no_profiler():
    with span("a"), span("b"):
        pass
