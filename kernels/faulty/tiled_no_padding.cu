// tiled_no_padding: `tiled` that skips the loads beyond the edge, but puts nothing in their place.
//
// The sign: right where TILE divides M, N and K. Elsewhere the dot product reads shared memory that nobody wrote, or
// what the phase before left there.
//
//     make verify KERNEL=kernels/faulty/tiled_no_padding.py

#ifndef TILE
#define TILE 32
#endif

extern "C" __global__ void tiled_no_padding(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                            int ldb, float beta, float* C, int ldc)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    unsigned tx = threadIdx.x, ty = threadIdx.y;
    unsigned row = blockIdx.y * TILE + ty;
    unsigned col = blockIdx.x * TILE + tx;

    float sum = 0.0f;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        // BUG: should write 0 where there is nothing to load.
        if (row < M && k0 + tx < K)
            As[ty][tx] = A[row * lda + k0 + tx];
        if (k0 + ty < K && col < N)
            Bs[ty][tx] = B[(k0 + ty) * ldb + col];

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
