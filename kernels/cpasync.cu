// cpasync: doublebuffered with copies that go from global to shared memory by themselves, several tiles ahead.
//
//     step s:   wait for tile s   |   copy tile s + STAGES - 1   |   multiply tile s
//
//     buffers, STAGES = 3:        [ s: being multiplied ] [ s + 1: on its way ] [ s + 2: just asked for ]
//
//     A copy (cp.async) needs no register on the way and no second instruction to put the data down. Copies are closed
//     into groups, one a step; a thread waits until at most STAGES - 2 of its groups are under way.
//
// What it adds to `doublebuffered`: a pipeline as deep as shared memory allows, not registers, in copies of 16 bytes
// where rows are so aligned. A copy cannot transpose, so the tile of A lies as it does in A, and a thread reads four
// neighbours of each of its rows at once: operands for four lines. Eight lanes read the same sixteen bytes, so that up
// to BK = 16 rows need no padding; and the longer they are, the fewer of them a warp's copy is made of. Needs sm_80.
//
//     make profile KERNEL=cpasync            make profile KERNEL=cpasync STAGES=2 BM=128 BN=128

#include "pieces.cuh"

#ifndef BM
#define BM 64
#endif
#ifndef BN
#define BN 64
#endif
#ifndef BK
#define BK 16
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
#ifndef STAGES
#define STAGES 3
#endif

#define DOWN (BM / TM)
#define ACROSS (BN / TN)
#define THREADS (DOWN * ACROSS)
// How many blocks a multiprocessor shall have registers for.
#define BLOCKS (WARPS * 32 > THREADS ? WARPS * 32 / THREADS : 1)

typedef float TileA[BM][BK];
typedef float TileB[BK][BN];

// A thread's patch: every DOWN-th row, and fours of columns ACROSS fours apart.
static __device__ __forceinline__ unsigned row(unsigned ty, unsigned i)
{
    return i * DOWN + ty;
}

static __device__ __forceinline__ unsigned column(unsigned tx, unsigned j)
{
    return (j / 4 * ACROSS + tx) * 4;
}

// Copies the first `depth` of the columns of a tile of A, WIDTH words at a time. `to` is the thread's first place. Of
// the matrix `rows` rows lie ahead, and the last of them stands in for those beyond it.
template <bool WHOLE, int WIDTH>
static __device__ __forceinline__ void copy_rows(float* to, const float* A, int lda, int rows, int depth)
{
    constexpr int SIDE = side<WIDTH, BK, THREADS>(), ROWS = THREADS / SIDE;
    constexpr bool ALL = THREADS % SIDE == 0 && BM % ROWS == 0;  // threads have something to do on every trip
    int r = threadIdx.x / SIDE, k = threadIdx.x % SIDE * WIDTH;
#pragma unroll
    for (int r0 = 0; r0 < BM; r0 += ROWS)
#pragma unroll
        for (int k0 = 0; k0 < BK; k0 += SIDE * WIDTH)
            if ((ALL || (r < ROWS && r + r0 < BM)) && (depth == BK || k + k0 < depth))
                copy<4 * WIDTH>(to + r0 * BK + k0,
                                A + (WHOLE ? r * lda + r0 * lda : min(r + r0, rows - 1) * lda) + k + k0);
}

// Copies `depth` lines of the tiles; a WHOLE block has its tile of C within C, and rows that start at 16 bytes.
template <bool WHOLE, int WIDTH>
static __device__ __forceinline__ void load(TileA& As, TileB& Bs, const float* A, int lda, const float* B, int ldb,
                                            int rows, int cols, int depth)
{
    constexpr int SIDE_A = side<WIDTH, BK, THREADS>(), SIDE_B = side<WIDTH, BN, THREADS>();
    float* to_a = &As[threadIdx.x / SIDE_A][threadIdx.x % SIDE_A * WIDTH];
    float* to_b = &Bs[threadIdx.x / SIDE_B][threadIdx.x % SIDE_B * WIDTH];
    copy_rows<WHOLE, WIDTH>(to_a, A, lda, rows, depth);
    copy_lines<WHOLE, WIDTH, BN, BK, THREADS>(to_b, B, ldb, cols, depth);
}

// Adds the outer products of LINES lines of the tiles, from line k on, to the thread's patch of C.
template <int LINES>
static __device__ __forceinline__ void multiply(const TileA& As, const TileB& Bs, unsigned k, unsigned tx, unsigned ty,
                                                float (&sum)[TM][TN])
{
    float a[TM][LINES], b[TN];
#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
        if (LINES == 4)
            *(float4*)a[i] = *(const float4*)&As[row(ty, i)][k];
        else
            a[i][0] = As[row(ty, i)][k];
#pragma unroll
    for (unsigned d = 0; d < LINES; ++d) {
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4)
            *(float4*)&b[j] = *(const float4*)&Bs[k + d][column(tx, j)];
#pragma unroll
        for (unsigned i = 0; i < TM; ++i)
#pragma unroll
            for (unsigned j = 0; j < TN; ++j)
                sum[i][j] = fmaf(a[i][d], b[j], sum[i][j]);
    }
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
        for (int k = 0; k < BK; k += 4)
            multiply<4>(As[now], Bs[now], k, tx, ty, sum);
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
            multiply<1>(As[now], Bs[now], k, tx, ty, sum);
    }

#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; j += 4) {
            unsigned r = row(ty, i), c = column(tx, j);
            store<WHOLE>(C + r * ldc + c, alpha, &sum[i][j], beta, (int)r < rows ? cols - (int)c : 0);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    cpasync(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
            int ldc)
{
    __shared__ alignas(16) TileA As[STAGES];
    __shared__ alignas(16) TileB Bs[STAGES];

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
