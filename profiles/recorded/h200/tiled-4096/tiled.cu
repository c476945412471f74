// tiled: the threads of a block share what they load.
//
//                        B     | . . . |          A block owns a TILE x TILE tile of C. In each phase its threads copy
//                              | Bs    |  TILE    one tile of A and one of B into shared memory, an element of each
//                              | . . . |          per thread, and every thread takes TILE steps of its dot product
//          A                   C                  from there. The next phase is one tile to the right in A and one
//     |...|As |...|            |  c    |  TILE    tile down in B.
//          TILE                  TILE
//
// What it adds to `naive`: an element fetched from global memory serves TILE threads, so the lanes ask global memory
// for 1/TILE of the bytes. The price is two barriers per phase, and two shared-memory reads for each multiply-add.
//
//     make profile KERNEL=tiled              make profile KERNEL=tiled TILE=16

#ifndef TILE
#define TILE 32
#endif

extern "C" __global__ void tiled(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    unsigned tx = threadIdx.x, ty = threadIdx.y;
    unsigned row = blockIdx.y * TILE + ty;
    unsigned col = blockIdx.x * TILE + tx;

    // A thread beyond the edge of C must not leave: it still loads its share of the tiles and meets the barriers.
    float sum = 0.0f;
    for (unsigned k0 = 0; k0 < K; k0 += TILE) {
        // Zeros stand for what lies beyond a matrix: they add nothing, and the loop below keeps its length.
        As[ty][tx] = row < M && k0 + tx < K ? A[row * lda + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(k0 + ty) * ldb + col] : 0.0f;

        // The tiles must be whole before any warp reads an element that another warp wrote.
        __syncthreads();

        // In a warp of a 32-wide tile As[ty][k] is one word for all lanes, and Bs[k][tx] lies in 32 different banks.
        for (unsigned k = 0; k < TILE; ++k)
            sum = fmaf(As[ty][k], Bs[k][tx], sum);

        // Every warp must be done with the tiles before any warp overwrites them.
        __syncthreads();
    }

    if (row < M && col < N) {
        float result = alpha * sum;
        if (beta != 0.0f)
            result = fmaf(beta, C[row * ldc + col], result);
        C[row * ldc + col] = result;
    }
}
