"""What single opcodes mean, against the same expression in Python: one kernel computes a word per thread."""

import numpy as np
import pytest

from harness.problem import Problem

BITS = np.array([0, 1, 2, 3, 5, 7, 31, 32, 33, 100, 255, 256, 12345, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE,
                 0xDEADBEEF, 0x01234567, 0x89ABCDEF, 0x55555555, 0xAAAAAAAA, 0x0F0F0F0F, 10**9, 3 * 10**9, 64, 96, 17, 0x00FF00FF], np.uint64)  # fmt: skip
OTHER = np.roll(BITS, 7)
SIGNED = BITS.astype(np.uint32).view(np.int32).astype(np.int64)
SIGNED_OTHER = OTHER.astype(np.uint32).view(np.int32).astype(np.int64)
M32 = 0xFFFFFFFF


def trunc_div(a, b):
    return np.array(
        [
            0 if y == 0 else int(abs(int(x)) // abs(int(y))) * (1 if (x < 0) == (y < 0) else -1)
            for x, y in zip(a, b, strict=True)
        ]
    )


def trunc_mod(a, b):
    return a - trunc_div(a, b) * b


CASES = {
    "x + y": BITS + OTHER,
    "x - y": BITS - OTHER,
    "x * y": BITS * OTHER,
    "__umulhi(x, y)": [int(a) * int(b) >> 32 for a, b in zip(BITS, OTHER, strict=True)],
    "(unsigned)__mulhi((int)x, (int)y)": [int(a) * int(b) >> 32 for a, b in zip(SIGNED, SIGNED_OTHER, strict=True)],
    "(unsigned)(((unsigned long long)x * y + x) >> 32)": [
        (int(a) * int(b) + int(a)) >> 32 for a, b in zip(BITS, OTHER, strict=True)
    ],
    "(unsigned)((((long long)(int)x << 20) - (int)y) >> 32)": [
        ((int(a) << 20) - int(b)) >> 32 for a, b in zip(SIGNED, SIGNED_OTHER, strict=True)
    ],
    "(unsigned)(((unsigned long long)x << 32 | y) >> (x & 63))": [
        (int(a) << 32 | int(b)) >> (int(a) & 63) for a, b in zip(BITS, OTHER, strict=True)
    ],
    "(unsigned)(((long long)((unsigned long long)x << 32 | y)) >> (y & 31))": [
        ((int(a) << 32) + int(b)) >> (int(b) & 31) for a, b in zip(SIGNED, OTHER, strict=True)
    ],
    "x << (y & 31)": [int(a) << (int(b) & 31) for a, b in zip(BITS, OTHER, strict=True)],
    "x >> (y & 31)": [int(a) >> (int(b) & 31) for a, b in zip(BITS, OTHER, strict=True)],
    "(unsigned)((int)x >> (y & 31))": [int(a) >> (int(b) & 31) for a, b in zip(SIGNED, OTHER, strict=True)],
    "__funnelshift_l(x, y, x & 31)": [
        ((int(b) << 32 | int(a)) << (int(a) & 31)) >> 32 for a, b in zip(BITS, OTHER, strict=True)
    ],
    "(x & y) ^ (x | ~y)": (BITS & OTHER) ^ (BITS | (~OTHER & np.uint64(M32))),
    "x < y ? 1u : 2u": np.where(BITS < OTHER, 1, 2),
    "(int)x < (int)y ? 1u : 2u": np.where(SIGNED < SIGNED_OTHER, 1, 2),
    "(long long)(int)x * 65537 < (long long)(int)y * 65536 ? 1u : 2u": np.where(
        SIGNED * 65537 < SIGNED_OTHER * 65536, 1, 2
    ),
    "(unsigned long long)x * 3 >= (unsigned long long)y * 5 ? 1u : 2u": np.where(BITS * 3 >= OTHER * 5, 1, 2),
    "min(x, y)": np.minimum(BITS, OTHER),
    "(unsigned)min((int)x - 1, (int)y)": np.minimum((SIGNED - 1 + 2**31) % 2**32 - 2**31, SIGNED_OTHER),
    "(unsigned)max((int)x + 7, (int)y)": np.maximum((SIGNED + 7 + 2**31) % 2**32 - 2**31, SIGNED_OTHER),
    "(unsigned)max((int)x, (int)y)": np.maximum(SIGNED, SIGNED_OTHER),
    "(unsigned)abs((int)x)": np.abs(SIGNED),
    "__popc(x)": np.array([int(a).bit_count() for a in BITS]),
    "__clz(x)": np.array([32 - int(a).bit_length() for a in BITS]),
    "__brev(x)": np.array([int(f"{int(a):032b}"[::-1], 2) for a in BITS]),
    "__byte_perm(x, y, 0x5173)": [
        sum((((int(b) << 32 | int(a)) >> 8 * s) & 255) << 8 * i for i, s in enumerate((3, 7, 1, 5)))
        for a, b in zip(BITS, OTHER, strict=True)
    ],
    "y ? x / y : 0": [0 if b == 0 else int(a) // int(b) for a, b in zip(BITS, OTHER, strict=True)],
    "y ? x % y : 0": [0 if b == 0 else int(a) % int(b) for a, b in zip(BITS, OTHER, strict=True)],
    "y ? (unsigned)((int)(x >> 1) / (int)y) : 0": trunc_div(BITS >> np.uint64(1), SIGNED_OTHER),
    "y ? (unsigned)((int)x % (int)(y | 2)) : 0": np.where(
        OTHER == 0, 0, trunc_mod(SIGNED, (OTHER | np.uint64(2)).astype(np.uint32).view(np.int32).astype(np.int64))
    ),
    "x / 7 + x % 10": BITS // 7 + BITS % 10,
    "__float_as_uint((float)x)": BITS.astype(np.float32).view(np.uint32),
    "__float_as_uint((float)(int)x)": SIGNED.astype(np.float32).view(np.uint32),
    "(unsigned)(int)((float)(int)x * 0.5f)": np.trunc(SIGNED.astype(np.float32) * np.float32(0.5)).astype(np.int64),
    "__shfl_xor_sync(~0u, x, 5)": BITS[np.arange(32) ^ 5],
    "__shfl_down_sync(~0u, x, 3)": np.where(np.arange(32) < 29, np.roll(BITS, -3), BITS),
    "__shfl_up_sync(~0u, x, 4)": np.where(np.arange(32) >= 4, np.roll(BITS, 4), BITS),
    "__shfl_sync(~0u, x, y & 31)": BITS[(OTHER & np.uint64(31)).astype(int)],
    "__ballot_sync(~0u, x & 1)": np.full(32, sum(int(a & np.uint64(1)) << i for i, a in enumerate(BITS))),
    "__any_sync(~0u, x == 7) * 2 + __all_sync(~0u, x == 7)": np.full(32, 2),
    "threadIdx.x * 1000 + blockDim.x + gridDim.x": np.arange(32) * 1000 + 33,
}


@pytest.mark.parametrize("arch", [75, 90])
def test_integer_expressions(execute, arch):
    """All expressions in one kernel, expression e of thread t in C[e][t]."""
    problem = Problem(len(CASES), 32, 2, seed=1)
    stores = "\n".join(f"R[{n} * ldc + t] = {expression};" for n, expression in enumerate(CASES))
    body = f"unsigned t = threadIdx.x, x = pick(t, 0), y = pick(t, 7); unsigned* R = (unsigned*)C;\n{stores}"
    picks = " ".join(f"case {i}: return {int(v)}u;" for i, v in enumerate(BITS))
    before = f"static __device__ unsigned pick(unsigned t, unsigned by) {{ switch ((t + 32 - by) & 31) {{ {picks} }} return 0; }}"
    done = execute(body, before=before, problem=problem, arch=arch)
    bits = done.c.view(np.uint32)
    for n, (expression, expected) in enumerate(CASES.items()):
        wanted = [int(v) & M32 for v in expected]
        assert bits[n].tolist() == wanted, expression


FLOATS = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "fminf(x, y)": np.minimum,
    "fmaxf(fabsf(x), -y)": lambda x, y: np.maximum(np.abs(x), -y),
    "x < y ? x : -y": lambda x, y: np.where(x < y, x, -y),
    "x >= y && x != 0 ? 1.f : 2.f": lambda x, y: np.where((x >= y) & (x != 0), 1, 2),
    "sqrtf(fabsf(x))": lambda x, y: np.sqrt(np.abs(x)),
    "x / (y * y + 1)": lambda x, y: x / np.float32(np.float64(y) * y + 1),
}


def test_float_expressions(execute):
    problem = Problem(len(FLOATS), 32, 2, seed=3)
    stores = "\n".join(f"C[{n} * ldc + t] = {expression};" for n, expression in enumerate(FLOATS))
    done = execute(f"unsigned t = threadIdx.x; float x = B[t], y = B[ldb + t];\n{stores}", problem=problem)
    x, y = problem.operands().b
    for n, (expression, f) in enumerate(FLOATS.items()):
        expected = np.asarray(f(x, y), np.float32)
        if (
            "/" in expression or "sqrt" in expression
        ):  # the hardware's approximate reciprocal is not modelled bit for bit
            assert np.allclose(done.c[n], expected, rtol=3e-7), expression
        else:
            assert done.c[n].tobytes() == expected.tobytes(), expression


def test_divergent_loops_reconverge(execute):
    """Thread t loops t times; the sum of 0..t-1 comes out, and every lane meets again before the shuffle."""
    body = "int t = threadIdx.x, s = 0;\nfor (int i = 0; i < t; i++) { if (i & 1) s += i; else s += __popc(i) ? i : 0; }\nC[t] = __shfl_xor_sync(~0u, s, 1);"
    done = execute(body)
    sums = np.array([t * (t - 1) // 2 for t in range(32)])
    assert done.c[0].tolist() == sums[np.arange(32) ^ 1].tolist()


def test_local_memory(execute):
    body = "int t = threadIdx.x; float v[24];\nfor (int i = 0; i < 24; i++) v[i] = i * t;\nfloat s = 0; for (int i = 0; i < K; i++) s += v[(t * 7 + i) % 24];\nC[t] = s;"
    done = execute(body, problem=Problem(1, 32, 9))
    assert done.c[0].tolist() == [sum((t * 7 + i) % 24 * t for i in range(9)) for t in range(32)]


@pytest.mark.parametrize("width, kind", [("unsigned char", 1), ("unsigned short", 2)])
def test_narrow_shared_words(execute, width, kind):
    body = "int t = threadIdx.x; s[t] = t * 3; __syncthreads(); C[t] = s[31 - t] + s[t ^ 1];"
    done = execute(body, before=f"static __shared__ {width} s[32];")
    assert done.c[0].tolist() == [3 * (31 - t) + 3 * (t ^ 1) for t in range(32)]
