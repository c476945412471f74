"""Every check of the simulator, set off by a small kernel that deserves it. Line numbers count from the signature's line 2."""

import pytest

from harness import stage, toolchain
from harness.errors import TilescopeError
from harness.problem import Problem
from harness.sim import Fault, run, simulate

T = "int t = threadIdx.x;\n"  # line 4 of the source


def fault(execute, body, **kw) -> Fault:
    with pytest.raises(Fault) as caught:
        execute(T + body, **kw)
    return caught.value


def test_a_good_kernel_passes(execute):
    done = execute(T + "C[t] = alpha * A[t & 3] * B[t];")
    assert done.tiles is None and done.launches[0].counts.executed.sum() > 0


@pytest.mark.parametrize(
    "body, kind, words",
    [
        ("C[t] = A[4 + t];", "out of bounds", "reads 0 bytes past the end of A (1 x 4)"),
        ("C[t] = B[t - 1];", "out of bounds", "reads 4 bytes before the start of B (4 x 32)"),
        ("C[t + 1] = 1;", "out of bounds", "writes 0 bytes past the end of C (1 x 32)"),
        ("C[t] = 2 * C[t] + 1;", "out of bounds", "reads C[0][0] although beta is 0"),
        ("((float*)B)[t] = 1;", "out of bounds", "writes B[0][0], which is an input"),
        ("C[t] = A[1 << 28];", "out of bounds", "far outside A, B and C"),
        ("C[t] = *(float*)((char*)B + 2);", "misaligned access", "aligned"),
        ("float4 v = *(float4*)(B + 1); C[t] = v.x + v.y + v.z + v.w;", "misaligned access", "aligned"),
        ("C[t] = 1; __threadfence(); C[t ^ 1] = 2;", "written twice", "C[0][1]"),
        ("if (t < 31) C[t] = 1;", "not written", "C[0][31] is never written"),
        ("if (t == 40) C[0] = 1;", "not written", "C[0][0] and 31 other cells"),
    ],
)
def test_global_memory(execute, body, kind, words):
    f = fault(execute, body)
    assert f.kind == kind and words in f.message
    if kind not in ("not written",):
        assert f.line == 5 and f.file.endswith("bad.cu") and f.text and f.block == (0, 0, 0)


def test_the_padding_behind_a_row_is_outside(execute):
    f = fault(execute, "C[t] = B[1 * ldb + 32 + (t & 1)];", problem=Problem(1, 32, 4, ldb=40))
    assert f.kind == "out of bounds" and "the padding behind row 1 of B, 1 element past its 32 columns" in f.message


def test_thread_and_block_are_named(execute):
    f = fault(
        execute, "if (blockIdx.y == 2 && threadIdx.y == 1 && t == 3) C[99] = A[77];", grid=(1, 3, 1), block=(8, 4, 1)
    )
    assert f.thread == (3, 1, 0) and f.block == (0, 2, 0)


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90])
def test_shared_out_of_bounds(execute, arch):
    f = fault(
        execute, "s[t + K * 8] = 1; __syncthreads(); C[t] = s[t];", before="static __shared__ float s[32];", arch=arch
    )
    assert f.kind == "shared out of bounds" and f.line == 5


def test_shared_memory_below_the_arrays_is_outside(execute):
    f = fault(execute, "s[t - K * 80] = 1; C[t] = s[t];", before="static __shared__ float s[32];")
    assert f.kind == "shared out of bounds"


def test_dynamic_shared_memory_ends_where_the_launch_says(execute):
    body = "s[t] = 1; __syncthreads(); C[t] = s[31 - t];"
    execute(T + body, before="extern __shared__ float s[];", shared=128)
    assert fault(execute, body, before="extern __shared__ float s[];", shared=64).kind == "shared out of bounds"


def test_uninitialised_shared_read(execute):
    f = fault(execute, "if (t < 31) s[t] = 1;\n__syncthreads();\nC[t] = s[t];", before="static __shared__ float s[32];")
    assert f.kind == "uninitialised shared read" and f.line == 7 and f.thread == (31, 0, 0)


