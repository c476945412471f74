"""The ladder's stages by the simulator: counters at 512, block classes against full runs, bits of C, the articles' example."""

import ctypes
import ctypes.util

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import accuracy, device, metrics, stage, toolchain
from harness.problem import Problem
from harness.sim import run, trace
from harness.sim import simulate as simulate_module

H200 = device.find("h200")


def simulate(name, problem, blocks="auto", arch=90, **tunables):
    s = stage.find(name)
    t = s.configure(tunables)
    launches = s.plan(problem, t)
    operands = problem.operands()
    return run(toolchain.compile(s, t, arch), launches, problem, operands, blocks=blocks), operands


def total(simulation, problem):
    return metrics.totals(
        [metrics.launch_values(x.launch, x.kernel, x.counts, problem, H200) for x in simulation.launches]
    )


AT_512 = [  # requests and sectors do not depend on how the compiler schedules
    ("naive", {}, 8388608, 20971520, 8192, 32768),
    ("naive_uncoalesced", {}, 8388608, 138412032, 8192, 262144),
    ("tiled", {"TILE": 16}, 524288, 2097152, 8192, 32768),
    ("tiled", {"TILE": 32}, 262144, 1048576, 8192, 32768),
    ("tiled1d", {}, 131072, 524288, 8192, 32768),
    ("tiled2d", {}, 131072, 524288, 8192, 262144),
]


