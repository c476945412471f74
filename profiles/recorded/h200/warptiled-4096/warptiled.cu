// warptiled: a block's tile, a warp's, a thread's; and multiply-adds in an order that spares the registers.
//
//     block BM x BN        warp WM x WN, its lanes        thread TM x TN: pieces of four rows and four columns, DOWN
//     | w0 | w2 |          |  0  8 16 24 |                (ACROSS) pieces apart; its multiply-adds go down one column
//     | w1 | w3 |          |  1  9 17 25 |                and up the next, so that an operand of B stays for TM of them
//
//     k          read the operands of k + 1, then multiply those of k: there is work while shared memory answers
//     last k     wait for the next tile, the step's one barrier, and read its first operands, then multiply
//
// What it adds to `cpasync`: larger patches, so fewer operands from shared memory; operands that are there before they
// are needed; and blocks in groups of GROUP rows of tiles, column by column, so that those at work together find rows
// of A and columns of B in L2. A multiply-add wants three operands, and the registers give a scheduler one of each of
// two banks a cycle: hence the order. With ASYNC_A=0 whole tiles of A come through registers, in loads of four words.
//
//     make profile KERNEL=warptiled            make profile KERNEL=warptiled TM=16 TN=8 ASYNC_A=1

#include "pieces.cuh"

#ifndef BM
#define BM 128
#endif
#ifndef BN
#define BN 128
#endif
#ifndef BK
#define BK 8
#endif
#ifndef WM
#define WM 64
#endif
#ifndef WN
#define WN 64
#endif
#ifndef TM
#define TM 8
#endif
#ifndef TN
#define TN 16
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef PAD
#define PAD 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef ASYNC_A
#define ASYNC_A 0
#endif

#define DOWN (WM / TM)
#define ACROSS (WN / TN)
#define THREADS ((BM / WM) * (BN / WN) * 32)
// How many blocks a multiprocessor shall have registers for.
#define BLOCKS (WARPS * 32 > THREADS ? WARPS * 32 / THREADS : 1)

struct Tiles {
    float A[BK][BM + PAD];
    float B[BK][BN];
};
#define NEXT ((int)(sizeof(Tiles) / sizeof(float)))  // from a place in one buffer to the same in the next

// A through registers: a thread has four words of every (THREADS / 2)th row.
#define TRIPS ((BM + THREADS / 2 - 1) / (THREADS / 2))
typedef float Quads[BK / 8][TRIPS][4];

template <class F>
static __device__ __forceinline__ void each_quad(F f)
{
#pragma unroll
    for (int n = 0; n < BK / 8 * TRIPS; ++n) {
        int k = n / TRIPS, r = n % TRIPS;
        if (BM % (THREADS / 2) == 0 || threadIdx.x / 2 + r * (THREADS / 2) < BM)
            f(k, r);
    }
}

static __device__ __forceinline__ void fetch(Quads& quads, const float* A, int lda)
{
    A += threadIdx.x / 2 * lda + threadIdx.x % 2 * 4;
    each_quad([&](int k, int r) {
        *(float4*)quads[k][r] = *(const float4*)(A + r * (THREADS / 2) * lda + 8 * k);
    });
}

static __device__ __forceinline__ void put(float* to, const Quads& quads)
{
    each_quad([&](int k, int r) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            to[(8 * k + e) * (BM + PAD) + r * (THREADS / 2)] = quads[k][r][e];
    });
}

struct Operands {
    float a[TM], b[TN];
};

// The operands of line k for ROWS x COLS of the patch; a and b point at the thread's first ones in line 0.
template <int ROWS, int COLS>
static __device__ __forceinline__ void read(Operands& to, const float* a, const float* b, int k)
{
#pragma unroll
    for (int i = 0; i < ROWS; i += 4)
        *(float4*)&to.a[i] = *(const float4*)&a[k * (BM + PAD) + i * DOWN];
#pragma unroll
    for (int j = 0; j < COLS; j += 4)
        *(float4*)&to.b[j] = *(const float4*)&b[k * BN + j * ACROSS];
}

// Runs along the shorter side of the patch, back and forth: an operand of the longer side serves a whole run.
template <int ROWS, int COLS>
static __device__ __forceinline__ void multiply(const Operands& of, float (&sum)[TM][TN])
{
    constexpr int RUN = ROWS < COLS ? ROWS : COLS;
#pragma unroll
    for (int n = 0; n < ROWS * COLS; ++n) {
        int slow = n / RUN, fast = slow % 2 ? RUN - 1 - n % RUN : n % RUN;
        int i = ROWS < COLS ? fast : slow, j = ROWS < COLS ? slow : fast;
        sum[i][j] = fmaf(of.a[i], of.b[j], sum[i][j]);
    }
}

