// naive_no_k: `naive` with B[row * ldb + col], which stands still while k moves.
//
// The sign: an index inside the loop over k that has no k. The sum becomes (sum of a row of A) * one element of B;
// where M is larger than K it also leaves the matrix.
//
//     make verify KERNEL=kernels/faulty/naive_no_k.py

extern "C" __global__ void naive_no_k(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                      int ldb, float beta, float* C, int ldc)
{
    unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned col = blockIdx.x * blockDim.x + threadIdx.x;

    if (row >= M || col >= N)
        return;

    float sum = 0.0f;
    for (int k = 0; k < K; ++k)
        // BUG: should be B[k * ldb + col].
        sum = fmaf(A[row * lda + k], B[row * ldb + col], sum);

    float result = alpha * sum;
    if (beta != 0.0f)
        result = fmaf(beta, C[row * ldc + col], result);
    C[row * ldc + col] = result;
}
