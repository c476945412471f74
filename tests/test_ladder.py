"""The fp32 ladder above tiled2d: what each rung claims, on its fast path and off it; the same bits from all of them."""

import itertools

import numpy as np
import pytest

from harness import accuracy, profiling, sim, stage, toolchain
from harness.errors import TilescopeError
from harness.problem import Problem

RUNGS = ("vectorized", "bankfree", "doublebuffered", "cpasync", "warptiled")
VARIANTS = [
    ("vectorized", {"BM": 128, "BN": 32, "TM": 16, "TN": 4}),
    ("bankfree", {"PAD": 1}),
    ("bankfree", {"BK": 16, "PAD": 0, "SWIZZLE": 1}),
    ("doublebuffered", {"BM": 96, "TM": 12, "TN": 4}),
    ("cpasync", {"STAGES": 5}),
    ("cpasync", {"BM": 60, "BK": 12, "TM": 6}),
    ("warptiled", {"ASYNC_A": 1, "STAGES": 3}),
    ("warptiled", {"TM": 16, "TN": 8, "BK": 16}),
    ("warptiled", {"BM": 192, "ASYNC_A": 1, "GROUP": 3}),
    ("warptiled", {"BM": 64, "BN": 64, "WM": 32, "WN": 32, "TM": 8, "TN": 4, "WARPS": 16}),
]


def run(name: str, problem: Problem, arch: int = 90, blocks: str = "all", **tunables: int) -> sim.Simulation:
    s = stage.find(name)
    chosen = s.configure(tunables)
    return sim.run(
        toolchain.compile(s, chosen, arch), s.plan(problem, chosen), problem, problem.operands(), blocks=blocks
    )


@pytest.mark.parametrize("name", RUNGS)
def test_claims(name):
    """Every claim speaks at 512^3 and holds, but for those that say where they do not."""
    profile = profiling.profile(name, size=512, record=False)
    assert profile.ok and len(profile.claims) == len(profile.stage.claims)
    partly = [v.says for v in profile.claims if not v.holds]
    expected = {"vectorized": ["and as many sectors"], "cpasync": [profile.claims[0].says]}
    assert partly == expected.get(name, []) and all("for" in v.verdict for v in profile.claims if not v.holds)


@pytest.mark.parametrize("name", RUNGS[1:])
@pytest.mark.parametrize("arch", [80, 86])
def test_no_bank_conflicts_off_the_fast_path(name, arch):
    k = 32 if name == "cpasync" else 35  # its tail of K reads A word by word, from rows that start in one of two banks
    done = run(name, Problem(200, 201, k, beta=1.0), arch)
    counts, kernel = done.launches[0].counts, done.launches[0].kernel
    own = [i.base != "LDGSTS" for i in kernel.instructions]  # a copy from several rows takes a wavefront for each
    assert counts.wavefronts[own].sum() == counts.wavefronts_ideal[own].sum() > 0


def test_where_padding_helps_and_where_it_does_not():
    """+1 frees the writes of conflicts with BK=32, not with BK=8; it always costs loads of A; BK=16 needs the swizzle."""

    def counted(**tunables):
        done = run("bankfree", Problem(128, 128, 64), blocks="count", **tunables).launches[0]
        loads = [i.base == "LDS" for i in done.kernel.instructions]
        return (done.counts.wavefronts - done.counts.wavefronts_ideal).sum(), done.counts.executed[loads].sum()

    (conflicts, loads), (none, fours), (padded, more) = counted(PAD=0), counted(), counted(PAD=1)
    assert conflicts > 0 and none == 0 and padded > 0 and loads == fours < more
    assert counted(BK=32, PAD=1)[0] == 0
    assert counted(BK=16)[0] > 0 and counted(BK=16, PAD=0, SWIZZLE=1) == (0, fours)


@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 131, 37)])
def test_the_same_bits(shape):
    """One chain of fused multiply-adds along k in every stage, padded or not."""
    problem = Problem(*shape)
    expected = run("naive", problem).c
    for name in RUNGS:
        assert np.array_equal(run(name, problem).c, expected), name


@pytest.mark.parametrize("name, tunables", VARIANTS)
def test_variants(name, tunables):
    for problem in (Problem(256, 192, 48), Problem(67, 130, 41, alpha=2.0, beta=-1.0, lda=43), Problem(1, 3, 1)):
        done = run(name, problem, **tunables)
        assert accuracy.check(done.c, done.tiles, problem.operands()).ok


@pytest.mark.parametrize("lda, ldb, ldc", [(32, 64, 64), (33, 64, 64), (32, 65, 64), (32, 64, 66)])
def test_rows_that_do_not_start_at_16_bytes(lda, ldb, ldc):
    problem = Problem(64, 64, 32, lda=lda, ldb=ldb, ldc=ldc, beta=0.5)
    for name in RUNGS:
        done = run(name, problem)
        assert accuracy.check(done.c, done.tiles, problem.operands()).ok, name


@pytest.mark.parametrize("m", [1, 500, 1024, 2049])
def test_blocks_of_warptiled_cover_every_tile_once(m):
    s = stage.find("warptiled")
    t = s.configure({})
    (launch,) = s.plan(Problem(m, 300, 8), t)
    rows, columns = launch.origins(np.arange(launch.blocks))
    here = rows < m
    tiles = sorted(zip(rows[here].tolist(), columns[here].tolist(), strict=True))
    assert tiles == list(itertools.product(range(0, m, t["BM"]), range(0, 300, t["BN"])))
    assert (~here).sum() < launch.grid[1] * launch.grid[2]


@pytest.mark.parametrize(
    "name, tunables, words",
    [
        ("vectorized", {"TM": 6, "BM": 60}, "TM must be a multiple of 4"),
        ("vectorized", {"WARPS": 48}, "must fit in its registers"),
        ("bankfree", {"SWIZZLE": 1, "BK": 12}, "exchanges rows within 32"),
        ("bankfree", {"PAD": -1}, "PAD=-1 is less than 0"),
        ("cpasync", {"BK": 6}, "operands of A are read in fours"),
        ("cpasync", {"STAGES": 1}, "STAGES=1 is less than 2"),
        ("cpasync", {"STAGES": 12}, "must fit in 48 KiB"),
        ("warptiled", {"TM": 4}, "must be 32"),
        ("warptiled", {"STAGES": 3}, "ASYNC_A=0 needs STAGES=2"),
        ("warptiled", {"BM": 64, "BN": 160, "WN": 80, "TN": 20}, "share out a line"),
    ],
)
def test_illegal_tunables(name, tunables, words):
    with pytest.raises(TilescopeError, match=words):
        stage.find(name).configure(tunables)


@pytest.mark.parametrize("name", ["cpasync", "warptiled"])
def test_copies_need_sm_80(name):
    s = stage.find(name)
    with pytest.raises(TilescopeError, match="needs sm_80"):
        toolchain.compile(s, s.configure(), 75)