WIDE = dict(before="static __shared__ float s[64];", problem=Problem(1, 64, 4), block=(64, 1, 1))


def test_read_after_write_without_a_barrier(execute):
    f = fault(execute, "s[t] = B[t];\nC[t] = s[63 - t];", **WIDE)
    assert f.kind == "race (read-after-write)" and {f.line, f.other_line} == {5, 6}


def test_write_after_read_without_a_barrier(execute):
    f = fault(execute, "s[t] = B[t];\n__syncthreads();\nfloat x = s[63 - t];\ns[t] = 0;\nC[t] = x;", **WIDE)
    assert f.kind == "race (write-after-read)" and {f.line, f.other_line} == {7, 8}


def test_write_after_write_without_a_barrier(execute):
    f = fault(execute, "s[t] = B[t];\ns[(t + 32) & 63] = 0;\n__syncthreads();\nC[t] = s[t];", **WIDE)
    assert f.kind == "race (write-after-write)"


def test_a_word_read_by_two_warps_and_written_by_the_first_of_them(execute):
    body = "s[t] = B[t];\n__syncthreads();\nfloat x = s[0];\nif (t < 32) s[t] = x;\n__syncthreads();\nC[t] = s[t] + x;"
    assert fault(execute, body, **WIDE).kind == "race (write-after-read)"


def test_a_warp_may_use_its_own_words_without_a_barrier(execute):
    execute(T + "s[t] = B[t];\n__syncwarp();\nC[t] = s[t ^ 31];", **WIDE)


def test_barriers_make_it_right(execute):
    execute(
        T
        + "s[t] = B[t];\n__syncthreads();\nfloat x = s[63 - t];\n__syncthreads();\ns[t] = x;\n__syncthreads();\nC[t] = s[63 - t];",
        **WIDE,
    )


def test_barrier_skipped_by_a_thread_that_returned(execute):
    f = fault(execute, "if (t == 40) return;\ns[t] = 1;\n__syncthreads();\nC[t] = s[t];", **WIDE)
    assert f.kind == "barrier not reached by all" and f.line == 7 and "(40, 0, 0) has already returned" in f.message


def test_barrier_in_one_branch_only(execute):
    body = "if (t < 32) { s[t] = 1;\n__syncthreads(); s[t + 32] = 2; }\nelse { C[t] = 3;\n__syncthreads(); C[t - 32] = 2; }"
    assert fault(execute, body, **WIDE).kind == "barrier not reached by all"


def test_endless_loop(execute):
    f = fault(execute, "volatile int* p = (int*)B; while (p[0] != 12345) ;\nC[t] = 1;", budget=100_000)
    assert f.kind == "endless loop" and f.line == 5


def test_missing_wait_for_cp_async(execute):
    copy = 'unsigned a = __cvta_generic_to_shared(s + t);\nasm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(a), "l"(B + t));\nasm volatile("cp.async.commit_group;");\n'
    wait = 'asm volatile("cp.async.wait_group 0;");\n'
    f = fault(execute, copy + "__syncthreads();\nC[t] = s[63 - t];", **WIDE)
    assert f.kind == "missing cp.async wait" and f.line == 9 and "line 6" in f.message
    assert fault(execute, copy + wait + "C[t] = s[63 - t];", **WIDE).kind == "race (read-after-write)"
    execute(T + copy + wait + "__syncthreads();\nC[t] = s[63 - t];", **WIDE)


def test_unknown_opcode_names_itself(execute):
    with pytest.raises(
        TilescopeError, match=r"not simulated: F2F\.F64.* at 0x[0-9a-f]+ \(bad.cu:5\) of bad: .* opcode F2F"
    ) as e:
        execute(T + "double x = B[t]; C[t] = x * x * 1.1;")
    assert "Report it" in e.value.remedy and "On a machine with a GPU" in e.value.remedy


