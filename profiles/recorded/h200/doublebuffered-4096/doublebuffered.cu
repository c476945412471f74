// doublebuffered: bankfree with two tiles of each matrix in shared memory: while one is multiplied, the next is on its
// way.
//
//     step       fetch into registers       multiply from       put down in       barrier
//     s          tile s + 1                 buffer s % 2        the other one     one
//     s + 1      tile s + 2                 the other one       buffer s % 2      one
//
//     The loads are issued before the multiply-adds and their results are first needed after them, so a warp does not
//     wait for global memory while it has work.
//
// What it adds to `bankfree`: time for a load to arrive; and one barrier a step, not two, since the tile that is
// written is never one that others still read. The price: registers for what is on its way, twice the shared memory.
//
//     make profile KERNEL=doublebuffered            make profile KERNEL=doublebuffered BM=128 BN=128

#include "pieces.cuh"

#ifndef BM
#define BM 64
#endif
#ifndef BN
#define BN 64
#endif
#ifndef BK
#define BK 8
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 8
#endif
#ifndef WARPS
#define WARPS 12
#endif
#ifndef PAD
#define PAD 4
#endif
#ifndef SWIZZLE
#define SWIZZLE 0
#endif

#define DOWN (BM / TM)
#define ACROSS (BN / TN)
#define THREADS (DOWN * ACROSS)
// How many blocks a multiprocessor shall have registers for.
#define BLOCKS (WARPS * 32 > THREADS ? WARPS * 32 / THREADS : 1)

typedef float TileA[BK][BM + PAD];
typedef float TileB[BK][BN];

// Where row r of the tile stands in line k of As: each of the BK / 4 threads that have the same row gets other banks.
static __device__ __forceinline__ unsigned place(unsigned k, unsigned r)
{
    return SWIZZLE ? r ^ k / 4 * (128 / BK) : r;
}

// The first row (or column) of the q-th four of the patch of thread t of `threads`.
static __device__ __forceinline__ unsigned piece(unsigned t, unsigned q, unsigned threads)
{
    return (q * threads + t) * 4;
}

// A thread's share of a tile, a float4 each; the last may be one that few threads have.
#define SHARE_A ((BM * BK / 4 + THREADS - 1) / THREADS)
#define SHARE_B ((BK * BN / 4 + THREADS - 1) / THREADS)

// `rows`, `cols` and `depth` say how much of the matrices lies ahead; a WHOLE step does not ask.
template <bool WHOLE>
static __device__ __forceinline__ void fetch(float4 (&a)[SHARE_A], float4 (&b)[SHARE_B], const float* A, int lda,
                                             const float* B, int ldb, int rows, int cols, int depth)
{
#pragma unroll
    for (unsigned n = 0; n < SHARE_A; ++n) {
        unsigned i = threadIdx.x + n * THREADS, r = i / (BK / 4), k = i % (BK / 4) * 4;
        if (BM * BK / 4 % THREADS == 0 || i < BM * BK / 4)
            a[n] = quad<WHOLE>(A + r * lda + k, (int)r < rows ? depth - (int)k : 0);
    }
#pragma unroll
    for (unsigned n = 0; n < SHARE_B; ++n) {
        unsigned i = threadIdx.x + n * THREADS, k = i / (BN / 4), c = i % (BN / 4) * 4;
        if (BK * BN / 4 % THREADS == 0 || i < BK * BN / 4)
            b[n] = quad<WHOLE>(B + k * ldb + c, (int)k < depth ? cols - (int)c : 0);
    }
}

static __device__ __forceinline__ void put(TileA& As, TileB& Bs, const float4 (&a)[SHARE_A],
                                           const float4 (&b)[SHARE_B])
{
#pragma unroll
    for (unsigned n = 0; n < SHARE_A; ++n) {
        unsigned i = threadIdx.x + n * THREADS, r = i / (BK / 4), k = i % (BK / 4) * 4;
        if (BM * BK / 4 % THREADS == 0 || i < BM * BK / 4) {
            As[k][place(k, r)] = a[n].x;
            As[k + 1][place(k, r)] = a[n].y;
            As[k + 2][place(k, r)] = a[n].z;
            As[k + 3][place(k, r)] = a[n].w;
        }
    }
#pragma unroll
    for (unsigned n = 0; n < SHARE_B; ++n) {
        unsigned i = threadIdx.x + n * THREADS, k = i / (BN / 4), c = i % (BN / 4) * 4;
        if (BK * BN / 4 % THREADS == 0 || i < BK * BN / 4)
            *(float4*)&Bs[k][c] = b[n];
    }
}

