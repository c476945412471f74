// Probes for `make roofs`: each loop keeps one resource of an SM busy and nothing else. They are not stages.
//
//   in, set    device memory the probe reads          out     one float a thread: keeps the work alive
//   n          times round the loop                   ticks   3 per warp: clock at start, at end, SM; or null
//
// Run on every SM, one wave of blocks. tests/test_roofs.py checks in the machine code that the loops are what they say:
// ptxas is free to reorder, merge and drop what it likes.

typedef unsigned int u32;
typedef unsigned long long u64;

#define PROBE(name, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define ARGUMENTS const float* __restrict__ in, float* out, int n, long long* ticks

__device__ __forceinline__ long long now() {
    long long t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
}

__device__ __forceinline__ u32 thread() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Reads the clock only where asked: the simulator has none, and runs the same machine code with ticks = null.
struct Stopwatch {
    long long* ticks;
    long long begin;
    __device__ __forceinline__ Stopwatch(long long* ticks) : ticks(ticks), begin(0) {
        if (ticks) begin = now();
    }
    __device__ __forceinline__ void stop() {
        if (ticks && threadIdx.x % 32 == 0) {
            long long end = now();
            u32 sm;
            asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
            long long* mine = ticks + 3 * (thread() / 32);
            mine[0] = begin, mine[1] = end, mine[2] = sm;
        }
    }
};

template <int COUNT>
__device__ __forceinline__ float sum(const float (&v)[COUNT]) {
    float t = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) t += v[i];
    return t;
}

// ---- FMA pipe and register operands: independent multiply-adds with 1, 2 and 3 registers to fetch each ----------

constexpr int CHAINS = 40;

template <int READS>
__device__ __forceinline__ void fma_loop(ARGUMENTS) {
    float c[CHAINS], x[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) c[i] = 0, x[i] = in[threadIdx.x * 131 + i & 8191];
    float y = copysignf(1, in[threadIdx.x]), w = in[threadIdx.x + 1];  // |y| = 1: no chain overflows or settles
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
#pragma unroll
        for (int s = 0; s < 5; ++s) {
#pragma unroll
            for (int i = 0; i < CHAINS; ++i) {
                if (READS == 1) c[i] = fmaf(c[i], y, w);
                if (READS == 2) c[i] = fmaf(x[i], y, c[i]);
                if (READS == 3) c[i] = fmaf(x[(i + s) % CHAINS], x[(i * 7 + 11 + 3 * s) % CHAINS], c[i]);
            }
        }
    }
    watch.stop();
    out[thread()] = sum(c) + (READS == 1 ? sum(x) : 0);
}

PROBE(fma_one_read, 256, 2)(ARGUMENTS) { fma_loop<1>(in, out, n, ticks); }
PROBE(fma_two_reads, 256, 2)(ARGUMENTS) { fma_loop<2>(in, out, n, ticks); }
PROBE(fma_three_reads, 256, 2)(ARGUMENTS) { fma_loop<3>(in, out, n, ticks); }

// An 8 x 8 outer product, four steps, its cells visited in rows, in rows of alternating direction, or in columns.
enum Order { ROWS, SNAKE, COLUMNS };

template <Order ORDER>
__device__ __forceinline__ void outer_loop(ARGUMENTS) {
    float a[4][8], b[4][8], c[8][8];
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            a[s][i] = in[threadIdx.x * 131 + s * 8 + i & 8191];
            b[s][i] = in[threadIdx.x * 17 + 4096 + s * 8 + i & 8191];
        }
#pragma unroll
    for (int i = 0; i < 64; ++i) c[i / 8][i % 8] = 0;
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int u = 0; u < 8; ++u)
#pragma unroll
                for (int v = 0; v < 8; ++v) {
                    const int i = ORDER == COLUMNS ? v : u;
                    const int j = ORDER == COLUMNS ? u : ORDER == SNAKE && u % 2 ? 7 - v : v;
                    c[i][j] = fmaf(a[s][i], b[s][j], c[i][j]);
                }
    }
    watch.stop();
    float t = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) t += sum(c[i]);
    out[thread()] = t;
}

PROBE(outer_rows, 256, 1)(ARGUMENTS) { outer_loop<ROWS>(in, out, n, ticks); }
PROBE(outer_snake, 256, 1)(ARGUMENTS) { outer_loop<SNAKE>(in, out, n, ticks); }
PROBE(outer_columns, 256, 1)(ARGUMENTS) { outer_loop<COLUMNS>(in, out, n, ticks); }

// ---- ALU and issue: logic on its own, and one logic instruction to three multiply-adds --------------------------

