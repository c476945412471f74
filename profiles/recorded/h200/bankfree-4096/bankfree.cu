// bankfree: vectorized without bank conflicts: patches in pieces that lie apart, and padded or swizzled lines of A.
//
//     Who reads what of a line of Bs, 32 banks wide:     A quarter of a warp, eight threads, is served at a time.
//       vectorized   00000000 11111111 22222222 ..       Where a thread's TN words lie together, threads 0 and 4 meet
//       bankfree     0000 1111 2222 3333 4444 5555 ..    in a bank; in pieces of four, eight threads fill the banks.
//
//     Who writes what of As: BK / 4 threads have the same row, each four lines from the next, in the same bank.
//       PAD          makes lines longer, so that the next four lines begin 4 * PAD banks on; with BK=8, PAD=4 is right
//       SWIZZLE=1    puts row r of line k at r ^ (k / 4 * 128 / BK), for any BK up to 32, and needs no room
//
// What it adds to `vectorized`: nothing but places. PAD=1, the usual advice, is for single words: with BK=32 it frees
// the writes of conflicts, but lines then start anywhere, and four operands of A take more than one load.
//
//     make profile KERNEL=bankfree BK=32 PAD=1            make profile KERNEL=bankfree BK=16 PAD=0 SWIZZLE=1

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
            As[k][place(k, r)] = v.x;
            As[k + 1][place(k, r)] = v.y;
            As[k + 2][place(k, r)] = v.z;
            As[k + 3][place(k, r)] = v.w;
        }
    }
#pragma unroll
    for (unsigned offset = 0; offset < BK * BN / 4; offset += THREADS) {
        unsigned i = threadIdx.x + offset, k = i / (BN / 4), c = i % (BN / 4) * 4;
        if (BK * BN / 4 % THREADS == 0 || i < BK * BN / 4)
            *(float4*)&Bs[k][c] = quad<WHOLE>(B + k * ldb + c, (int)k < depth ? cols - (int)c : 0);
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
static __device__ __forceinline__ void tile(TileA& As, TileB& Bs, int rows, int cols, int K, float alpha,
                                            const float* A, int lda, const float* B, int ldb, float beta, float* C,
                                            int ldc)
{
    unsigned tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
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
            unsigned r = piece(ty, i / 4, DOWN) + i % 4, c = piece(tx, j / 4, ACROSS);
            store<WHOLE>(C + r * ldc + c, alpha, &sum[i][j], beta, (int)r < rows ? cols - (int)c : 0);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    bankfree(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
             int ldc)
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
