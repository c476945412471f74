// A probe, not a rung: one load from shared memory for each width and pattern of addresses, beside a naive product. What
// Nsight Compute counts for each of them is in profiles/recorded/h200/shared_reads.
#include <cuda_runtime.h>

// The word that a lane reads first, of a load that is `w` words wide.
static __device__ int place(int pattern, int lane, int w)
{
    switch (pattern) {
    case 0: return 0;                                         // all the same
    case 1: return lane / 16 * w;                             // two places, side by side
    case 2: return lane / 16 * 32;                            // two places, in one bank
    case 3: return lane / 8 * w;                              // four places, side by side
    case 4: return lane / 8 * 32;                             // four places, in one bank
    case 5: return lane / 2 * w;                              // pairs, side by side
    case 6: return lane / 2 * 32;                             // pairs, all in one bank
    case 7: return lane / 16 * w + lane / 8 % 2 * 32;         // four places, two and two in one bank
    case 8: return lane * w;                                  // each its own, side by side
    case 9: return (lane / 4 * 2 + lane % 2) * w;             // every lane as the one two further
    default: return (lane / 4 * 2 + lane % 2) % 4 * w * 32 / w + lane / 8 * w;  // the same, four to a bank
    }
}

template <int W>
static __device__ float load(const float* from, int pattern)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(from + place(pattern, threadIdx.x, W));
    float a, b, c, d;
    if (W == 1) {
        asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(a) : "r"(at));
        return a;
    }
    if (W == 2) {
        asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(at));
        return a + b;
    }
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(at));
    return a + b + c + d;
}

extern "C" __global__ void shared_reads(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                                        float beta, float* C, int ldc)
{
    __shared__ alignas(16) float zeros[640];
    for (int i = threadIdx.x; i < 640; i += 32)
        zeros[i] = 0.0f;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int pattern = 0; pattern < 11; ++pattern)
        sum += load<1>(zeros, pattern) + load<2>(zeros, pattern) + load<4>(zeros, pattern);
    int row = blockIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    if (col >= N)
        return;
    for (int k = 0; k < K; ++k)
        sum = fmaf(A[row * lda + k], B[k * ldb + col], sum);
    float* c = C + row * ldc + col;
    *c = alpha * sum + (beta != 0.0f ? beta * *c : 0.0f);
}
