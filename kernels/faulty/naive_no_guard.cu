// naive_no_guard: `naive` without the test for the edge of C.
//
// The sign: right where 32 divides M and N. Elsewhere the threads that hang over the edge read beyond A and B, and
// write beyond C: below the last row, and to the right into the row's padding or the next row.
//
//     make verify KERNEL=kernels/faulty/naive_no_guard.py

extern "C" __global__ void naive_no_guard(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                          int ldb, float beta, float* C, int ldc)
{
    unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x;

    // BUG: should leave if row >= M or col >= N.

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);

    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, C[row * ldc + col], result);
    C[row * ldc + col] = result;
}
