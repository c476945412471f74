"""tiled2d: a thread computes a patch of TM x TN cells; main launch for whole tiles, edge launches for the rest."""

from harness.stage import ARGUMENTS, Claim, Launch, Rule, Stage


def threads(t):
    """Threads a block: one for every TM x TN patch of the block's tile."""
    return (t.BM // t.TM) * (t.BN // t.TN)


def launches(p, t):
    """A main launch over whole tiles, then the right, bottom and corner strips; one without a block is left out."""
    rows, cols = p.m // t.BM, p.n // t.BN
    below, beside = p.m % t.BM > 0, p.n % t.BN > 0

    def edge(label, x, y, row0, col0):
        return Launch(
            "tiled2d_edge",
            (x, y, 1),
            (threads(t), 1, 1),
            tile=(t.BM, t.BN),
            origin=lambda x, y, z: (row0 + y * t.BM, col0 + x * t.BN),
            args=(*ARGUMENTS, row0, col0),
            label=label,
        )

    found = [
        Launch("tiled2d", (cols, rows, 1), (threads(t), 1, 1), tile=(t.BM, t.BN)),
        edge("right", int(beside), rows, 0, cols * t.BN),
        edge("bottom", cols, int(below), rows * t.BM, 0),
        edge("corner", int(beside), int(below), rows * t.BM, cols * t.BN),
    ]
    return [launch for launch in found if launch.blocks]


def whole_tiles(c):
    """No edge launch, no tail of K, and no reads of C."""
    p, t = c.p, c.t
    return p.beta == 0 and p.m % t.BM == 0 and p.n % t.BN == 0 and p.k % t.BK == 0


def article_tile(c):
    """The constants of the article's kernel."""
    t = c.t
    return (t.BM, t.BN, t.BK, t.TM, t.TN) == (64, 64, 8, 8, 8)


stage = Stage(
    name="tiled2d",
    parent="tiled1d",
    idea="a thread computes TM x TN cells as an outer product in registers",
    aims=("shared_words_read_per_fma", "memory_l1_wavefronts_shared", "time_ms"),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8, "TN": 8},
    rules=(
        Rule("TM must divide BM: a thread computes TM rows of the block's BM", lambda t: t.BM % t.TM == 0),
        Rule("TN must divide BN: a thread computes TN columns of the block's BN", lambda t: t.BN % t.TN == 0),
        Rule("a block of (BM / TM) * (BN / TN) threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule(
            "the tiles of A and B, 4 * (BM + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * (t.BM + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM * TN sums and TM + TN operands of a thread must fit in its registers: 255, or its share of the"
            " 65536 of a block",
            lambda t: t.TM * t.TN + t.TM + t.TN <= min(255, 65536 // threads(t)),
        ),
        Rule(
            "a thread must load at most 256 elements a step, as those loops are unrolled",
            lambda t: (t.BM + t.BN) * t.BK <= 256 * threads(t),
        ),
    ),
    claims=(
        Claim(
            says="{TM} + {TN} words from shared memory for {TM} x {TN} multiply-adds",
            article="2D, 1",
            metrics=("shared_words_read_per_fma",),
            expect=lambda c: (c.t.TM + c.t.TN) / (c.t.TM * c.t.TN),
        ),
        Claim(
            says="a 4x reduction in shared-memory bandwidth pressure against tiled1d",
            article="2D, 1",
            metrics=("shared_words_read_per_fma", "memory_l1_wavefronts_shared"),
            expect=lambda c: 4.0,
            against="tiled1d",
            tolerance=0.05,
            when=lambda c: article_tile(c) and whole_tiles(c),
            why="Words read fall 4.5x: from 1.125 to 0.25 a multiply-add, where the article takes 1.125 for 1."
            " Wavefronts even rise on sm_90: a warp reads 4 rows of As that are TM * BK = 64 words apart, so in one"
            " bank, and takes 4 wavefronts where one would do; tiled1d's warps read As by broadcast.",
        ),
        Claim(
            says="a block has BM * BN / (TM * TN) threads",
            article="2D, 2",
            metrics=("launch__block_size",),
            expect=lambda c: c.t.BM * c.t.BN / (c.t.TM * c.t.TN),
        ),
        Claim(
            says="64 threads load 8 values each of both tiles per step of 8",
            article="2D, 3",
            metrics=("global_words_loaded_per_thread_per_k",),
            expect=lambda c: (8 + 8) / 8,
            when=lambda c: article_tile(c) and whole_tiles(c),
        ),
        Claim(
            says="at 512 x 512 there are 64 blocks, fewer than an H100's 132 SMs",
            article="2D, 6",
            metrics=("launch__grid_size",),
            expect=lambda c: 64.0,
            when=lambda c: c.p.m == c.p.n == 512 and c.t.BM == c.t.BN == 64,
        ),
        Claim(
            says="1000 x 1000 has 15 full blocks each way, and 40 rows and columns left for the edge launches",
            article="2D, 5",
            metrics=("launch__grid_size",),
            expect=lambda c: 15.0 * 15.0,
            when=lambda c: c.p.m == c.p.n == 1000 and c.t.BM == c.t.BN == 64,
        ),
    ),
)
