"""vectorized: tiled2d in fours: loads of global memory, operands and stores of four words each."""

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
    return [Launch("vectorized", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


def in_fours(c):
    """Every block takes the fast path: no edge, no tail of K, rows that start at multiples of 16 bytes, no reads of C."""
    p, t = c.p, c.t
    whole = p.m % t.BM == p.n % t.BN == p.k % t.BK == 0
    return whole and p.beta == 0 and all(ld % 4 == 0 for ld in (p.lda, p.ldb, p.ldc))


def parents_tile(c):
    """The constants that tiled2d has by default."""
    t = c.t
    return (t.BM, t.BN, t.BK, t.TM, t.TN) == (64, 64, 8, 8, 8)


stage = Stage(
    name="vectorized",
    parent="tiled2d",
    idea="float4 from global memory, from shared memory and to C; A lies transposed in shared memory",
    aims=(
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "smsp__inst_executed_op_shared_ld.sum",
        "issue",
        "time_ms",
    ),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8, "WARPS": 16},
    rules=(
        Rule("TM must be a multiple of 4 that divides BM", lambda t: t.TM % 4 == 0 and t.BM % t.TM == 0),
        Rule("TN must be a multiple of 4 that divides BN", lambda t: t.TN % 4 == 0 and t.BN % t.TN == 0),
        Rule("BK must be a multiple of 4: a thread loads four neighbours of a row of A", lambda t: t.BK % 4 == 0),
        Rule("a block of (BM / TM) * (BN / TN) threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule("WARPS must be at most 64: no multiprocessor holds more", lambda t: t.WARPS <= 64),
        Rule(
            "the tiles of A and B, 4 * (BM + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * (t.BM + t.BN) * t.BK <= 48 * 1024,
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
            says="{TM} + {TN} words from shared memory for {TM} x {TN} multiply-adds, as in tiled2d",
            article="the ladder, vectorized",
            metrics=("shared_words_read_per_fma",),
            expect=lambda c: (c.t.TM + c.t.TN) / (c.t.TM * c.t.TN),
        ),
        Claim(
            says="but four words a load: ({TM} + {TN}) / 4 loads of operands per {TM} x {TN} multiply-adds",
            article="the ladder, vectorized",
            metrics=("smsp__inst_executed_op_shared_ld.sum",),
            expect=lambda c: c.p.m * c.p.n * c.p.k / 32 * (c.t.TM + c.t.TN) / 4 / (c.t.TM * c.t.TN),
            when=in_fours,
        ),
        Claim(
            says="a quarter of the requests for global memory that tiled2d makes",
            article="the ladder, vectorized",
            metrics=(
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
            ),
            expect=lambda c: 4.0,
            against="tiled2d",
            when=lambda c: parents_tile(c) and in_fours(c),
        ),
        Claim(
            says="and as many sectors",
            article="the ladder, vectorized",
            metrics=(
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
            ),
            expect=lambda c: 1.0,
            against="tiled2d",
            when=lambda c: parents_tile(c) and in_fours(c),
            why="A warp's loads want the same sectors either way. tiled2d's stores write eight neighbours of a row one by"
            " one, and touch each sector eight times; in fours it is touched twice.",
        ),
        Claim(
            says="72 of 184 wavefronts of a warp's step are bank conflicts: 64 of B's operands, 8 of writing A down its columns",
            article="the ladder, vectorized",
            metrics=("bank_conflict_share",),
            expect=lambda c: 72 / 184,
            when=lambda c: parents_tile(c) and in_fours(c),
        ),
    ),
)