def test_a_long_k_is_no_endless_loop(execute, monkeypatch):
    """The budget grows with K; a loop that does not end is still found."""
    monkeypatch.setattr(simulate, "BUDGET", 1000)
    long = Problem(1, 32, 20_000)
    execute(T + "float x = 0; for (int k = 0; k < K; k++) x += A[k] * B[k * ldb + t]; C[t] = x;", problem=long)
    assert (
        fault(execute, "volatile int* p = (int*)B; while (p[0] != 12345) ;\nC[t] = 1;", problem=long).kind
        == "endless loop"
    )


def test_unknown_opcode_that_is_never_reached_does_not_matter(execute):
    execute(T + "if (K == 77) { double x = B[t]; C[t] = x * x * 1.1; } else C[t] = 1;")


def test_wrong_number_of_arguments(tmp_path):
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void k(float* C) { C[0] = 1; }\n')
    s = stage.Stage("k", "", lambda p, t: [stage.Launch("k", (1, 1, 1), (1, 1, 1))], source=source)
    problem = Problem(1, 1, 1)
    with pytest.raises(TilescopeError, match="takes 1 arguments; launch main gives 11"):
        run(toolchain.compile(s, {}, 90), s.plan(problem, {}), problem, problem.operands())


def test_the_fault_of_the_lowest_block_is_reported(execute):
    f = fault(execute, "if (blockIdx.x >= 5) C[1000] = 1;", grid=(64, 1, 1), workers=2)
    assert f.block == (5, 0, 0)


FAULTY = [
    ("tiled_no_first_barrier", "race (read-after-write)", (64, 64, 64)),
    ("tiled_no_second_barrier", "race (write-after-read)", (64, 64, 64)),
    ("naive_no_guard", "out of bounds", (33, 33, 8)),
    ("tiled_no_padding", "uninitialised shared read", (33, 33, 40)),
    ("tiled_early_return", "barrier not reached by all", (33, 33, 40)),
    ("cpasync_no_wait", "missing cp.async wait", (64, 64, 64)),
]


@pytest.mark.parametrize("name, kind, shape", FAULTY)
def test_faulty_stages(name, kind, shape):
    s = stage.find(name)
    tunables = s.configure({})
    problem = Problem(*shape)
    with pytest.raises(Fault) as caught:
        run(toolchain.compile(s, tunables, 90), s.plan(problem, tunables), problem, problem.operands())
    assert caught.value.kind == kind


def test_mixed_axes_are_wrong_only_for_non_square_blocks():
    s = stage.find("naive_mixed_axes")
    problem = Problem(64, 64, 8)

    def go(**tunables):
        t = s.configure(tunables)
        return run(toolchain.compile(s, t, 90), s.plan(problem, t), problem, problem.operands())

    go(BX=16, BY=16)
    with pytest.raises(Fault, match="not written"):
        go(BX=32, BY=8)


def test_a_ring_of_cp_async_without_barriers(execute):
    """One warp copies, waits and overwrites the same words many times: its own words need no barrier."""
    body = (
        "float sum = 0; for (int k = 0; k < 300; k++) {\nunsigned a = __cvta_generic_to_shared(s + t);\n"
        'asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group; cp.async.wait_group 0;" :: "r"(a), "l"(B + t) : "memory");\n'
        "sum += s[t]; if (k & 1) s[t] = 0; }\nC[t] = sum;"
    )
    execute(T + body, before="static __shared__ float s[32];")


def test_a_copy_still_under_way_over_a_barrier(execute):
    """Two groups, one of them waited for: the words of the other are not there yet, barrier or not."""
    copy = 'a = __cvta_generic_to_shared(s + t + {0}); asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.commit_group;" :: "r"(a), "l"(B + t) : "memory");\n'
    body = (
        "unsigned a;\n"
        + copy.format(0)
        + copy.format(64)
        + 'asm volatile("cp.async.wait_group 1;" ::: "memory");\n__syncthreads();\n'
    )
    shape = WIDE | {"before": "static __shared__ float s[128];"}
    execute(T + body + "C[t] = s[63 - t];", **shape)
    f = fault(execute, body + "C[t] = s[127 - t];", **shape)
    assert f.kind == "missing cp.async wait" and f.other_line == 7
