// vectorized: tiled2d in fours: float4 from global memory, float4 operands from shared memory, float4 to C.
//
//     A             As, transposed             An outer product wants, at each k, TM neighbours of a column of A and TN
//     | 0 1 2 3 |   | 0 . . . |                of a row of B. A line of the transposed As holds the former side by
//     | . . . . |   | 1 . . . |                side, as Bs does the latter: (TM + TN) / 4 loads a k, not TM + TN.
//     | . . . . |   | 2 . . . |
//                   | 3 . . . |                A thread fetches four neighbours of a row of A with one load and
//                                              writes them down a column of As.
//
// What it adds to `tiled2d`: fewer, wider memory instructions, at the price of bank conflicts in both tiles. A float4
// must start at a multiple of 16 bytes. One launch does it all: blocks that own a whole tile take the fast path, if the
// rows of all three matrices are so aligned; blocks at the edge, and all where they are not, go element by element.
//
//     make profile KERNEL=vectorized            make profile KERNEL=vectorized BM=128 BN=128

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
#define WARPS 16
#endif

#define THREADS ((BM / TM) * (BN / TN))
// How many blocks a multiprocessor shall have registers for.
#define BLOCKS (WARPS * 32 > THREADS ? WARPS * 32 / THREADS : 1)

typedef float TileA[BK][BM];
typedef float TileB[BK][BN];

// `rows`, `cols` and `depth` say how much of the matrices lies ahead; a WHOLE step does not ask.
template <bool WHOLE>
static __device__ __forceinline__ void load(TileA& As, TileB& Bs, const float* A, int lda, const float* B, int ldb,
                                            int rows, int cols, int depth)
{
#pragma unroll
    for (unsigned offset = 0; offset < BM * BK / 4; offset += THREADS) {
        unsigned i = threadIdx.x + offset, r = i / (BK / 4), k = i % (BK / 4) * 4;
        if (BM * BK / 4 % THREADS == 0 || i < BM * BK / 4) {
            float4 v = quad<WHOLE>(A + r * lda + k, (int)r < rows ? depth - (int)k : 0);
            As[k][r] = v.x;
            As[k + 1][r] = v.y;
            As[k + 2][r] = v.z;
            As[k + 3][r] = v.w;
        }
    }
#pragma unroll
    for (unsigned offset = 0; offset < BK * BN / 4; offset += THREADS) {
        unsigned i = threadIdx.x + offset, k = i / (BN / 4), c = i % (BN / 4) * 4;
        if (BK * BN / 4 % THREADS == 0 || i < BK * BN / 4)
            *(float4*)&Bs[k][c] = quad<WHOLE>(B + k * ldb + c, (int)k < depth ? cols - (int)c : 0);
    }
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
            *(float4*)&a[i] = *(const float4*)&As[k][ty * TM + i];
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4)
            *(float4*)&b[j] = *(const float4*)&Bs[k][tx * TN + j];
#pragma unroll
        for (unsigned i = 0; i < TM; ++i)
#pragma unroll
            for (unsigned j = 0; j < TN; ++j)
                sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

// All that a block does. A, B and C point at the block's rows and columns; `rows` and `cols` lie ahead of it.
template <bool WHOLE>
static __device__ __forceinline__ void tile(TileA& As, TileB& Bs, int rows, int cols, int K, float alpha,
                                            const float* A, int lda, const float* B, int ldb, float beta, float* C,
                                            int ldc)
{
    unsigned tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    float sum[TM][TN] = {};

    int left = K;
    for (; left >= BK; left -= BK) {
        load<WHOLE>(As, Bs, A, lda, B, ldb, rows, cols, left);
        __syncthreads();
        A += BK;
        B += (size_t)BK * ldb;
        multiply(As, Bs, tx, ty, sum);
        __syncthreads();
    }

    // The tail of K: after the loop, so that it costs nothing where BK divides K.
    if (left > 0) {
        load<false>(As, Bs, A, lda, B, ldb, rows, cols, left);
        __syncthreads();
        multiply(As, Bs, tx, ty, sum);
    }

#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4) {
            unsigned r = ty * TM + i, c = tx * TN + j;
            store<WHOLE>(C + r * ldc + c, alpha, &sum[i][j], beta, (int)r < rows ? cols - (int)c : 0);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    vectorized(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta,
               float* C, int ldc)
{
    __shared__ alignas(16) TileA As;
    __shared__ alignas(16) TileB Bs;

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
