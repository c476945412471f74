// tiled_no_first_barrier: `tiled` without the barrier between loading the tiles and reading them.
//
// The sign: a warp reads elements that another warp may not have written yet (read after write). A GPU may well give
// the right answer for years; in a block of one warp (TILE = 2 or 4) there is no other warp to race with.
//
//     make verify KERNEL=kernels/faulty/tiled_no_first_barrier.py

#ifndef TILE
#define TILE 32
#endif

extern "C" __global__ void tiled_no_first_barrier(int M, int N, int K, float alpha, const float* A, int lda,
                                                  const float* B, int ldb, float beta, float* C, int ldc)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    unsigned tx = threadIdx.x, ty = threadIdx.y;
    unsigned row = blockIdx.y * TILE + ty;
    unsigned col = blockIdx.x * TILE + tx;

    float sum = 0.0f;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        As[ty][tx] = row < M && k0 + tx < K ? A[row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(k0 + ty) * ldb + col] : 0.0f;

        // BUG: should wait here until the tiles are whole.
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
