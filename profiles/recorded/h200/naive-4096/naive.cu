// naive: one thread computes one cell of C.
//
//                     B (K x N)                  Thread (x, y) of a block owns C[row][col]. It walks row `row` of A
//                     . . b . .                  to the right and column `col` of B downwards, and gets every
//                     . . b . .                  operand from global memory.
//                     . . b . .
//     A (M x K)       C (M x N)                  A warp is 32 threads with one `row` and 32 neighbouring `col`s, so
//     . . . .         . . . . .                  in one step it asks for 1 element of A (all lanes the same) and
//     a a a a         . . c . .                  for 32 neighbouring elements of B.
//     . . . .         . . . . .
//
// The idea: the grid of threads replaces the two outer loops of a CPU version, as no cell of C depends on another.
// What it costs: 8 bytes asked of memory for each multiply-add, as no thread knows what its neighbour has loaded.
//
//     make profile KERNEL=naive

extern "C" __global__ void naive(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                 float beta, float* C, int ldc)
{
    // Rows are counted downwards: every factor is a .y. The block shape comes from the launch.
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;

    // The grid is rounded up to whole blocks, so the last ones hang over the edge of C.
    if (row >= M || col >= N)
        return;

    // fmaf rather than a * b + sum: the bits then do not depend on the compiler's -fmad setting.
    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);

    // BLAS: with beta = 0, C is output only. It may hold NaN, which 0 * C would spread.
    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, C[row * ldc + col], result);
    C[row * ldc + col] = result;
}
