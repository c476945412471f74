"""tiled: square tiles of A and B in shared memory."""

from harness.stage import Claim, Launch, Rule, Stage, ceil_div


def launches(p, t):
    """One launch of TILE x TILE blocks; the grid is rounded up to whole tiles."""
    grid = (ceil_div(p.n, t.TILE), ceil_div(p.m, t.TILE), 1)
    return [Launch("tiled", grid, (t.TILE, t.TILE, 1), tile=(t.TILE, t.TILE))]


def whole_tiles(c):
    """The articles assume that TILE divides the matrices, and compute C = A*B."""
    return c.p.beta == 0 and all(size % c.t.TILE == 0 for size in (c.p.m, c.p.n, c.p.k))


stage = Stage(
    name="tiled",
    parent="naive",
    idea="TILE x TILE tiles in shared memory: each loaded element serves TILE threads",
    aims=("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "arithmetic_intensity", "time_ms"),
    launches=launches,
    tunables={"TILE": 32},
    rules=(
        Rule(
            "TILE must be 2, 4, 8, 16 or 32: a block has TILE * TILE threads, at most 1024",
            lambda t: t.TILE in (2, 4, 8, 16, 32),
        ),
    ),
    claims=(
        Claim(
            says="input traffic falls {TILE}x against naive",
            article="deep dive, 2",
            metrics=("global_load_bytes", "global_load_sector_bytes"),
            expect=lambda c: float(c.t.TILE),
            against="naive",
            when=whole_tiles,
            why="The bytes that lanes ask for do fall TILE-fold. Sectors fall less, because naive's warps already share"
            " them: 32 lanes that want one element of A move one sector, so naive moves 5 sectors a warp and step, not"
            " 8; and a tile narrower than 8 floats leaves part of each sector unused.",
        ),
        Claim(
            says="a 32 x 32 tile takes 96.9 % off the input traffic of naive (a factor of 32)",
            article="deep dive, 2",
            metrics=("global_load_bytes", "global_load_sector_bytes"),
            expect=lambda c: 1 / (1 - 0.969),
            against="naive",
            tolerance=0.02,  # 96.9 % is rounded: 31.7 to 32.8
            when=lambda c: c.t.TILE == 32 and whole_tiles(c),
            why="True of the bytes that lanes ask for. Of the sectors that move, 95 % go: in naive a warp shares the"
            " sector of A that all its lanes want.",
        ),
        Claim(
            says="requests to slow memory fall by about {TILE}x against naive",
            article="beginners, 6",
            metrics=(
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
            ),
            expect=lambda c: float(c.t.TILE),
            against="naive",
            tolerance=0.02,
            when=whole_tiles,
            why="A request is one warp instruction. Blocks of fewer than 32 threads (TILE 2 and 4) send requests with"
            " most lanes missing. Sectors do not fall as far, because naive's warps already share the sector of A.",
        ),
        Claim(
            says="arithmetic intensity is TILE/4 FLOP per byte",
            article="deep dive, 2",
            metrics=("arithmetic_intensity", "arithmetic_intensity_sectors"),
            expect=lambda c: c.t.TILE / 4,
            when=whole_tiles,
            why="A sector holds 8 floats. A tile row of fewer (TILE 2 and 4), or rows that do not start on a sector,"
            " move bytes that no lane asked for.",
        ),
        Claim(
            says="a thread loads one element of A and one of B per phase of {TILE} steps",
            article="deep dive, 2 and 4.4",
            metrics=("global_words_loaded_per_thread_per_k",),
            expect=lambda c: 2 / c.t.TILE,
            when=whole_tiles,
        ),
        Claim(
            says="a warp that spans a tile row loads fully coalesced: 4 sectors a request",
            article="deep dive, 4.4",
            metrics=("sectors_per_request_ld",),
            expect=lambda c: 4.0,
            when=lambda c: c.t.TILE == 32 and whole_tiles(c),
            why="128 bytes are 4 sectors only if they start on one: the leading dimensions must be multiples of 8.",
        ),
        Claim(
            says="As and Bs take 2 * TILE * TILE * 4 bytes of shared memory a block",
            article="deep dive, 4.1",
            metrics=("shared_bytes_per_block",),
            expect=lambda c: 8.0 * c.t.TILE**2,
        ),
        Claim(
            says="As is read by broadcast and Bs without bank conflicts",
            article="deep dive, 7.2",
            metrics=("bank_conflict_share", "derived__memory_l1_wavefronts_shared_excessive"),
            expect=lambda c: 0.0,
        ),
        Claim(
            says="a block has TILE x TILE threads",
            article="deep dive, 2 and 5",
            metrics=("launch__block_size",),
            expect=lambda c: float(c.t.TILE**2),
        ),
        Claim(
            says="the 4 x 4 example runs as 4 blocks",
            article="deep dive, 5",
            metrics=("launch__grid_size",),
            expect=lambda c: 4.0,
            when=lambda c: c.t.TILE == 2 and c.p.m == c.p.n == 4,
        ),
    ),
)
