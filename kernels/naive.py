"""naive: one thread computes one cell of C. The baseline of the ladder."""

from harness.stage import Claim, Launch, Stage, ceil_div

BLOCK = 32


def launches(p, t):
    """One launch; the grid is rounded up to whole blocks."""
    grid = (ceil_div(p.n, BLOCK), ceil_div(p.m, BLOCK), 1)
    return [Launch("naive", grid, (BLOCK, BLOCK, 1), tile=(BLOCK, BLOCK))]


def no_read_of_c(c):
    """The articles compute C = A*B; a beta other than 0 adds the reads of C."""
    return c.p.beta == 0


def whole_blocks(c):
    """No thread of the grid stands idle beyond the edge."""
    return c.p.beta == 0 and c.p.m % BLOCK == 0 and c.p.n % BLOCK == 0


BROADCAST = (
    "The 32 lanes of a warp want the same element of A, which is one 32-byte sector for all of them, so fewer bytes"
    " move than the lanes ask for: at best 5 sectors (160 bytes) for 64 words (256 bytes)."
)

ROOFLINE = (
    "This takes all that the lanes ask for from DRAM. Caches serve most of it, so the cap is no limit in practice."
)

stage = Stage(
    name="naive",
    idea="one thread per cell of C, both operands from global memory",
    launches=launches,
    claims=(
        Claim(
            says="arithmetic intensity is 0.25 FLOP per byte: 2N operations for 8N bytes",
            article="deep dive, 1",
            metrics=("arithmetic_intensity", "arithmetic_intensity_sectors"),
            expect=lambda c: 0.25,
            when=no_read_of_c,
            why=BROADCAST,
        ),
        Claim(
            says="every element of A is asked for N times and every element of B M times",
            article="beginners, 5; deep dive, 1",
            metrics=("global_load_bytes", "global_load_sector_bytes"),
            expect=lambda c: 8.0 * c.p.m * c.p.n * c.p.k,
            when=no_read_of_c,
            why=BROADCAST,
        ),
        Claim(
            says="a thread loads 2 words per step, also where its neighbour loads the same one",
            article="deep dive, 1",
            metrics=("global_words_loaded_per_thread_per_k",),
            expect=lambda c: 2.0,
            when=whole_blocks,
        ),
        Claim(
            says="memory bandwidth caps it at 1.25 % of an H100's fp32 peak",
            article="deep dive, 1",
            metrics=("peak_share_bandwidth_cap",),
            expect=lambda c: 0.0125,
            tolerance=0.005,
            when=lambda c: c.d.name == "h100" and c.p.beta == 0,
            why=ROOFLINE,
        ),
        Claim(
            says="memory bandwidth caps it at 0.3 % of an RTX 4090's fp32 peak",
            article="deep dive, 1",
            metrics=("peak_share_bandwidth_cap",),
            expect=lambda c: 0.003,
            tolerance=0.05,
            when=lambda c: c.d.name == "rtx4090" and c.p.beta == 0,
            why=ROOFLINE,
        ),
    ),
)