// All that a block does. A, B and C point at the block's rows and columns; `rows` and `cols` lie ahead of it. Where so few
// of them do that only ROWS x COLS of a patch can be in C, no more is multiplied, and by warps that have a cell alone.
template <bool WHOLE, int ROWS = TM, int COLS = TN>
static __device__ __forceinline__ void tile(Tiles (&tiles)[STAGES], int rows, int cols, int K, float alpha,
                                            const float* A, int lda, const float* B, int ldb, float beta, float* C,
                                            int ldc)
{
    constexpr bool COPIED = ASYNC_A || !WHOLE, THIN = ROWS < TM || COLS < TN;
    constexpr int WIDTH = WHOLE ? 4 : 1, SIDE = side<WIDTH, BN, THREADS>();
    int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Lanes follow the side that has more of them: those that read the same words then come together, in one wavefront.
    int y = DOWN < ACROSS ? lane / ACROSS : lane % DOWN, x = DOWN < ACROSS ? lane % ACROSS : lane / DOWN;
    int row = warp % (BM / WM) * WM, col = warp / (BM / WM) * WN;
    bool idle = THIN && (row >= rows || col >= cols);
    row += y * 4, col += x * 4;

    // Places in the buffers, moved on from step to step: what the compiler can work out anew, it does, again and again.
    const float *a = &tiles[0].A[0][row], *b = &tiles[0].B[0][col];
    float* to_a = COPIED ? &tiles[0].A[thread % 8][thread / 8] : &tiles[0].A[thread % 2 * 4][thread / 2];
    float* to_b = &tiles[0].B[thread / SIDE][thread % SIDE * WIDTH];
    Quads quads;
    float sum[TM][TN] = {};
    Operands held[2];

    // Where there is no next tile the last one is loaded again, so that the loop has no case for it.
    int steps = K / BK, left_a = steps, left_b = steps;
    const size_t lines = (size_t)BK * ldb;
    auto load_a = [&]() {
        if (COPIED)
            copy_transposed<WHOLE, BM, BK, BM + PAD, THREADS>(to_a, A, lda, rows, BK);
        else
            fetch(quads, A, lda);
        A += --left_a > 0 ? BK : 0;
    };
    auto load_b = [&]() {
        copy_lines<WHOLE, WIDTH, BN, BK, THREADS>(to_b, B, ldb, cols, BK);
        close_group();
        B += --left_b > 0 ? lines : 0;
    };
    if (steps > 0) {
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            load_a();
            load_b();
            if (!COPIED)
                put(to_a, quads);
            to_a += NEXT;
            to_b += NEXT;
        }
        if (!COPIED)
            load_a();
        wait_for_all_but<STAGES - 2>();
        __syncthreads();
        read<ROWS, COLS>(held[0], a, b, 0);
    }
    int reading = 0, writing = STAGES - 1, hop = NEXT;
#pragma unroll 1
    for (; steps > 0; --steps) {
        if (COPIED)
            load_a();
        load_b();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {
                if (!COPIED) {
                    put(to_a, quads);
                    load_a();  // here, and not earlier or later, since the compiler moves loads towards their use
                }
                wait_for_all_but<STAGES - 2>();
                __syncthreads();
                if (STAGES == 2) {
                    a += hop, b += hop, to_a -= hop, to_b -= hop;
                    hop = -hop;
                } else {
                    reading = (reading + 1) % STAGES, writing = (writing + 1) % STAGES;
                    int r = reading > 0 ? NEXT : (1 - STAGES) * NEXT, w = writing > 0 ? NEXT : (1 - STAGES) * NEXT;
                    a += r, b += r, to_a += w, to_b += w;
                }
            }
            if (!idle) {
                read<ROWS, COLS>(held[(k + 1) % 2], a, b, (k + 1) % BK);
                multiply<ROWS, COLS>(held[k % 2], sum);
            }
        }
    }

    // The tail of K: line by line, after the last copies have landed.
    if (K % BK > 0) {
        wait_for_all_but<0>();
        __syncthreads();
        A += K >= BK ? BK : 0;
        B += K >= BK ? lines : 0;
        to_a = &tiles[0].A[thread % 8][thread / 8];
        to_b = &tiles[0].B[thread / side<1, BN, THREADS>()][thread % side<1, BN, THREADS>()];
        copy_transposed<WHOLE, BM, BK, BM + PAD, THREADS>(to_a, A, lda, rows, K % BK);
        copy_lines<WHOLE, 1, BN, BK, THREADS>(to_b, B, ldb, cols, K % BK);
        close_group();
        wait_for_all_but<0>();
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < K % BK; ++k) {
            read<ROWS, COLS>(held[0], &tiles[0].A[0][row], &tiles[0].B[0][col], k);
            multiply<ROWS, COLS>(held[0], sum);
        }
    }

#pragma unroll
    for (int n = 0; n < ROWS * COLS / 4; ++n) {
        int i = n / (COLS / 4), j = n % (COLS / 4) * 4, r = row + i / 4 * 4 * DOWN + i % 4, c = col + j * ACROSS;
        store<WHOLE>(C + r * ldc + c, alpha, &sum[i][j], beta, r < rows ? cols - c : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    warptiled(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
              int ldc)
{
    __shared__ alignas(16) Tiles tiles[STAGES];

    int row = (blockIdx.z * gridDim.x + blockIdx.x) * BM, col = blockIdx.y * BN;
    int rows = M - row, cols = N - col;
    if (rows <= 0)
        return;
    bool fours = aligned(A, lda) && aligned(B, ldb) && aligned(C, ldc);
    A += row * lda;
    B += col;
    C += row * ldc + col;
    if (fours && rows >= BM && cols >= BN)
        tile<true>(tiles, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else if (rows <= 4 * DOWN)
        tile<false, 4, TN>(tiles, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else if (cols <= 4 * ACROSS)
        tile<false, TM, 4>(tiles, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
    else
        tile<false>(tiles, rows, cols, K, alpha, A, lda, B, ldb, beta, C, ldc);
}
