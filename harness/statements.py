"""The quantitative statements of the three articles, in our own words, each with how it is checked (harness.ledger).

'beginners' is "Tiled Matrix Multiplication in CUDA", '2D' is "2D Block Tiling: Scaling Matrix Multiplication on NVIDIA
H100", 'deep dive' is "Tiled GEMM: Matrix Multiplication in CUDA". Sections are the articles' own.
"""

from __future__ import annotations

import numpy as np

from .ledger import Statement, arithmetic, claim, total
from .statement_checks import (
    AT,
    BENCHMARK,
    against_cublas,
    bandwidth_ratio,
    barriers_per_phase,
    below_peak,
    capacity,
    cells_per_thread,
    conflicts,
    consistent,
    cublas,
    dram_traffic,
    example,
    example_threads,
    fault,
    fma_total,
    full_speed,
    grid_of_1000,
    known,
    lanes_in_use,
    latency,
    latency_ratio,
    load_width,
    many_threads,
    memory_bound,
    no_checks,
    no_t4,
    no_tensor_cores,
    on_this_device,
    peak,
    peak_memory,
    printed_range,
    registers_only,
    reuse,
    right,
    roofline,
    same_answer,
    settles,
    square_hides,
    stores_per_thread,
    tile_contents,
    unrolled,
    unused_share,
    wavefronts,
    wrong_result,
)


def table_row(size: int) -> list[Statement]:
    """The statements that one row of the 2D article's benchmark table makes."""
    ms, tflops, cublas_ms, cublas_tflops, percent = BENCHMARK[size]
    said = f"at {size}"
    rows = (
        (
            "table",
            "times, TFLOPS and share of cuBLAS agree with one another",
            (str(size), *BENCHMARK[size]),
            consistent(size),
        ),
        (
            "tflops",
            f"{tflops} TFLOPS in {ms} ms",
            (ms, tflops),
            on_this_device("tflops", {size: float(tflops)}, "TFLOPS"),
        ),
        (
            "cublas",
            f"cuBLAS reaches {cublas_tflops} TFLOPS in {cublas_ms} ms",
            (cublas_ms, cublas_tflops),
            cublas(size),
        ),
        ("percent", f"{percent} % of cuBLAS", (percent,), on_this_device("ratio", {size: float(percent)}, "%")),
    )
    return [
        Statement(f"2d-{key}-{size}", "2D", "6", f"{said}: {says}", numbers, check)
        for key, says, numbers, check in rows
    ]


