// tiled2d: a thread computes a patch of TM x TN cells, as an outer product in registers.
//
//                     B | Bs  BK x BN |           A block owns a BM x BN tile of C. At each k a thread reads TM
//                       |    b b b    |           elements of As and TN elements of Bs into registers and multiplies
//     A                 C                         each with each.
//     | As |            |    c c c    |  \
//     | BM |            |    c c c    |   TM      Per k: TM + TN words from shared memory for TM * TN multiply-adds.
//     |  x |            |    c c c    |  /
//     | BK |                  TN
//
// What it adds to `tiled1d`: reuse along both directions. A block needs TN times fewer threads, so each of them loads
// more elements of the tiles. Tests for the edges leave the hot loop:
//
//     +-----------+---+       main    whole BM x BN tiles; the K loop takes whole BK steps with no test, and one
//     |   main    | r |               guarded step follows for what is left of K
//     |           |   |       edge    right, bottom and corner strips: loads padded with zeros, stores guarded
//     +-----------+---+
//     |  bottom   | c |
//     +-----------+---+
//
//     make profile KERNEL=tiled2d            make profile KERNEL=tiled2d BK=16 TN=4

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

#define THREADS ((BM / TM) * (BN / TN))

// Indices are unsigned: for them i / BK and i % BK are a shift and a mask, with no case for a negative i, which
// takes about 25 registers less here.

// What `tiled1d` does on every step, for the steps that meet an edge: `rows`, `cols` and `depth` say how much of the
// matrices lies ahead, and zeros stand for the rest.
static __device__ __forceinline__ void load_padded(float (&As)[BM][BK], float (&Bs)[BK][BN], const float* A, int lda,
                                                   const float* B, int ldb, unsigned rows, unsigned cols,
                                                   unsigned depth)
{
    for (unsigned i = threadIdx.x; i < BM * BK; i += THREADS)
        As[i / BK][i % BK] = i / BK < rows && i % BK < depth ? A[i / BK * lda + i % BK] : 0.0f;
    for (unsigned i = threadIdx.x; i < BK * BN; i += THREADS)
        Bs[i / BN][i % BN] = i / BN < depth && i % BN < cols ? B[i / BN * ldb + i % BN] : 0.0f;
}

// Adds the product of the tiles to the thread's patch of C.
static __device__ __forceinline__ void multiply(const float (&As)[BM][BK], const float (&Bs)[BK][BN], unsigned tx,
                                                unsigned ty, float (&sum)[TM][TN])
{
    for (unsigned k = 0; k < BK; ++k) {
        float a[TM], b[TN];
        // Unrolled, so that a[], b[] and sum[] have constant indices and can live in registers.
#pragma unroll
        for (unsigned i = 0; i < TM; ++i)
            a[i] = As[ty * TM + i][k];
#pragma unroll
        for (unsigned j = 0; j < TN; ++j)
            b[j] = Bs[k][tx * TN + j];
#pragma unroll
        for (unsigned i = 0; i < TM; ++i)
#pragma unroll
            for (unsigned j = 0; j < TN; ++j)
                sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
}

static __device__ __forceinline__ void store(float* c, float alpha, float sum, float beta)
{
    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, *c, result);
    *c = result;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tiled2d(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
            int ldc)
{
    __shared__ float As[BM][BK];
    __shared__ float Bs[BK][BN];

    unsigned tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    A += blockIdx.y * BM * lda;
    B += blockIdx.x * BN;
    C += (blockIdx.y * BM + ty * TM) * ldc + blockIdx.x * BN + tx * TN;

    float sum[TM][TN] = {};
    int left = K;
    for (; left >= BK; left -= BK) {
        // Where a tile is no multiple of THREADS the last trip is a partial one; else the compiler removes the test.
#pragma unroll
        for (unsigned offset = 0; offset < BM * BK; offset += THREADS) {
            unsigned i = threadIdx.x + offset;
            if (BM * BK % THREADS == 0 || i < BM * BK)
                As[i / BK][i % BK] = A[i / BK * lda + i % BK];
        }
#pragma unroll
        for (unsigned offset = 0; offset < BK * BN; offset += THREADS) {
            unsigned i = threadIdx.x + offset;
            if (BK * BN % THREADS == 0 || i < BK * BN)
                Bs[i / BN][i % BN] = B[i / BN * ldb + i % BN];
        }
        __syncthreads();
        A += BK;
        B += (size_t)BK * ldb;
        multiply(As, Bs, tx, ty, sum);
        __syncthreads();
    }

    // The tail of K: after the loop, so that it costs nothing where BK divides K.
    if (left > 0) {
        load_padded(As, Bs, A, lda, B, ldb, BM, BN, left);
        __syncthreads();
        multiply(As, Bs, tx, ty, sum);
    }

#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; ++j)
            store(C + i * ldc + j, alpha, sum[i][j], beta);
}

// The strips that `tiled2d` leaves: the first block's tile begins at C[row0][col0].
extern "C" __global__ void __launch_bounds__(THREADS)
    tiled2d_edge(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta,
                 float* C, int ldc, int row0, int col0)
{
    __shared__ float As[BM][BK];
    __shared__ float Bs[BK][BN];

    unsigned tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    unsigned row = row0 + blockIdx.y * BM, col = col0 + blockIdx.x * BN;
    A += row * lda;
    B += col;

    float sum[TM][TN] = {};
    for (int left = K; left > 0; left -= BK) {
        load_padded(As, Bs, A, lda, B, ldb, M - row, N - col, left);
        __syncthreads();
        A += BK;
        B += (size_t)BK * ldb;
        multiply(As, Bs, tx, ty, sum);
        __syncthreads();
    }

    row += ty * TM;
    col += tx * TN;
#pragma unroll
    for (unsigned i = 0; i < TM; ++i)
#pragma unroll
        for (unsigned j = 0; j < TN; ++j)
            if (row + i < M && col + j < N)
                store(C + (row + i) * ldc + col + j, alpha, sum[i][j], beta);
}