template <int FMAS>
__device__ __forceinline__ void alu_loop(ARGUMENTS) {
    constexpr int WORDS = 16, STEPS = FMAS ? 4 : 8;
    u32 x[WORDS];
    float c[FMAS * WORDS + 1], y = in[threadIdx.x];
#pragma unroll
    for (int i = 0; i < WORDS; ++i) x[i] = __float_as_uint(in[threadIdx.x * 131 + i & 8191]);
#pragma unroll
    for (int i = 0; i <= FMAS * WORDS; ++i) c[i] = in[threadIdx.x * 17 + i & 8191];
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                asm volatile("lop3.b32 %0, %0, %1, 0x5bd1e995, 0x96;" : "+r"(x[i]) : "r"(x[(i + 1) % WORDS]));
#pragma unroll
                for (int j = 0; j < FMAS; ++j)
                    asm volatile("fma.rn.f32 %0, %1, %1, %0;" : "+f"(c[FMAS * i + j]) : "f"(y));
            }
    }
    watch.stop();
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) bits ^= x[i];
    out[thread()] = sum(c) + bits;
}

PROBE(alu, 256, 4)(ARGUMENTS) { alu_loop<0>(in, out, n, ticks); }
PROBE(issue, 256, 2)(ARGUMENTS) { alu_loop<3>(in, out, n, ticks); }

// ---- Shared memory and LSU: conflict-free loads of 4, 8, 16 bytes; one word for all lanes; shuffles -------------

constexpr int LOADS = 8;  // in flight per thread

template <int WORDS, bool UNIFORM>
__device__ __forceinline__ void shared_loop(ARGUMENTS) {
    constexpr int STEP = 256 * WORDS;  // words from a thread's load to its next: too far apart for ptxas to merge them
    __shared__ __align__(1024) float tile[LOADS * STEP];
#pragma unroll 1
    for (int i = threadIdx.x; i < LOADS * STEP; i += 256) tile[i] = in[i & 8191];
    __syncthreads();
    u32 at = static_cast<u32>(__cvta_generic_to_shared(tile)) + (UNIFORM ? 0 : 4 * WORDS * threadIdx.x);
    float c[4] = {};
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
        at ^= 4 * WORDS;  // neighbours change places, so that no load is the same as one before
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            float v[4];
            const u32 from = at + 4 * STEP * i;
            if (WORDS == 1) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v[0]) : "r"(from));
            if (WORDS == 2) asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(from));
            if (WORDS == 4)
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(from));
#pragma unroll
            for (int j = 0; j < WORDS; ++j) c[j] += v[j];
        }
    }
    watch.stop();
    out[thread()] = sum(c);
}

PROBE(shared_32, 256, 4)(ARGUMENTS) { shared_loop<1, false>(in, out, n, ticks); }
PROBE(shared_64, 256, 4)(ARGUMENTS) { shared_loop<2, false>(in, out, n, ticks); }
PROBE(shared_128, 256, 4)(ARGUMENTS) { shared_loop<4, false>(in, out, n, ticks); }
PROBE(shared_uniform, 256, 4)(ARGUMENTS) { shared_loop<1, true>(in, out, n, ticks); }

PROBE(shuffle, 256, 4)(ARGUMENTS) {
    float v[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) v[i] = in[threadIdx.x * 131 + i & 8191];
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int i = 0; i < LOADS; ++i)
                asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, 0xffffffff;" : "+f"(v[i]));
    watch.stop();
    out[thread()] = sum(v);
}

// ---- L1: global loads that hit. STRIDE is the bytes from a lane's address to the next lane's --------------------
// 4 and 16: coalesced. 132: every lane in a line and a bank of its own. 128: in a line of its own, all in one bank.

template <int STRIDE, int WORDS>
__device__ __forceinline__ void l1_loop(ARGUMENTS) {
    u32 at = threadIdx.x % 32 * STRIDE;
    float c[4] = {};
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
        at ^= STRIDE < 32 ? STRIDE : 512;  // lanes change places
        const u64 here = reinterpret_cast<u64>(in) + at;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            float v[4];
            const u64 from = here + 1024 * i;
            if (WORDS == 1) asm volatile("ld.global.f32 %0, [%1];" : "=f"(v[0]) : "l"(from));
            if (WORDS == 4)
                asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(from));
#pragma unroll
            for (int j = 0; j < WORDS; ++j) c[j] += v[j];
        }
    }
    watch.stop();
    out[thread()] = sum(c);
}