_BEGINNERS = (
    ("cores", "intro", "a GPU has thousands of cores, and runs thousands to millions of threads", ("thousands", "millions"), many_threads),
    ("dot-product", "1", "a cell of C takes a whole row of A and a whole column of B", ("0", "width-1"),
     claim("naive", "a thread loads 2 words per step", size=512)),
    ("row-major", "2", "cell (row, col) lies at row * width + col; in column-major order at col * height + row", ("i * width + j",),
     known(np.ravel_multi_index((3, 5), (8, 11)) == 3 * 11 + 5 and np.ravel_multi_index((3, 5), (8, 11), order="F") == 5 * 8 + 3,
           "place of (3, 5) in 8 x 11", "38 and 43", "hand arithmetic")),
    ("one-cell", "3", "a thread computes one cell of C", ("one",), cells_per_thread("naive", 1.0)),
    ("mixed-axes", "4", "x mixed with y in the row index goes unnoticed only where blocks are square", ("square",), square_hides),
    ("row-of-b", "5", "B[col * width + k] walks along a row of B and is wrong", ("k",), wrong_result("naive_row_of_b")),
    ("no-k", "5", "B[row * width + col] reads one cell over and over and is wrong", ("k",), wrong_result("naive_no_k")),
    ("hundreds", "5", "a read of global memory costs hundreds of cycles", ("hundreds",),
     latency("latency of DRAM", 100, 1000, "It is outside 100 to 1000 cycles.")),
    ("n-times", "5", "each value of A, and of B, is read N times from global memory", ("N times",), claim("naive", "every element of A is asked for", size=512)),
    ("memory-bound", "5", "naive is memory bound: faster arithmetic would not help", ("most of its time",), memory_bound),
    ("hundredfold-latency", "6", "shared memory has about 100 times lower latency than global memory", ("100x",), latency_ratio),
    ("once-per-block", "6", "each value is loaded once per block", ("once",), claim("tiled", "one element of A and one of B", size=512, TILE=16)),
    ("sixteenfold", "6", "with 16 x 16 tiles requests to slow memory drop by about 16", ("16", "16x"),
     claim("tiled", "requests to slow memory fall", size=512, TILE=16)),
    ("reuse-16", "6", "with 16 x 16 tiles each loaded value is used 16 times", ("16", "16×16"), reuse(16)),
    ("same-math", "6", "tiling does not change the number of multiply-adds", ("not cheaper",), fma_total),
    ("tile-16", "7", "a block of a 16 x 16 tile has 256 threads, one for each cell", ("16", "16x16"), claim("tiled", "a block has TILE x TILE", size=512, TILE=16)),
    ("hundredfold-speed", "7", "shared memory is about 100 times faster", ("100x",), bandwidth_ratio),
    ("once-per-tile", "7", "global memory is read once per tile, everything else comes from shared memory", ("once",),
     claim("tiled", "input traffic falls", size=512, TILE=16)),
    ("two-barriers", "7", "a phase has two barriers", ("two",), barriers_per_phase),
    ("first-barrier", "7", "without the first barrier a thread reads what is not there yet", ("first",), fault("tiled_no_first_barrier", "race (read-after-write", "uninitialised")),
    ("second-barrier", "7", "without the second barrier a thread overwrites what is still read", ("second",), fault("tiled_no_second_barrier", "race (write-after-read")),
    ("same-answer", "8", "naive and tiled give exactly the same answer", ("exact same",), same_answer),
)  # fmt: skip

