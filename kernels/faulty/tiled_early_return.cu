// tiled_early_return: `tiled` with the edge test of `naive`: threads beyond the edge of C leave at once.
//
// The sign: right where TILE divides M and N. Elsewhere the threads that left never reach the barriers that the others
// wait at, and their share of the tiles is never loaded.
//
//     make verify KERNEL=kernels/faulty/tiled_early_return.py

#ifndef TILE
#define TILE 32
#endif

extern "C" __global__ void tiled_early_return(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                              int ldb, float beta, float* C, int ldc)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    unsigned tx = threadIdx.x, ty = threadIdx.y;
    unsigned row = blockIdx.y * TILE + ty;
    unsigned col = blockIdx.x * TILE + tx;

    // BUG: should stay, load zeros and meet the barriers.
    if (row >= M || col >= N)
        return;

    float sum = 0.0f;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        As[ty][tx] = row < M && k0 + tx < K ? A[row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(k0 + ty) * ldb + col] : 0.0f;

        __syncthreads();

        for (unsigned k = 0; k < TILE; ++k)
            sum = fmaf(As[ty][k], Bs[k][tx], sum);

        __syncthreads();
    }

    if (row < M && col < N) {
        float result = alpha * sum;
        if (beta != 0.0f)
            result = fmaf(beta, C[row * ldc + col], result);
        C[row * ldc + col] = result;
    }
}