PROBE(l1_32, 256, 4)(ARGUMENTS) { l1_loop<4, 1>(in, out, n, ticks); }
PROBE(l1_128, 256, 4)(ARGUMENTS) { l1_loop<16, 4>(in, out, n, ticks); }
PROBE(l1_lines, 256, 4)(ARGUMENTS) { l1_loop<132, 1>(in, out, n, ticks); }
PROBE(l1_lines_one_bank, 256, 4)(ARGUMENTS) { l1_loop<128, 1>(in, out, n, ticks); }

// ---- L2 and DRAM: the grid sweeps over a set of 16 * (mask + 1) bytes, again and again. L1 is bypassed ----------

template <bool READ, bool WRITE>
__device__ __forceinline__ void stream_loop(const float4* from, float4* to, int n, u32 mask, float* out, long long* ticks) {
    constexpr int UNROLL = 4;
    u32 at = blockIdx.x * 256 * UNROLL + threadIdx.x;
    float c[4] = {};
    float4 v[UNROLL];
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k, at += gridDim.x * 256 * UNROLL) {
        const u32 here = at & mask;
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            if (READ) v[i] = __ldcg(from + here + 256 * i);
            if (!READ) {  // as good as random, in [1, 2)
                u32 bits = (here + 256 * i) * 2654435761u;
                v[i].x = __uint_as_float(0x3f800000 | bits >> 9), v[i].y = __uint_as_float(0x3f800000 | (bits & 0x7fffff));
                v[i].z = v[i].x * 0.5f, v[i].w = v[i].y - 0.5f;
            }
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            if (WRITE) __stcg(to + here + 256 * i, v[i]);
            if (!WRITE) c[0] += v[i].x, c[1] += v[i].y, c[2] += v[i].z, c[3] += v[i].w;
        }
    }
    watch.stop();
    if (!WRITE) out[thread()] = sum(c);
}

#define STREAM_ARGUMENTS const float4 *from, float4 *to, float *out, int n, u32 mask, long long *ticks
PROBE(stream_read, 256, 8)(STREAM_ARGUMENTS) { stream_loop<true, false>(from, to, n, mask, out, ticks); }
PROBE(stream_copy, 256, 8)(STREAM_ARGUMENTS) { stream_loop<true, true>(from, to, n, mask, out, ticks); }
PROBE(stream_write, 256, 8)(STREAM_ARGUMENTS) { stream_loop<false, true>(from, to, n, mask, out, ticks); }

// ---- Latencies: one thread, each instruction waits for the one before -------------------------------------------

constexpr int CHASE = 16;  // steps a time round the loop

PROBE(latency_fma, 32, 1)(ARGUMENTS) {
    float c = in[0], y = in[1], w = in[2];
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < CHASE; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(c) : "f"(y), "f"(w));
    watch.stop();
    out[thread()] = c;
}

PROBE(latency_shared, 32, 1)(ARGUMENTS) {
    constexpr int WORDS = 1024;
    __shared__ u32 next[WORDS];
    u32 base = static_cast<u32>(__cvta_generic_to_shared(next));
#pragma unroll 1
    for (int i = threadIdx.x; i < WORDS; i += 32) next[i] = base + 4 * ((i + 357) % WORDS);
    __syncthreads();
    u32 at = base + 4 * threadIdx.x;
    Stopwatch watch(ticks);
#pragma unroll 1
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < CHASE; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
    watch.stop();
    out[thread()] = at;
}

// `at` is where the chain of pointers is entered; where it was left goes to `out`, 8 bytes.
#define CHASE_ARGUMENTS const float *at, float *out, int n, long long *ticks
#define CHASE_LOOP(HOW)                                                                             \
    u64 p = reinterpret_cast<u64>(at);                                                              \
    Stopwatch watch(ticks);                                                                         \
    _Pragma("unroll 1") for (int k = 0; k < n; ++k)                                                 \
        _Pragma("unroll") for (int i = 0; i < CHASE; ++i) asm volatile(HOW " %0, [%0];" : "+l"(p)); \
    watch.stop();                                                                                   \
    *reinterpret_cast<u64*>(out) = p;

PROBE(latency_l1, 32, 1)(CHASE_ARGUMENTS) { CHASE_LOOP("ld.global.u64") }
PROBE(latency_l2, 32, 1)(CHASE_ARGUMENTS) { CHASE_LOOP("ld.global.cg.u64") }

// Ties places at multiples of `stride` into one ring, in the order given.
extern "C" __global__ void link(float* base, const u32* order, int count, int stride) {
    for (u32 i = thread(); i < count; i += gridDim.x * blockDim.x) {
        u64 first = reinterpret_cast<u64>(base);
        *reinterpret_cast<u64*>(first + u64(order[i]) * stride) = first + u64(order[(i + 1) % count]) * stride;
    }
}