_2D = (
    ("t4", "intro", "1D tiling reached about 42 % of cuBLAS on a T4", ("42%", "T4"), no_t4),
    ("nineteen", "intro", "2D tiling reached nearly 19 TFLOPS, about 36 % of cuBLAS, on an H100", ("19", "36%", "8192"), against_cublas("tiled2d", 36.0)),
    ("eight-by-one", "1", "a 1D thread computes 8 rows of one column", ("8", "1"), cells_per_thread("tiled1d", 8.0)),
    ("sixty-four", "1", "a 2D thread computes 8 x 8 = 64 cells", ("8", "64"), cells_per_thread("tiled2d", 64.0)),
    ("nine-reads", "1", "1D: 9 shared reads for 8 multiply-adds, roughly 1.1 each", ("8", "1", "9", "1.1"), claim("tiled1d", "words of A and 1 of B", size=512)),
    ("sixteen-reads", "1", "2D: 16 shared reads for 64 multiply-adds, 0.25 each", ("8", "16", "64", "0.25"),
     claim("tiled2d", "words from shared memory for", size=512)),
    ("fourfold", "1", "that is 4 times less shared-memory bandwidth", ("4x",), claim("tiled2d", "a 4x reduction", size=512)),
    ("tile-4096", "2", "a block's tile has 64 x 64 = 4096 cells", ("64", "4096", "8"), arithmetic("cells", 64 * 64, 4096)),
    ("threads-512", "2", "1D: 4096 / 8 = 512 threads a block", ("512", "8", "4096"), claim("tiled1d", "a block has BM * BN / TM", size=512)),
    ("threads-64", "2", "2D: 4096 / 64 = 64 threads a block", ("64", "4096"), claim("tiled2d", "a block has BM * BN / (TM * TN)", size=512)),
    ("two-warps", "2", "64 threads are two warps", ("two", "64"), arithmetic("warps", 64 / 32, 2)),
    ("tile-512", "3", "each tile has 64 * 8 = 512 elements", ("64", "8", "512"), arithmetic("elements", 64 * 8, 512)),
    ("eight-loads", "3", "a thread loads 512 / 64 = 8 values of each tile, 64 apart", ("512", "64", "8"), claim("tiled2d", "64 threads load 8 values", size=512)),
    ("unrolled", "4", "the loops over the rows and columns of the 64 cells are unrolled completely", ("8", "64"), unrolled),
    ("in-registers", "4", "the 64 sums stay in registers throughout", ("64",), registers_only("tiled2d")),
    ("thousand", "5", "1000 is 15 full blocks (960) and 40 left over", ("1000", "64", "15", "960", "40"),
     claim("tiled2d", "1000 x 1000 has 15", m=1000, n=1000, k=1000)),
    ("zero-checks", "5", "the main kernel checks no bounds", ("zero", "64"), no_checks),
    ("edges", "5", "zero padding at the edges leaves the result right", ("0.0",), right("tiled2d", m=1000, n=1000, k=1000)),
    ("few-blocks", "6", "at 512 there are too few blocks for 132 SMs", ("512", "132"), claim("tiled2d", "at 512 x 512 there are 64", size=512)),
    ("settles", "6", "from 2048 on occupancy is stable", ("2048",), settles),
    ("eighteen", "6", "from 2048 on throughput is 18 to 19 TFLOPS", ("2048", "18", "19"), printed_range(18, 19, 1, (2048, 4096, 8192), 2)),
    ("reliably", "6", "between 35 % and 36.3 % of cuBLAS from 1024 to 8192", ("1024", "8192", "35%", "36.3%"), printed_range(35, 36.3, 4, (1024, 2048, 4096, 8192))),
    ("reliably-here", "6", "the same on the GPU at hand", ("35%", "36.3%"),
     on_this_device("ratio", {n: float(BENCHMARK[n][4]) for n in (1024, 2048, 4096, 8192)}, "%")),
    ("cuda-cores", "6", "no tensor cores are used", ("19",), no_tensor_cores),
    ("h100-memory", "6", "the GPU is an H100 with 80 GB", ("80GB",), peak_memory("h100", 80)),
    ("micro-tile", "next", "the loads of the 8 x 8 patch should avoid bank conflicts, which they do not yet", ("8x8",), conflicts),
    ("narrow-loads", "next", "global loads are 32 bits wide", ("32-bit", "128-bit"), load_width),
)  # fmt: skip

_INTENSITY = tuple(
    (f"intensity-{tile}", "2", f"TILE = {tile}: {tile}x less traffic, {tile / 4:.2f} FLOP per byte", (f"{tile}x", f"{tile / 4:.2f}"),
     claim("tiled", "arithmetic intensity is TILE/4", **AT[tile]))
    for tile in (2, 16, 32)
)  # fmt: skip
_TRAFFIC = tuple(
    (f"traffic-{tile}", "2", f"TILE = {tile}: input traffic falls {tile}-fold", (f"{tile}x",),
     claim("tiled", "input traffic falls", **AT[tile]))
    for tile in (2, 16, 32)
)  # fmt: skip

