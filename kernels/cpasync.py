"""cpasync: doublebuffered with asynchronous copies, several tiles ahead."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: one for every TM x TN patch of the block's tile."""
    return (t.BM // t.TM) * (t.BN // t.TN)


def registers(t):
    """Registers a thread may have, so that WARPS warps fit on a multiprocessor."""
    return min(255, 65536 // (threads(t) * max(1, t.WARPS * 32 // threads(t))))


def even(t):
    """A line of BN words, or of BN / 4 fours, has no more than a word (or four) a thread, or else the same for all."""
    return all(t.BN // width <= threads(t) or t.BN // width % threads(t) == 0 for width in (1, 4))


def launches(p, t):
    """One launch; the grid is rounded up to whole tiles, and each block chooses its path."""
    grid = (ceil_div(p.n, t.BN), ceil_div(p.m, t.BM), 1)
    return [Launch("cpasync", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


def in_fours(c):
    """Every block takes the fast path: no edge, no tail of K, rows that start at multiples of 16 bytes, no reads of C."""
    p, t = c.p, c.t
    whole = p.m % t.BM == p.n % t.BN == p.k % t.BK == 0
    return whole and p.beta == 0 and all(ld % 4 == 0 for ld in (p.ldb, p.ldc))


def parents_tile(c):
    """The constants that doublebuffered has by default."""
    t = c.t
    return (t.BM, t.BN, t.BK, t.TM, t.TN, t.PAD) == (64, 64, 8, 8, 8, 4)


stage = Stage(
    name="cpasync",
    parent="doublebuffered",
    idea="tiles are copied straight to shared memory, STAGES - 1 of them ahead",
    aims=("smsp__inst_executed_op_shared_st.sum", "launch__registers_per_thread", "issue", "time_ms"),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "WARPS": 12, "PAD": 4, "STAGES": 3},
    least={"PAD": 0, "STAGES": 2},
    least_arch=80,
    rules=(
        Rule("TM must be a multiple of 4 that divides BM", lambda t: t.TM % 4 == 0 and t.BM % t.TM == 0),
        Rule("TN must be a multiple of 4 that divides BN", lambda t: t.TN % 4 == 0 and t.BN % t.TN == 0),
        Rule("BK must be a multiple of 8: eight threads copy neighbours of a row of A", lambda t: t.BK % 8 == 0),
        Rule("PAD must be a multiple of 4: operands of A are read in fours", lambda t: t.PAD % 4 == 0),
        Rule("a block of (BM / TM) * (BN / TN) threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule(
            "the (BM / TM) * (BN / TN) threads must be a multiple of 8, and share out a line of BN words without remainder",
            lambda t: threads(t) % 8 == 0 and even(t),
        ),
        Rule("WARPS must be at most 64: no multiprocessor holds more", lambda t: t.WARPS <= 64),
        Rule(
            "STAGES tiles of A and of B, 4 * STAGES * (BM + PAD + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * t.STAGES * (t.BM + t.PAD + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums and TM + TN operands of a thread must fit in its registers: 255, or its share of the"
            " 65536 of a multiprocessor with WARPS warps",
            lambda t: t.TM * t.TN + t.TM + t.TN <= registers(t),
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
            why="The operands are read without conflicts. A copy, though, writes as the lines of global memory come in: the 32"
            " elements of A that a warp turns over lie in four rows, so four lines, and take four wavefronts where their"
            " banks would allow one. And eight lines of A by four rows go to one word of each bank only where BM + PAD is 4, 12, 20 or 28 more than"
            " a multiple of 32. And a quarter of a warp must read neighbouring pieces: BN / TN a power of two.",
        ),
        Claim(
            says="no store to shared memory: all of it is copied",
            article="the ladder, cpasync",
            metrics=("smsp__inst_executed_op_shared_st.sum",),
            expect=lambda c: 0.0,
        ),
        Claim(
            says="a copy for every word of A, one for every four of B",
            article="the ladder, cpasync",
            metrics=("smsp__inst_executed_op_ldgsts.sum",),
            expect=lambda c: c.p.m * c.p.n * c.p.k / 32 * (1 / c.t.BN + 1 / c.t.BM / 4),
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
            expect=lambda c: 4.0 * c.t.STAGES * (c.t.BM + c.t.PAD + c.t.BN) * c.t.BK,
        ),
    ),
)