// Four operands of A: one load where lines start at multiples of 16 bytes, else four.
static __device__ __forceinline__ float4 operand(const float* p)
{
    if (PAD % 4 == 0)
        return *(const float4*)p;
    return make_float4(p[0], p[1], p[2], p[3]);
}

// Adds the product of the tiles to the thread's patch of C.
static __device__ __forceinline__ void multiply(const TileA& As, const TileB& Bs, unsigned tx, unsigned ty,
                                                float (&sum)[TM][TN])
{
#pragma unroll
    for (unsigned k = 0; k < BK; ++k) {
        float a[TM], b[TN];
#pragma unroll
        for (unsigned i = 0; i < TM; i += 4)
            *(float4*)&a[i] = operand(&As[k][place(k, piece(ty, i / 4, DOWN))]);
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4)
            *(float4*)&b[j] = *(const float4*)&Bs[k][piece(tx, j / 4, ACROSS)];
#pragma unroll
        for (unsigned i = 0; i < TM; ++i)
#pragma unroll
            for (unsigned j = 0; j < TN; ++j)
                sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

// All that a block does. A, B and C point at the block's rows and columns; `rows` and `cols` lie ahead of it.
template <bool WHOLE>
static __device__ __forceinline__ void tile(TileA (&As)[2], TileB (&Bs)[2], int rows, int cols, int K, float alpha,
                                            const float* A, int lda, const float* B, int ldb, float beta, float* C,
                                            int ldc)
{
    unsigned tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS, now = 0;
    float sum[TM][TN] = {};
    float4 a[SHARE_A], b[SHARE_B];

    int left = K;
    if (left >= BK) {
        fetch<WHOLE>(a, b, A, lda, B, ldb, rows, cols, left);
        put(As[0], Bs[0], a, b);
        __syncthreads();
        // The last tile is multiplied after the loop: where loads stand in a test, the compiler moves them to `put`.
        for (; left >= 2 * BK; left -= BK) {
            A += BK;
            B += (size_t)BK * ldb;
            fetch<WHOLE>(a, b, A, lda, B, ldb, rows, cols, left - BK);
            multiply(As[now], Bs[now], tx, ty, sum);
            now ^= 1;
            put(As[now], Bs[now], a, b);
            __syncthreads();
        }
        A += BK;
        B += (size_t)BK * ldb;
        multiply(As[now], Bs[now], tx, ty, sum);
        now ^= 1;
        left -= BK;
    }

    // The tail of K: after the loop, so that it costs nothing where BK divides K.
    if (left > 0) {
        fetch<false>(a, b, A, lda, B, ldb, rows, cols, left);
        put(As[now], Bs[now], a, b);
        __syncthreads();
        multiply(As[now], Bs[now], tx, ty, sum);
    }

#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4) {
            unsigned r = piece(ty, i / 4, DOWN) + i % 4, c = piece(tx, j / 4, ACROSS);
            store<WHOLE>(C + r * ldc + c, alpha, &sum[i][j], beta, (int)r < rows ? cols - (int)c : 0);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    doublebuffered(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta,
                   float* C, int ldc)
{
    __shared__ alignas(16) TileA As[2];
    __shared__ alignas(16) TileB Bs[2];

    bool fours = aligned(A, lda) && aligned(B, ldb) && aligned(C, ldc);
    int rows = M - blockIdx.y * BM, cols = N - blockIdx.x * BN;
    A += blockIdx.y * BM * lda;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * ldc + blockIdx.x * BN;
    if (fours && rows >= BM && cols >= BN)
        tile<true>(As, Bs, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else
        tile<false>(As, Bs, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
