// naive_row_of_b: `naive` with B[col * ldb + k], which walks along a row of B. Rows of A times rows of B is A * B^T.
//
// The sign: k counts columns where it should count rows. Where N and K differ it also leaves the matrix.
//
//     make verify KERNEL=kernels/faulty/naive_row_of_b.py

extern "C" __global__ void naive_row_of_b(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                          int ldb, float beta, float* C, int ldc)
{
    unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x;

    if (row >= M || col >= N)
        return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        // BUG: should be B[k * ldb + col].
        sum = fmaf(A[row * lda + k], B[col * ldb + k], sum);

    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, C[row * ldc + col], result);
    C[row * ldc + col] = result;
}
