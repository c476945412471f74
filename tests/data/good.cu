// A kernel with nothing to complain of but register banks: float4 all the way, no bank conflicts, 8 x 8 cells a thread.
// M and N multiples of 128, K of 8, beta = 0.
extern "C" __global__ void __launch_bounds__(256)
    good(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc)
{
    __shared__ __align__(16) float As[2][8][132], Bs[2][8][128];
    unsigned t = threadIdx.x, lane = t % 32, warp = t / 32;
    unsigned row = warp / 2 * 32 + lane / 8 * 4, col = warp % 2 * 64 + lane % 8 * 4;
    const float* a = A + (size_t)(blockIdx.y * 128 + t / 2) * lda + t % 2 * 4;
    const float* b = B + (size_t)(t / 32) * ldb + blockIdx.x * 128 + lane * 4;
    float4 ra = *(const float4*)a, rb = *(const float4*)b;
    float sum[8][8] = {};
    for (int k0 = 0, turn = 0; k0 < K; k0 += 8, turn ^= 1) {
        float* d = &As[turn][t % 2 * 4][t / 2];
        d[0] = ra.x; d[132] = ra.y; d[264] = ra.z; d[396] = ra.w;
        *(float4*)&Bs[turn][t / 32][lane * 4] = rb;
        __syncthreads();
        a += 8; b += (size_t)8 * ldb;
        if (k0 + 8 < K) { ra = *(const float4*)a; rb = *(const float4*)b; }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float x[8], y[8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                *(float4*)&x[4 * h] = *(float4*)&As[turn][k][row + 16 * h];
                *(float4*)&y[4 * h] = *(float4*)&Bs[turn][k][col + 32 * h];
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *(float4*)&C[(size_t)(blockIdx.y * 128 + row + i / 4 * 16 + i % 4) * ldc + blockIdx.x * 128 + col + 32 * h] =
                make_float4(alpha * sum[i][4 * h], alpha * sum[i][4 * h + 1], alpha * sum[i][4 * h + 2], alpha * sum[i][4 * h + 3]);
}
