"""doublebuffered: bankfree with the next tile on its way while one is multiplied."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: one for every TM x TN patch of the block's tile."""
    return (t.BM // t.TM) * (t.BN // t.TN)


def registers(t):
    """Registers a thread may have, so that WARPS warps fit on a multiprocessor."""
    return min(255, 65536 // (threads(t) * max(1, t.WARPS * 32 // threads(t))))


def share(t):
    """Words of both tiles that a thread has on their way in registers."""
    return 4 * sum(ceil_div(side * t.BK, 4 * threads(t)) for side in (t.BM, t.BN))


def launches(p, t):
    """One launch; the grid is rounded up to whole tiles, and each block chooses its path."""
    grid = (ceil_div(p.n, t.BN), ceil_div(p.m, t.BM), 1)
    return [Launch("doublebuffered", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


def defaults(c):
    """The constants that this stage and its parent have by default."""
    t = c.t
    return (t.BM, t.BN, t.BK, t.TM, t.TN, t.PAD, t.SWIZZLE) == (64, 64, 8, 8, 8, 4, 0)


stage = Stage(
    name="doublebuffered",
    parent="bankfree",
    idea="the next tile is on its way through registers while this one is multiplied; one barrier a step",
    aims=("smsp__issue_active.avg.pct_of_peak_sustained_active", "time_ms"),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "WARPS": 12, "PAD": 4, "SWIZZLE": 0},
    least={"PAD": 0, "SWIZZLE": 0},
    rules=(
        Rule("TM must be a multiple of 4 that divides BM", lambda t: t.TM % 4 == 0 and t.BM % t.TM == 0),
        Rule("TN must be a multiple of 4 that divides BN", lambda t: t.TN % 4 == 0 and t.BN % t.TN == 0),
        Rule("BK must be a multiple of 4: a thread loads four neighbours of a row of A", lambda t: t.BK % 4 == 0),
        Rule("SWIZZLE must be 0 or 1", lambda t: t.SWIZZLE <= 1),
        Rule(
            "SWIZZLE=1 needs BM a multiple of 32 and BK 4, 8, 16 or 32: it exchanges rows within 32",
            lambda t: not t.SWIZZLE or t.BM % 32 == 0 and t.BK in (4, 8, 16, 32),
        ),
        Rule("a block of (BM / TM) * (BN / TN) threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule("WARPS must be at most 64: no multiprocessor holds more", lambda t: t.WARPS <= 64),
        Rule(
            "two tiles of A and of B, 8 * (BM + PAD + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 8 * (t.BM + t.PAD + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums and TM + TN operands of a thread and its share of the tiles on their way must fit in its"
            " registers: 255, or its share of the 65536 of a multiprocessor with WARPS warps",
            lambda t: t.TM * t.TN + t.TM + t.TN + share(t) <= registers(t),
        ),
    ),
    claims=(
        Claim(
            says="no bank conflicts: not one wavefront more than the width of the accesses asks for",
            article="the ladder, doublebuffered",
            metrics=("derived__memory_l1_wavefronts_shared_excessive",),
            expect=lambda c: 0.0,
            why="As in bankfree: each line of A must begin 32 / BK banks after the one before, or SWIZZLE be 1; and BN / TN"
            " must be a power of two.",
        ),
        Claim(
            says="two tiles of each matrix in shared memory",
            article="the ladder, doublebuffered",
            metrics=("shared_bytes_per_block",),
            expect=lambda c: 8.0 * (c.t.BM + c.t.PAD + c.t.BN) * c.t.BK,
        ),
        Claim(
            says="the same requests, sectors and wavefronts as bankfree: only when they are made changes",
            article="the ladder, doublebuffered",
            metrics=(
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
                "memory_l1_wavefronts_shared",
            ),
            expect=lambda c: 1.0,
            against="bankfree",
            when=defaults,
        ),
    ),
)
