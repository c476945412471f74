// naive_uncoalesced: `naive` with x and y swapped. The same answer, by the worst walk through memory.
//
//     naive: a warp is a piece of a row of C         here: a warp is a piece of a column of C
//
//     A . . . .      C . . . . . .                   A a . . .      C . w . . . .
//       a . . .        w w w w w w                     a . . .        . w . . . .
//       . . . .        . . . . . .                     a . . .        . w . . . .
//
// What it changes: threadIdx.x walks down the rows. In one step the 32 lanes of a warp want 32 elements of A that are
// `lda` elements apart: 32 sectors of 32 bytes, of which 4 bytes each are used. The store to C has the same stride.
// The lanes ask for exactly as many bytes as in `naive`; the memory system moves several times as many.
//
//     make profile KERNEL=naive_uncoalesced

extern "C" __global__ void naive_uncoalesced(int M, int N, int K, float alpha, const float* A, int lda, const float* B,
                                             int ldb, float beta, float* C, int ldc)
{
    // The one difference to `naive`: block and thread index are swapped together, so the answer stays right.
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;

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