@pytest.mark.parametrize("name, tunables, ld_requests, ld_sectors, st_requests, st_sectors", AT_512)
def test_global_traffic_at_512(name, tunables, ld_requests, ld_sectors, st_requests, st_sectors):
    problem = Problem(512, 512, 512)
    values = total(simulate(name, problem, "count", **tunables)[0], problem)
    traffic = [
        values[f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"]
        for op in ("ld", "st")
        for what in ("requests", "sectors")
    ]
    assert traffic == [ld_requests, ld_sectors, st_requests, st_sectors]


def test_shared_wavefronts_at_512():
    problem = Problem(512, 512, 512)
    tiled = total(simulate("tiled", problem, "count", TILE=32)[0], problem)
    assert tiled["memory_l1_wavefronts_shared"] == tiled["memory_l1_wavefronts_shared_ideal"] == 6553600
    done, _ = simulate("tiled2d", problem, "count")
    values = total(done, problem)
    assert (values["memory_l1_wavefronts_shared"], values["memory_l1_wavefronts_shared_ideal"]) == (3276800, 1179648)
    assert done.launches[0].kernel.function.registers == 96
    assert values["sm__maximum_warps_per_active_cycle_pct"] == 31.25


def test_blocks_and_edges_at_1000():
    problem = Problem(1000, 1000, 1000)
    launches = stage.find("tiled2d").plan(problem, stage.find("tiled2d").configure())
    assert [(x.label, x.grid[:2]) for x in launches] == [
        ("main", (15, 15)),
        ("right", (1, 15)),
        ("bottom", (15, 1)),
        ("corner", (1, 1)),
    ]


shapes = st.integers(1, 150)
CONFIGURATIONS = [
    ("naive", {}),
    ("naive_uncoalesced", {}),
    ("tiled", {"TILE": 32}),
    ("tiled", {"TILE": 4}),
    ("tiled1d", {}),
    ("tiled2d", {}),
    ("tiled2d", {"BM": 24, "BN": 20, "BK": 7, "TM": 3, "TN": 4}),
]


@pytest.mark.parametrize("name, tunables", CONFIGURATIONS, ids=[f"{n}{t or ''}" for n, t in CONFIGURATIONS])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(m=shapes, n=shapes, k=shapes, pad=st.integers(0, 9), beta=st.sampled_from([0.0, -0.5]))
def test_one_block_a_class_counts_as_all_blocks_do(name, tunables, m, n, k, pad, beta):
    problem = Problem(m, n, k, alpha=1.5, beta=beta, lda=k + pad, ldb=n + pad, ldc=n + 2 * pad)
    full, operands = simulate(name, problem, "all", **tunables)
    sampled, _ = simulate(name, problem, "count", **tunables)
    for a, b in zip(full.launches, sampled.launches, strict=True):
        assert a.counts.equals(b.counts)
    reference, bound = operands.reference(slice(None), slice(None))
    assert (np.abs(full.c[:, :n] - reference) <= bound).all()
    assert np.array_equal(np.isnan(full.c[:, n:]), np.isnan(operands.c[:, n:]))


def test_a_sample_computes_the_tiles_it_says():
    problem = Problem(200, 330, 40)
    done, operands = simulate("tiled2d", problem, "sample")
    assert done.tiles is not None and len(done.tiles) >= 4
    for r0, r1, c0, c1 in done.tiles:
        reference, bound = operands.reference(slice(r0, r1), slice(c0, c1))
        assert (np.abs(done.c[r0:r1, c0:c1] - reference) <= bound).all()


@pytest.mark.parametrize("name, tunables", CONFIGURATIONS, ids=[f"{n}{t or ''}" for n, t in CONFIGURATIONS])
@pytest.mark.parametrize("arch", [75, 86, 90])
def test_bits_are_those_of_a_chain_of_fmaf(name, tunables, arch):
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    libm.fmaf.restype = ctypes.c_float
    libm.fmaf.argtypes = [ctypes.c_float] * 3
    problem = Problem(37, 45, 29)
    done, operands = simulate(name, problem, arch=arch, **tunables)
    for row, column in ((0, 0), (36, 44), (17, 3), (5, 40), (33, 31)):
        x = 0.0
        for k in range(problem.k):
            x = libm.fmaf(operands.a[row, k], operands.b[k, column], x)
        assert np.float32(x).tobytes() == done.c[row, column].tobytes()


def test_the_four_by_four_example():
    """A = B = 1..16, TILE=2: the deep dive computes block (0, 0) by hand as 90, 100, 202, 228."""
    problem = Problem(4, 4, 4)
    s = stage.find("tiled")
    t = s.configure({"TILE": 2})
    operands = problem.operands()
    operands.a[:] = operands.b[:] = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    done = run(toolchain.compile(s, t, 90), s.plan(problem, t), problem, operands)
    assert done.c[:2, :2].tolist() == [[90, 100], [202, 228]]
    assert done.launches[0].blocks_total == 4
    whole = [[sum(operands.a[i, k] * operands.b[k, j] for k in range(4)) for j in range(4)] for i in range(4)]
    assert done.c.tolist() == whole


def test_ctrl_c_stops_a_simulation(monkeypatch):
    def interrupt(fraction, text):
        raise KeyboardInterrupt

    problem = Problem(512, 512, 512)
    s = stage.find("naive")
    operands = problem.operands()
    with pytest.raises(KeyboardInterrupt):
        run(toolchain.compile(s, {}, 90), s.plan(problem, {}), problem, operands, blocks="all", progress=interrupt)


def test_trace_of_the_four_by_four_example():
    """Phase 0 of block (0, 0): the tiles 1 2 / 5 6 of A and of B, as the deep dive's section 5 lists them per thread."""
    problem = Problem(4, 4, 4)
    s = stage.find("tiled")
    t = s.configure({"TILE": 2})
    operands = problem.operands()
    operands.a[:] = operands.b[:] = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    steps = trace(toolchain.compile(s, t, 90), s.plan(problem, t)[0], problem, operands)
    loads = steps[(steps.space == "global") & (steps.op == "load")]
    per_phase = [sorted(phase.value) for _, phase in loads.groupby("phase")]
    assert per_phase[0] == sorted([1, 2, 5, 6] * 2)
    assert per_phase[1] == sorted([3, 4, 7, 8] + [9, 10, 13, 14])
    stored = steps[(steps.space == "global") & (steps.op == "store")]
    assert stored.sort_values("thread").value.tolist() == [90, 100, 202, 228]


def test_a_kernel_is_decoded_once_for_launches_that_differ_in_their_parameters(monkeypatch):
    """Constants are looked up in the banks of each launch: sizes, addresses, alpha and beta."""
    decoded = []

    class Counted(simulate_module.Decoder):
        def __init__(self, *args):
            decoded.append(args)
            super().__init__(*args)

    monkeypatch.setattr(simulate_module, "Decoder", Counted)
    s = stage.find("tiled1d")
    binary = toolchain.compile(s, s.configure(), 90)
    for problem in (Problem(65, 70, 9), Problem(3, 4, 5, alpha=-2.0, beta=3.0, ldc=9), Problem(65, 70, 9)):
        operands = problem.operands()
        done = run(binary, s.plan(problem, s.configure()), problem, operands, blocks="all")
        assert accuracy.check(done.c, None, operands).ok
    assert len(decoded) == len(binary.kernels)
