"""tiled1d: a thread computes a strip of TM cells of a column."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def threads(t):
    """Threads a block: one for every TM cells of the block's tile."""
    return t.BM // t.TM * t.BN


def launches(p, t):
    """One launch; the grid is rounded up to whole tiles."""
    grid = (ceil_div(p.n, t.BN), ceil_div(p.m, t.BM), 1)
    return [Launch("tiled1d", grid, (threads(t), 1, 1), tile=(t.BM, t.BN))]


stage = Stage(
    name="tiled1d",
    parent="tiled",
    idea="a thread computes TM cells of a column: one word of B serves TM multiply-adds",
    aims=("shared_words_read_per_fma", "memory_l1_wavefronts_shared", "time_ms"),
    launches=launches,
    tunables={"BM": 64, "BN": 64, "BK": 8, "TM": 8},
    rules=(
        Rule("TM must divide BM: a thread computes TM rows of the block's BM", lambda t: t.BM % t.TM == 0),
        Rule("a block of BM / TM * BN threads must have at most 1024", lambda t: threads(t) <= 1024),
        Rule(
            "the tiles of A and B, 4 * (BM + BN) * BK bytes, must fit in 48 KiB of shared memory",
            lambda t: 4 * (t.BM + t.BN) * t.BK <= 48 * 1024,
        ),
        Rule(
            "the TM sums of a thread must fit in its registers: 255, or its share of the 65536 of a block",
            lambda t: t.TM + 1 <= min(255, 65536 // threads(t)),
        ),
        Rule(
            "a thread must load at most 256 elements a step, as those loops are unrolled",
            lambda t: (t.BM + t.BN) * t.BK <= 256 * threads(t),
        ),
    ),
    claims=(
        Claim(
            says="{TM} words of A and 1 of B from shared memory for {TM} multiply-adds",
            article="2D, 1",
            metrics=("shared_words_read_per_fma",),
            expect=lambda c: (c.t.TM + 1) / c.t.TM,
        ),
        Claim(
            says="a block has BM * BN / TM threads",
            article="2D, 2",
            metrics=("launch__block_size",),
            expect=lambda c: c.t.BM * c.t.BN / c.t.TM,
        ),
    ),
)