_DEEP_DIVE = (
    ("five-percent", "intro", "naive reaches less than 5 % of peak", ("5%",), below_peak(0.05)),
    ("naive-intensity", "1", "2N operations for 8N bytes: 0.25 FLOP per byte", ("2N", "8N", "4", "0.25"), claim("naive", "arithmetic intensity is 0.25", size=512)),
    ("uncoalesced-intensity", "1", "the formula does not ask how lanes walk: it gives 0.25 for strided lanes too", ("0.25",),
     claim("naive_uncoalesced", "arithmetic intensity is 0.25", size=64)),
    ("h100", "1", "an H100 SXM5 has about 67 TFLOPS fp32 and 3,350 GB/s", ("67", "3,350"), peak("h100", 67, 3350)),
    ("h100-balance", "1", "its balance is about 20 FLOP per byte", ("67,000", "3,350", "20"), roofline("h100", 20, 0)),
    ("rtx4090", "1", "an RTX 4090 has about 82.6 TFLOPS fp32 and 1,008 GB/s", ("82.6", "1,008"), peak("rtx4090", 82.6, 1008)),
    ("rtx4090-balance", "1", "its balance is about 82 FLOP per byte", ("82,600", "1,008", "82"), roofline("rtx4090", 82, 0)),
    ("cap-h100", "1", "bandwidth caps naive at about 1.25 % of the H100's peak", ("1.25%", "0.25"), claim("naive", "caps it at 1.25", size=64, device="h100")),
    ("cap-rtx4090", "1", "bandwidth caps naive at about 0.3 % of the RTX 4090's peak", ("0.3%",), claim("naive", "caps it at 0.3", size=64, device="rtx4090")),
    ("n-squared", "1", "N^2 threads ask for every element of A and B N times", ("N²", "N"), claim("naive", "every element of A is asked for", size=512)),
    ("neighbours", "1", "neighbours in a row load the same row of A, each by its own load", ("1",), claim("naive", "a thread loads 2 words per step", size=512)),
    ("one-each", "2", "a thread loads one element of A and one of B per phase", ("one",), claim("tiled", "one element of A and one of B", size=512)),
    ("phases", "2", "there are N / TILE phases", ("N / TILE", "1", "0"), barriers_per_phase),
    ("bytes-per-phase", "2", "a block loads 2 * TILE^2 * 4 = 8 TILE^2 bytes a phase", ("2", "4", "8"), arithmetic("bytes at TILE=32", 2 * 32**2 * 4, 8 * 32**2)),
    ("flops-per-phase", "2", "and does 2 TILE^3 operations", ("2",), arithmetic("operations at TILE=32", 32**2 * 2 * 32, 2 * 32**3)),
    ("naive-row", "2", "naive is the row of 1x and 0.25", ("1×", "0.25"), claim("naive", "arithmetic intensity is 0.25", size=512)),
    *_INTENSITY,
    *_TRAFFIC,
    ("reuse", "2", "each loaded element is used TILE times", ("TILE",), reuse(32)),
    ("ninety-seven", "2", "TILE = 32 takes 96.9 % off the input traffic", ("32", "96.9%"), claim("tiled", "96.9 %", size=512)),
    ("dram-factor", "9", "tiling cuts DRAM traffic by TILE", ("TILE",), dram_traffic),
    ("sixteen-threads", "3", "the 4 x 4 example has 4 blocks of 4 threads, 16 in all", ("4", "2", "16"), example_threads),
    ("example-blocks", "5", "its grid is 2 x 2 = 4 blocks", ("2", "4"), claim("tiled", "the 4 x 4 example runs as 4 blocks", size=4, TILE=2)),
    ("footprint-2", "4.1", "TILE = 2: 16 bytes a tile, 32 in all", ("2", "4", "16", "32"), claim("tiled", "As and Bs take", size=64, TILE=2)),
    ("footprint-32", "4.1", "TILE = 32: 4 KB a tile, 8 KB in all", ("32", "4 KB", "8 KB"), claim("tiled", "As and Bs take", size=512)),
    ("capacity", "4.1", "an SM has 48 to 228 KB of shared memory", ("48 KB", "228 KB"), capacity),
    ("in-register", "4.2", "the sum of a thread stays in a register", ("0",), registers_only("tiled")),
    ("two-phases", "4.3", "4 / 2 = 2 phases", ("4", "2"), arithmetic("phases", 4 / 2, 2)),
    ("consecutive", "4.4", "neighbouring lanes read words 4 bytes apart: 4 sectors a request where a warp spans a row", ("1", "4", "32"),
     claim("tiled", "a warp that spans a tile row", size=512)),
    ("four-lanes", "4.4", "with TILE = 2 only four threads of a warp take part", ("2", "four"), lanes_in_use(2)),
    ("raw", "4.5", "the first barrier prevents a read before the write", ("0", "3", "2"), fault("tiled_no_first_barrier", "race (read-after-write", "uninitialised")),
    ("peak-mac", "4.6", "the inner loop keeps the multiply-add pipe at its peak", ("peak",), full_speed),
    ("war", "4.7", "the second barrier prevents a write before the read", ("0", "3", "1"), fault("tiled_no_second_barrier", "race (write-after-read")),
    ("one-store", "4.8", "a thread stores one word", ("single",), stores_per_thread),
    ("store-coalesced", "4.8", "a warp that spans a row stores 4 sectors a request", ("coalesced",), total("tiled", "sectors_per_request_st", 4.0, size=512)),
    ("phase-0-tiles", "5", "phase 0: As = 1 2 5 6 and Bs = 1 2 5 6", ("1", "2", "5", "6"), tile_contents(0, ((1, 2, 5, 6), (1, 2, 5, 6)))),
    ("phase-0-sums", "5", "after phase 0: 11, 14, 35, 46", ("11", "14", "35", "46", "10", "12", "30", "36"), example(2, (11, 14, 35, 46))),
    ("phase-1-tiles", "5", "phase 1: As = 3 4 7 8 and Bs = 9 10 13 14", ("3", "4", "7", "8", "9", "10", "13", "14"),
     tile_contents(1, ((3, 4, 7, 8), (9, 10, 13, 14)))),
    ("phase-1-sums", "5", "at the end: 90, 100, 202, 228", ("90", "100", "202", "228", "27", "52", "56", "63", "104", "70", "112"), example(4, (90, 100, 202, 228))),
    ("bit-level", "5", "the result is right to the bit", ("bit",), example(4, (90, 100, 202, 228))),
    ("arrays", "6", "each matrix of the example is 16 floats", ("16",), arithmetic("floats", 4 * 4, 16)),
    ("ragged-grid", "7.1", "N = 1000 with TILE = 32 needs the grid rounded up", ("1000", "32"), grid_of_1000),
    ("zero-padding", "7.1", "zeros beyond the edge add nothing", ("0.0", "0"), right("tiled", m=100, n=72, k=50)),
    ("banks", "7.2", "shared memory has 32 banks of 4 bytes: 32 words in a row take one pass, 32 words of one bank take 32", ("32", "4"),
     wavefronts(32, 32, "32 words of one bank")),
    ("broadcast", "7.2", "one address for all lanes is served at no cost", ("exact same",), wavefronts(0, 1, "one word for all lanes")),
    ("conflict-free", "7.2", "As by broadcast and Bs over 32 banks: no conflicts", ("32", "31", "i mod 32"), claim("tiled", "As is read by broadcast", size=512)),
    ("distinct-banks", "7.2", "lanes 0 to 31 of a row of Bs are in 32 banks", ("0..31", "32"), wavefronts(1, 1, "32 words in a row")),
    ("padding", "7.2", "one element of padding frees the columns of a 32-wide tile of conflicts", ("1",), wavefronts(33, 1, "a column of a tile of pitch 33")),
    ("cp-async", "8", "cp.async needs compute capability 8.0", ("8.0",), known(True, "PTX ISA, cp.async", "requires sm_80 or higher", "documentation")),
    ("tma", "8", "the tensor memory accelerator came with Hopper", ("Hopper",),
     known(True, "PTX ISA, cp.async.bulk.tensor", "requires sm_90 or higher", "documentation")),
    ("no-waste", "9", "consecutive lanes on consecutive words move no byte in vain", ("consecutive",), total("tiled", "sectors_per_request_ld", 4.0, size=512)),
    ("ninety-five", "9", "naive wastes more than 95 % of the compute capacity, for its intensity of 0.25", ("95%", "0.25"), unused_share),
    ("intensity-summary", "9", "tiling raises intensity to TILE / 4", ("4",), claim("tiled", "arithmetic intensity is TILE/4", size=512)),
)  # fmt: skip

STATEMENTS: tuple[Statement, ...] = (
    *(Statement(f"beginners-{key}", "beginners", *rest) for key, *rest in _BEGINNERS),
    *(Statement(f"2d-{key}", "2D", *rest) for key, *rest in _2D),
    *(s for size in BENCHMARK for s in table_row(size)),
    *(Statement(f"deep-{key}", "deep dive", *rest) for key, *rest in _DEEP_DIVE),
)
