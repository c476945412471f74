// naive_mixed_axes: `naive` with a .x among the .y of the row index. Right for square blocks only.
//
//     BX = 32, BY = 8: blocks jump 32 rows and fill 8          BX = 8, BY = 32: blocks jump 8 rows and fill 32
//
//     row  0 ..  7   block y = 0                               row  0 .. 31   block y = 0
//     row  8 .. 31   nobody                                    row  8 .. 39   block y = 1, over the rows of block 0
//     row 32 .. 39   block y = 1
//
//     make verify KERNEL=kernels/faulty/naive_mixed_axes.py                          make verify ... BX=8 BY=32

extern "C" __global__ void naive_mixed_axes(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                            int ldb, float beta, float* C, int ldc)
{
    // BUG: should be blockIdx.y * blockDim.y.
    unsigned row = blockIdx.y * blockDim.x + threadIdx.y;
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x;

    if (row >= M || col >= N)
        return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);

    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, C[row * ldc + col], result);
    C[row * ldc + col] = result;
}
