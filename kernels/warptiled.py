"""warptiled: tiles of a block, of a warp and of a thread; operands read ahead; multiply-adds ordered for the registers."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: a warp for every WM x WN tile."""
    return (t.BM // t.WM) * (t.BN // t.WN) * 32


def registers(t):
    """Registers a thread may have, so that WARPS warps fit on a multiprocessor."""
    return min(255, 65536 // (threads(t) * max(1, t.WARPS * 32 // threads(t))))


def even(t):
    """A line of BN words, or of BN / 4 fours, has no more than a word (or four) a thread, or else the same for all."""
    return all(t.BN // width <= threads(t) or t.BN // width % threads(t) == 0 for width in (1, 4))


def launches(p, t):
    """One launch. x walks down a group of rows of tiles, y along its columns, z from group to group."""
    rows, columns = ceil_div(p.m, t.BM), ceil_div(p.n, t.BN)
    groups = ceil_div(rows, t.GROUP)
    high = ceil_div(rows, groups)  # groups as even as can be: fewer blocks with no tile in the last one

    def origin(x, y, z):
        return (z * high + x) * t.BM, y * t.BN

    return [Launch("warptiled", (high, columns, groups), (threads(t), 1, 1), tile=(t.BM, t.BN), origin=origin)]


def in_fours(c):
    """Every block takes the fast path: no edge, no tail of K, rows that start at multiples of 16 bytes, no reads of C."""
    p, t = c.p, c.t
    whole = p.m % t.BM == p.n % t.BN == p.k % t.BK == 0
    return whole and p.beta == 0 and all(ld % 4 == 0 for ld in (p.lda, p.ldb, p.ldc))


def operand_wavefronts(t):
    """Wavefronts of a warp for the operands of one k: four for a load in which eight lanes differ, else two."""
    down, across = t.WM // t.TM, t.WN // t.TN
    return t.TM // 4 * (4 if down >= across else 2) + t.TN // 4 * (2 if down >= across else 4)


stage = Stage(
    name="warptiled",
    parent="cpasync",
    idea="tiles of a block, a warp, a thread; operands read ahead; multiply-adds in an order that spares registers",
    aims=("register_reads_per_ffma", "shared_words_read_per_fma", "data stage", "issue", "time_ms"),
    launches=launches,
    tunables={
        "BM": 128,
        "BN": 128,
        "BK": 8,
        "WM": 64,
        "WN": 64,
        "TM": 8,
        "TN": 16,
        "WARPS": 8,
        "PAD": 4,
        "STAGES": 2,
        "ASYNC_A": 0,
        "GROUP": 16,
    },  # fmt: skip
    least={"PAD": 0, "STAGES": 2, "ASYNC_A": 0},
    least_arch=80,
    rules=(
        Rule("WM must divide BM and WN must divide BN", lambda t: t.BM % t.WM == 0 and t.BN % t.WN == 0),
        Rule("TM must be a multiple of 4 that divides WM", lambda t: t.TM % 4 == 0 and t.WM % t.TM == 0),
        Rule("TN must be a multiple of 4 that divides WN", lambda t: t.TN % 4 == 0 and t.WN % t.TN == 0),
        Rule(
            "a warp has 32 threads: (WM / TM) * (WN / TN) must be 32", lambda t: (t.WM // t.TM) * (t.WN // t.TN) == 32
        ),
        Rule("BK must be a multiple of 8: eight threads copy neighbours of a row of A", lambda t: t.BK % 8 == 0),
        Rule("PAD must be a multiple of 4: operands of A are read in fours", lambda t: t.PAD % 4 == 0),
        Rule("ASYNC_A must be 0 or 1", lambda t: t.ASYNC_A <= 1),
        Rule("ASYNC_A=0 needs STAGES=2: registers hold one tile of A ahead", lambda t: t.ASYNC_A == 1 or t.STAGES == 2),
        Rule("a block of (BM / WM) * (BN / WN) warps must have at most 32", lambda t: threads(t) <= 1024),
        Rule("the block's threads must share out a line of BN words without remainder", even),
        Rule("WARPS must be at most 64: no multiprocessor holds more", lambda t: t.WARPS <= 64),
        Rule(
            "STAGES tiles of A and of B, 4 * STAGES * (BM + PAD + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * t.STAGES * (t.BM + t.PAD + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums of a thread and twice its TM + TN operands must fit in its registers: 255, or its share of"
            " the 65536 of a multiprocessor with WARPS warps",
            lambda t: t.TM * t.TN + 2 * (t.TM + t.TN) <= registers(t),
        ),
        Rule(
            "a thread must load at most 256 elements a step, as those loops are unrolled",
            lambda t: (t.BM + t.BN) * t.BK <= 256 * threads(t),
        ),
    ),
    claims=(
        Claim(
            says="no bank conflicts: not one wavefront more than the width of the accesses asks for",
            article="the ladder, warptiled",
            metrics=("derived__memory_l1_wavefronts_shared_excessive",),
            expect=lambda c: 0.0,
            why="Eight lines of A by four rows go to one word of each bank only where BM + PAD is 4, 12, 20 or 28 more than"
            " a multiple of 32.",
        ),
        Claim(
            says="{TM} + {TN} words from shared memory for {TM} x {TN} multiply-adds",
            article="the ladder, warptiled",
            metrics=("shared_words_read_per_fma",),
            expect=lambda c: (c.t.TM + c.t.TN) / (c.t.TM * c.t.TN),
            tolerance=0.01,
            when=lambda c: in_fours(c) and c.p.k >= 256,  # the first line of one tile more is read at the end
        ),
        Claim(
            says="lanes that want the same operand come together: two wavefronts for four words where others take four",
            article="the ladder, warptiled",
            metrics=("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
            expect=lambda c: operand_wavefronts(c.t) * c.p.m * c.p.n / (c.t.WM * c.t.WN) * c.p.k,
            tolerance=0.01,
            when=lambda c: in_fours(c) and c.p.k >= 256 and min(c.t.WM // c.t.TM, c.t.WN // c.t.TN) >= 4,
        ),
        Claim(
            says="one tile of B more than it multiplies, so that the loop has no last case; of A as many as are on their way",
            article="the ladder, warptiled",
            metrics=("global_load_bytes",),
            expect=lambda c: (
                4 * c.p.m * c.p.n * ((c.p.k + (2 - c.t.ASYNC_A) * c.t.BK) / c.t.BN + (c.p.k + c.t.BK) / c.t.BM)
            ),
            when=lambda c: in_fours(c) and c.t.STAGES == 2,
        ),
        Claim(
            says="a multiply-add reads two registers: the third operand is the one before's",
            article="the ladder, warptiled",
            metrics=("register_reads_per_ffma",),
            expect=lambda c: 2.0,
            tolerance=0.05,
            when=lambda c: c.d.cc >= 86 and in_fours(c) and c.t.TM * c.t.TN >= 128,
        ),
    ),
)
