"""bankfree: vectorized without bank conflicts."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: one for every TM x TN patch of the block's tile."""
    return (t.BM // t.TM) * (t.BN // t.TN)


def registers(t):
    """Registers a thread may have, so that WARPS warps fit on a multiprocessor."""
    return min(255, 65536 // (threads(t) * max(1, t.WARPS * 32 // threads(t))))


def launches(p, t):
    """One launch; the grid is rounded up to whole tiles, and each block chooses its path."""
    grid = (ceil_div(p.n, t.BN), ceil_div(p.m, t.BM), 1)
    return [Launch("bankfree", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


def in_fours(c):
    """Every block takes the fast path: no edge, no tail of K, rows that start at multiples of 16 bytes, no reads of C."""
    p, t = c.p, c.t
    whole = p.m % t.BM == p.n % t.BN == p.k % t.BK == 0
    return whole and p.beta == 0 and all(ld % 4 == 0 for ld in (p.lda, p.ldb, p.ldc))


def defaults(c):
    """The constants that this stage and its parent have by default."""
    t = c.t
    return (t.BM, t.BN, t.BK, t.TM, t.TN, t.PAD, t.SWIZZLE) == (64, 64, 8, 8, 8, 4, 0)


stage = Stage(
    name="bankfree",
    parent="vectorized",
    idea="no bank conflicts: a thread's patch in pieces that lie apart, and padded or swizzled lines of A",
    aims=(
        "derived__memory_l1_wavefronts_shared_excessive",
        "data stage",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
        "time_ms",
    ),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "WARPS": 16, "PAD": 4, "SWIZZLE": 0},
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
            "the tiles of A and B, 4 * (BM + PAD + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * (t.BM + t.PAD + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums and TM + TN operands of a thread must fit in its registers: 255, or its share of the"
            " 65536 of a multiprocessor with WARPS warps",
            lambda t: t.TM * t.TN + t.TM + t.TN <= registers(t),
        ),
        Rule(
            "a thread must load at most 256 elements a step, as those loops are unrolled",
            lambda t: (t.BM + t.BN) * t.BK <= 256 * threads(t),
        ),
    ),
    claims=(
        Claim(
            says="no bank conflicts: not one wavefront more than the width of the accesses asks for",
            article="the ladder, bankfree",
            metrics=("derived__memory_l1_wavefronts_shared_excessive",),
            expect=lambda c: 0.0,
            why="A warp writes 128 / BK rows at BK / 4 values of k, four lines apart: each line must begin 32 / BK banks"
            " after the one before (PAD), or be swizzled. With BK=8 that is PAD=4, with BK=32 PAD=1. With BK=16 it is"
            " PAD=2, at which float4 cannot read A: then SWIZZLE=1 is the way. And a quarter of a warp must read"
            " neighbouring pieces: BN / TN a power of two.",
        ),
        Claim(
            says="four words a load of an operand, whatever the padding",
            article="the ladder, bankfree",
            metrics=("smsp__inst_executed_op_shared_ld.sum",),
            expect=lambda c: c.p.m * c.p.n * c.p.k / 32 * (c.t.TM + c.t.TN) / 4 / (c.t.TM * c.t.TN),
            when=in_fours,
            why="Lines of BM + PAD words start at multiples of 16 bytes only where PAD is a multiple of 4. With another PAD"
            " the compiler takes an operand's four words in two loads or more, some of them with words it throws away.",
        ),
        Claim(
            says="the 184 wavefronts of a warp's step in vectorized become 112",
            article="the ladder, bankfree",
            metrics=("memory_l1_wavefronts_shared",),
            expect=lambda c: 184 / 112,
            against="vectorized",
            when=lambda c: defaults(c) and in_fours(c),
        ),
        Claim(
            says="eight threads store eight pieces side by side: 16 sectors a request to C, where vectorized touches 32",
            article="the ladder, bankfree",
            metrics=("sectors_per_request_st",),
            expect=lambda c: 16.0,
            when=lambda c: c.t.BN // c.t.TN >= 8 and in_fours(c),
        ),
    ),
)
