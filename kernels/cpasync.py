"""cpasync: doublebuffered with asynchronous copies, several tiles ahead."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: one for every TM x TN patch of the block's tile."""
    return (t.BM // t.TM) * (t.BN // t.TN)


def registers(t):
    """Registers a thread may have, so that WARPS warps fit on a multiprocessor."""
    return min(255, 65536 // (threads(t) * max(1, t.WARPS * 32 // threads(t))))


def even(t):
    """A line of a tile, in words or in fours, has no more than one of them a thread, or else the same number for all."""
    parts = [side // width for side in (t.BK, t.BN) for width in (1, 4)]
    return all(n <= threads(t) or n % threads(t) == 0 for n in parts)


def launches(p, t):
    """One launch; the grid is rounded up to whole tiles, and each block chooses its path."""
    grid = (ceil_div(p.n, t.BN), ceil_div(p.m, t.BM), 1)
    return [Launch("cpasync", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


def in_fours(c):
    """Every block takes the fast path: no edge, no tail of K, rows that start at multiples of 16 bytes, no reads of C."""
    p, t = c.p, c.t
    whole = p.m % t.BM == p.n % t.BN == p.k % t.BK == 0
    return whole and p.beta == 0 and all(ld % 4 == 0 for ld in (p.lda, p.ldb, p.ldc))


def parents_tile(c):
    """The tile and the patches that doublebuffered has by default."""
    t = c.t
    return (t.BM, t.BN, t.TM, t.TN) == (64, 64, 8, 8)


stage = Stage(
    name="cpasync",
    parent="doublebuffered",
    idea="tiles are copied straight to shared memory, STAGES - 1 of them ahead",
    aims=("smsp__inst_executed_op_shared_st.sum", "issue", "time_ms"),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 16, "TM": 8, "TN": 8, "WARPS": 12, "STAGES": 3},
    least={"STAGES": 2},
    least_arch=80,
    rules=(
        Rule("TM must divide BM", lambda t: t.BM % t.TM == 0),
        Rule("TN must be a multiple of 4 that divides BN", lambda t: t.TN % 4 == 0 and t.BN % t.TN == 0),
        Rule("BK must be a multiple of 4: operands of A are read in fours", lambda t: t.BK % 4 == 0),
        Rule("a block of (BM / TM) * (BN / TN) threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule(
            "the (BM / TM) * (BN / TN) threads must share out lines of BK and of BN words without remainder",
            even,
        ),
        Rule("WARPS must be at most 64: no multiprocessor holds more", lambda t: t.WARPS <= 64),
        Rule(
            "STAGES tiles of A and of B, 4 * STAGES * (BM + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * t.STAGES * (t.BM + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums and 4 * TM + TN operands of a thread must fit in its registers: 255, or its share of the"
            " 65536 of a multiprocessor with WARPS warps",
            lambda t: t.TM * t.TN + 4 * t.TM + t.TN <= registers(t),
        ),
        Rule(
            "a thread must copy at most 256 elements a step, as those loops are unrolled",
            lambda t: (t.BM + t.BN) * t.BK <= 256 * threads(t),
        ),
    ),
    claims=(
        Claim(
            says="no bank conflicts: not one wavefront more than the width of the accesses asks for",
            article="the ladder, cpasync",
            metrics=(
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                "derived__memory_l1_wavefronts_shared_excessive",
            ),
            expect=lambda c: 0.0,
            why="A copy writes as the lines of global memory come in: the 32 times four words of A that a warp copies lie in"
            " 128 / BK rows, so as many lines, and take as many wavefronts where their banks would allow four. Operands are read"
            " without conflicts where a quarter of a warp reads neighbouring pieces, BN / TN a power of two, and a row of A is no"
            " multiple of 32 words; but for the tail of K, where it is read word by word.",
        ),
        Claim(
            says="no store to shared memory: all of it is copied",
            article="the ladder, cpasync",
            metrics=("smsp__inst_executed_op_shared_st.sum",),
            expect=lambda c: 0.0,
        ),
        Claim(
            says="a copy for every four words of A and of B",
            article="the ladder, cpasync",
            metrics=("smsp__inst_executed_op_ldgsts.sum",),
            expect=lambda c: c.p.m * c.p.n * c.p.k / 32 / 4 * (1 / c.t.BN + 1 / c.t.BM),
            when=in_fours,
        ),
        Claim(
            says="the same sectors from global memory and words of operands as doublebuffered",
            article="the ladder, cpasync",
            metrics=("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "shared_words_read"),
            expect=lambda c: 1.0,
            against="doublebuffered",
            when=lambda c: parents_tile(c) and in_fours(c),
        ),
        Claim(
            says="{STAGES} tiles of each matrix in shared memory",
            article="the ladder, cpasync",
            metrics=("shared_bytes_per_block",),
            expect=lambda c: 4.0 * c.t.STAGES * (c.t.BM + c.t.BN) * c.t.BK,
        ),
    ),
)
