// cpasync: doublebuffered with copies that go from global to shared memory by themselves, several tiles ahead.
//
//     step s:   wait for tile s   |   copy tile s + STAGES - 1   |   multiply tile s
//
//     buffers, STAGES = 3:        [ s: being multiplied ] [ s + 1: on its way ] [ s + 2: just asked for ]
//
//     A copy (cp.async) needs no register on the way and no second instruction to put the data down. Copies are closed
//     into groups, one a step; a thread waits until at most STAGES - 2 of its groups are under way.
//
// What it adds to `doublebuffered`: a pipeline as deep as shared memory allows, not registers. Copies of B take 16
// bytes where its rows are so aligned. A copy cannot transpose, so A goes down its columns word by word: eight
// neighbours of a row, four rows to a warp, which are whole sectors and meet in no bank. Needs sm_80.
//
//     make profile KERNEL=cpasync            make profile KERNEL=cpasync STAGES=4 BM=128 BN=128

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
#ifndef STAGES
#define STAGES 3
#endif

#define DOWN (BM / TM)
#define ACROSS (BN / TN)
#define THREADS (DOWN * ACROSS)
// How many blocks a multiprocessor shall have registers for.
#define BLOCKS (WARPS * 32 > THREADS ? WARPS * 32 / THREADS : 1)

typedef float TileA[BK][BM + PAD];
typedef float TileB[BK][BN];

// The first row (or column) of the q-th four of the patch of thread t of `threads`.
static __device__ __forceinline__ unsigned piece(unsigned t, unsigned q, unsigned threads)
{
    return (q * threads + t) * 4;
}

// Copies `depth` lines of the tiles; a WHOLE block has its tile of C within C, and rows of B that start at 16 bytes.
template <bool WHOLE, int WIDTH>
static __device__ __forceinline__ void load(TileA& As, TileB& Bs, const float* A, int lda, const float* B, int ldb,
                                            int rows, int cols, int depth)
{
    constexpr int SIDE = side<WIDTH, BN, THREADS>();
    copy_transposed<WHOLE, BM, BK, BM + PAD, THREADS>(&As[threadIdx.x % 8][threadIdx.x / 8], A, lda, rows, depth);
    copy_lines<WHOLE, WIDTH, BN, BK, THREADS>(&Bs[threadIdx.x / SIDE][threadIdx.x % SIDE * WIDTH], B, ldb, cols, depth);
}

// Adds the outer product of line k of the tiles to the thread's patch of C.
static __device__ __forceinline__ void multiply(const TileA& As, const TileB& Bs, unsigned k, unsigned tx, unsigned ty,
                                                float (&sum)[TM][TN])
{
    float a[TM], b[TN];
#pragma unroll
    for (unsigned i = 0; i < TM; i += 4)
        *(float4*)&a[i] = *(const float4*)&As[k][piece(ty, i / 4, DOWN)];
#pragma unroll
    for (unsigned j = 0; j < TN; j += 4)
        *(float4*)&b[j] = *(const float4*)&Bs[k][piece(tx, j / 4, ACROSS)];
#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; ++j)
            sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
}

// All that a block does. A, B and C point at the block's rows and columns; `rows` and `cols` lie ahead of it.
template <bool WHOLE>
static __device__ __forceinline__ void tile(TileA (&As)[STAGES], TileB (&Bs)[STAGES], int rows, int cols, int K,
                                            float alpha, const float* A, int lda, const float* B, int ldb, float beta,
                                            float* C, int ldc)
{
    unsigned tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
    float sum[TM][TN] = {};

    // A group is closed on every step, with copies or without: waiting counts groups.
    int left = K;  // from the next tile to copy
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (left >= BK) {
            load<WHOLE, WHOLE ? 4 : 1>(As[stage], Bs[stage], A, lda, B, ldb, rows, cols, BK);
            A += BK;
            B += (size_t)BK * ldb;
            left -= BK;
        }
        close_group();
    }
    unsigned now = 0, next = STAGES - 1;
    for (int step = K / BK; step > 0; --step) {
        wait_for_all_but<STAGES - 2>();
        __syncthreads();
        if (left >= BK) {  // into the buffer that all have left behind
            load<WHOLE, WHOLE ? 4 : 1>(As[next], Bs[next], A, lda, B, ldb, rows, cols, BK);
            A += BK;
            B += (size_t)BK * ldb;
            left -= BK;
        }
        close_group();
#pragma unroll
        for (int k = 0; k < BK; ++k)
            multiply(As[now], Bs[now], k, tx, ty, sum);
        next = now;
        now = now + 1 < STAGES ? now + 1 : 0;
    }

    // The tail of K: after the loop, so that it costs nothing where BK divides K.
    if (left > 0) {
        load<WHOLE, 1>(As[now], Bs[now], A, lda, B, ldb, rows, cols, left);
        close_group();
        wait_for_all_but<0>();
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < left; ++k)
            multiply(As[now], Bs[now], k, tx, ty, sum);
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
    cpasync(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
            int ldc)
{
    __shared__ alignas(16) TileA As[STAGES];
    __shared__ alignas(16) TileB Bs[STAGES];

    bool fours = aligned(B, ldb) && aligned(C, ldc);
    int rows = M - blockIdx.y * BM, cols = N - blockIdx.x * BN;
    A += blockIdx.y * BM * lda;
    B += blockIdx.x * BN;
    C += blockIdx.y * BM * ldc + blockIdx.x * BN;
    if (fours && rows >= BM && cols >= BN)
        tile<true>(As, Bs, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else
        tile<false>(As, Bs, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
