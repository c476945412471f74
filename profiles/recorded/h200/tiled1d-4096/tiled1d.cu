// tiled1d: a thread computes a strip of TM cells, one above the other.
//
//                     B | Bs  BK x BN |           A block owns a BM x BN tile of C, and steps through K in steps of
//                       |      b      |           BK. At each k a thread reads one element b of Bs into a register
//     A                 C                         and uses it for all its TM rows.
//     | As |            |      c      |  \
//     | BM |            |      c      |   TM      Per k: 1 + TM words from shared memory for TM multiply-adds, against
//     |  x |            |      c      |  /        2 for 1 in `tiled`.
//     | BK |            |             |
//
// What it adds to `tiled`: a third level of reuse, registers. The tiles are no longer square and no longer of the
// block's shape, so threads are numbered in one dimension and share out the loads by a strided loop.
//
//     make profile KERNEL=tiled1d            make profile KERNEL=tiled1d BM=128 TM=16

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

#define THREADS (BM / TM * BN)

// The bound makes ptxas keep to the registers that a block of THREADS threads can have.
extern "C" __global__ void __launch_bounds__(THREADS)
    tiled1d(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
            int ldc)
{
    __shared__ float As[BM][BK];
    __shared__ float Bs[BK][BN];

    // Neighbouring threads own neighbouring columns, so a warp's store to C is one piece of a row.
    unsigned tx = threadIdx.x % BN, ty = threadIdx.x / BN;
    unsigned row = blockIdx.y * BM + ty * TM;
    unsigned col = blockIdx.x * BN + tx;

    float sum[TM] = {};
    for (unsigned k0 = 0; k0 < K; k0 += BK) {
        // Neighbouring threads load neighbouring elements of a tile row. The last trip of a loop may be a partial one;
        // where the tile is a multiple of THREADS the compiler removes the test.
#pragma unroll
        for (unsigned offset = 0; offset < BM * BK; offset += THREADS) {
            unsigned i = threadIdx.x + offset, r = blockIdx.y * BM + i / BK, k = k0 + i % BK;
            if (BM * BK % THREADS == 0 || i < BM * BK)
                As[i / BK][i % BK] = r < M && k < K ? A[r * lda + k] : 0.0f;
        }
#pragma unroll
        for (unsigned offset = 0; offset < BK * BN; offset += THREADS) {
            unsigned i = threadIdx.x + offset, k = k0 + i / BN, c = blockIdx.x * BN + i % BN;
            if (BK * BN % THREADS == 0 || i < BK * BN)
                Bs[i / BN][i % BN] = k < K && c < N ? B[k * ldb + c] : 0.0f;
        }
        __syncthreads();

        for (unsigned k = 0; k < BK; ++k) {
            float b = Bs[k][tx];
            // Unrolled, so that sum[] has constant indices and can live in registers.
#pragma unroll
            for (unsigned i = 0; i < TM; ++i)
                sum[i] = fmaf(As[ty * TM + i][k], b, sum[i]);
        }
        __syncthreads();
    }

#pragma unroll
    for (unsigned i = 0; i < TM; ++i) {
        if (row + i < M && col < N) {
            float result = alpha * sum[i];
            if (beta != 0.0f)
                result = fmaf(beta, C[(row + i) * ldc + col], result);
            C[(row + i) * ldc + col] = result;
        }
    }
}
