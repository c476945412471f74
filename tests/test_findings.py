"""Findings on the project's stages as compiled and simulated, and on kernels made to have one fault each."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from listing import counts, listing

from harness import device, sim, stage, toolchain
from harness.findings import LEAST, MOST, Finding, findings
from harness.problem import Problem
from harness.stage import Launch, Stage

H200 = device.find("h200")
GOOD = Path(__file__).parent / "data" / "good.cu"
ARGUMENTS = (
    "int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc"
)
_cache: dict = {}


def simulated(found: Stage, problem: Problem, tunables: dict, on: device.Device = H200) -> list[Finding]:
    values = found.configure(tunables)
    binary = toolchain.compile(found, values, on.cc)
    launches = found.launches(problem, SimpleNamespace(**values))
    done = sim.run(binary, launches, problem, problem.operands(), blocks="count")
    return findings([(x.launch, x.kernel, x.counts) for x in done.launches], problem, on)


def of(name: str, m: int, n: int = 0, k: int = 0, on: str = "h200", **tunables) -> list[Finding]:
    key = (name, m, n, k, on, *tunables.items())
    if key not in _cache:
        _cache[key] = simulated(stage.find(name), Problem(m, n or m, k or m), tunables, device.find(on))
    return _cache[key]


def about(found: list[Finding], words: str) -> Finding:
    return next(f for f in found if words in f.sentence)


def line_of(name: str, text: str) -> int:
    lines = (stage.KERNELS / f"{name}.cu").read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_tiled2d_is_told_of_its_bank_conflicts():
    found = of("tiled2d", 2048)
    first, second = (f for f in found if "bank conflicts" in f.sentence)
    assert first is found[0]
    line = line_of("tiled2d", "a[i] = As[ty * TM + i][k];")
    assert first.sentence == (
        f"64 % of shared-memory wavefronts are bank conflicts, 75 % of them from tiled2d.cu:{line}: "
        "a 4-byte load takes 4 wavefronts where 1 would do."
    )
    assert (Path(first.file).name, first.line) == ("tiled2d.cu", line)
    assert "pad the tile's rows by one word" in first.remedy and "transposed" in first.remedy
    assert second.line == line_of("tiled2d", "b[j] = Bs[k][tx * TN + j];")
    assert "16-byte load takes 8 wavefronts where 4" in second.sentence and "neighbouring pieces" in second.remedy


def test_the_bottleneck_is_named_as_a_bound():
    f = about(of("tiled2d", 2048), "bounds it")
    assert f.sentence.startswith("The data stage") and f.sentence.endswith("are attainable. A bound, not a time.")
    assert "66.9" in f.sentence and "bank conflicts first" in f.remedy


def test_a_small_grid_at_512():
    assert "64 blocks on 132 SMs: 52 % of the GPU" in about(of("tiled2d", 512), "has nothing to do").sentence


def test_stores_a_word_at_a_time():
    """A thread of tiled2d writes 8 neighbouring words one by one: 32 sectors a request, 4 would do."""
    found = of("tiled2d", 512, k=8)
    f = about(found, "stores 32 sectors per request where 4 would do")
    assert f.line == line_of("tiled2d", "*c = result;") and "float4" in f.remedy


def test_uncoalesced_walk():
    found = of("naive_uncoalesced", 1024)
    assert "loads 16.5 sectors per request where 2.5 would do" in found[0].sentence
    assert "let threadIdx.x walk along the row" in found[0].remedy
    assert found[0].line == line_of("naive_uncoalesced", "A[")


def test_naive_should_tile_and_has_no_access_fault():
    found = of("naive", 1024)
    assert "shared memory and reuse" in about(found, "bounds it").remedy
    assert not [
        f for f in found if "sectors" in f.sentence or "conflicts" in f.sentence or "single words" in f.sentence
    ]


@pytest.mark.parametrize("tile", [16, 32])
def test_tiled_has_no_conflicts_and_should_compute_more_per_thread(tile):
    found = of("tiled", 1024, TILE=tile)
    assert "Compute several cells per thread: 2 shared words" in about(found, "bounds it").remedy
    assert not [f for f in found if "conflicts" in f.sentence or "sectors" in f.sentence]


def test_half_empty_warps():
    assert "4 threads: 88 % of the lanes" in about(of("tiled", 64, TILE=2), "do not exist").sentence


def test_padding():
    assert "73 % of the multiply-adds" in about(of("tiled", 33, 33, 512), "padding").sentence


def test_edge_launches_that_fill_few_sms():
    f = about(of("tiled2d", 1000), "small launches")
    assert f.sentence.startswith("3 small launches of 31 blocks in all, for 132 SMs")
    assert "one launch" in f.remedy


def test_scalar_copies_of_a_tile():
    f = about(of("tiled2d", 4096, k=512), "single words")
    assert "8 single words" in f.sentence and "float4: 2 loads instead of 8" in f.remedy


def test_the_pattern_decides_the_remedy():
    """On sm_80 ptxas reads four rows of As by 128-bit broadcast: padding by 4 words, not spreading the pieces."""
    f = next(f for f in of("tiled2d", 1024, on="a100") if f.line == line_of("tiled2d", "a[i] = As[ty * TM + i][k];"))
    assert "4 wavefronts where 2 would do" in f.sentence and "4 words, which keeps them aligned" in f.remedy


@pytest.mark.parametrize("name", ["naive", "naive_uncoalesced", "tiled", "tiled1d", "tiled2d"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (100, 72, 50), (1, 1, 1)])
def test_at_most_five_costliest_first_all_actionable(name, shape):
    found = of(name, *shape)
    assert len(found) <= MOST
    assert [f.cost for f in found] == sorted((f.cost for f in found), reverse=True)
    for f in found:
        assert f.remedy and f.sentence.endswith(".") and f.cost >= LEAST and f.cost <= 1.01
        assert any(c.isdigit() for c in f.sentence)
        assert bool(f.file) == bool(f.line)


def one_stage(source: Path, name: str, threads: int, tile: tuple[int, int], shared: int = 0) -> Stage:
    def launches(p, t):
        return [Launch(name, (p.n // tile[1], p.m // tile[0], 1), (threads, 1, 1), tile, shared=shared)]

    return Stage(name, "", launches, source=source)


def test_no_false_alarm_on_a_good_kernel():
    """float4 throughout, no conflicts, a grid of 16.5 rounds: what is left is the register file, and no waste of its own."""
    good = one_stage(GOOD, "good", 256, (128, 128))
    problem = Problem(128, 256, 64)
    operands = problem.operands()
    binary = toolchain.compile(good, {}, 90)
    done = sim.run(binary, good.launches(problem, None), problem, operands, blocks="all")
    reference, bound = operands.reference(slice(None), slice(None))
    assert (abs(done.c - reference) <= bound).all()
    found = simulated(good, Problem(128 * 32, 128 * 33, 1024), {})
    assert [f.sentence.split(" bounds")[0] for f in found] == ["Register bank 0"]
    assert ".reuse" in found[0].remedy


def test_spills(tmp_path):
    source = tmp_path / "spilling.cu"
    source.write_text(
        f"""extern "C" __global__ void __launch_bounds__(1024) spilling({ARGUMENTS}) {{
    float s[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) s[i] = A[i];
    for (int k = 0; k < K; ++k) {{
        float b = B[k * ldb + threadIdx.x];
#pragma unroll
        for (int i = 0; i < 96; ++i) s[i] = fmaf(s[i], b, s[(i + 1) % 96]);
    }}
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 96; ++i) sum += s[i];
    C[threadIdx.x] = sum;
}}
"""
    )
    f = about(simulated(one_stage(source, "spilling", 1024, (1, 1024)), Problem(1, 1024, 96), {}), "spill")
    assert "bytes per thread do not fit its" in f.sentence and Path(f.file).name == "spilling.cu" and f.line > 1


def made(kernel, table, threads=128, blocks=132, shared=0, problem=None):
    launch = Launch("kernel", (blocks, 1, 1), (threads, 1, 1), shared=shared)
    return findings([(launch, kernel, table)], problem or Problem(512, 512, 512), H200)


def test_low_occupancy_without_independent_work():
    kernel = listing("FFMA R2, R4, R6, R2", registers=32)
    found = made(kernel, counts(kernel, warps=132 * 4096), threads=64, shared=100 * 1024)
    f = about(found, "Occupancy is 6.25 %")
    assert (
        "102,400 bytes of shared memory per block allow 2 blocks, 4 warps" in f.sentence and "smaller tiles" in f.remedy
    )


def test_low_occupancy_with_much_independent_work_is_no_finding():
    kernel = listing(*(f"FFMA R{n}, R4, R6, R{n}" for n in range(10, 42)), registers=168)
    assert not [f for f in made(kernel, counts(kernel, warps=132 * 4096)) if "Occupancy" in f.sentence]


def test_neighbouring_shared_words_loaded_one_by_one():
    loads = [(7, f"LDS R{10 + n}, [R4+{hex(0x100 + 4 * n)}]") for n in range(4)]
    kernel = listing(*loads, (8, "FFMA R2, R10, R11, R2"))
    row = dict(requests=132000, wavefronts=132000, wavefronts_ideal=132000)
    f = about(made(kernel, counts(kernel, row, row, row, row, warps=132000)), "4 neighbouring words of shared memory")
    assert f.line == 7 and "float4: 1 instead of 4" in f.remedy


def test_rows_off_the_sector_boundary():
    """Four rows of 32 bytes that each straddle two sectors, because a row is 67 words long."""
    kernel = listing((5, "LDG.E R2, desc[UR4][R4.64]"), (6, "FFMA R2, R2, R6, R2"))
    row = dict(requests=13200, sectors=8 * 13200, sectors_ideal=4 * 13200, lines=4 * 13200, data_wavefronts=2 * 13200)
    table = counts(kernel, row, dict(data_wavefronts=0), warps=13200)
    f = about(made(kernel, table, problem=Problem(64, 64, 64, ldb=67)), "sectors per request")
    assert "loads 8 sectors per request where 4" in f.sentence and "leading dimensions multiples of 8" in f.remedy
    assert f.cost == pytest.approx(0.5)
    f = about(made(kernel, table), "sectors per request")
    assert "threadIdx.x walk along the row" in f.remedy


def test_integer_overhead():
    kernel = listing((3, "IADD3 R2, R4, R7, RZ"), (3, "LOP3.LUT R2, R5, R6, RZ, 0xc0, !PT"), (4, "FFMA R2, R4, R7, R2"))
    f = about(made(kernel, counts(kernel, warps=132000)), "index arithmetic")
    assert f.sentence.startswith("67 %") and f.line == 3


def test_nothing_to_say_of_nothing():
    assert findings([], Problem(1, 1, 1), H200) == []
    kernel = listing("EXIT")
    assert all(f.remedy for f in made(kernel, counts(kernel, dict(executed=0))))


def test_a_single_cell_is_not_told_to_use_smaller_tiles():
    found = of("tiled2d", 1)
    f = about(found, "has nothing to do")
    assert f.remedy == "A larger problem would fill it."
    assert about(found, "work on padding").sentence.startswith("99.99 % of the multiply-adds")
    deep = about(of("tiled2d", 1, k=4096), "has nothing to do")
    assert deep.remedy == "Split K over several blocks; a larger problem would fill it."
