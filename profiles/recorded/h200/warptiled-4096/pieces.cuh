// What several stages do alike: rows in fours, C written back, tiles copied from global to shared memory.
#pragma once

// Whether every row of a matrix starts at a multiple of 16 bytes, as a float4 must.
__device__ __forceinline__ bool aligned(const float* p, int ld)
{
    return ((size_t)p | ld * sizeof(float)) % sizeof(float4) == 0;
}

// Four neighbours of a row. Where they are not WHOLE, `inside` of them are in the matrix and zeros stand for the rest.
template <bool WHOLE>
__device__ __forceinline__ float4 quad(const float* p, int inside)
{
    if (WHOLE)
        return *(const float4*)p;
    return {inside > 0 ? p[0] : 0.0f, inside > 1 ? p[1] : 0.0f, inside > 2 ? p[2] : 0.0f, inside > 3 ? p[3] : 0.0f};
}

__device__ __forceinline__ float combine(float alpha, float sum, float beta, const float* c)
{
    float result = alpha * sum;
    return beta != 0.0f ? fmaf(beta, *c, result) : result;
}

// Writes four neighbours of a row of C, or those of them that are `inside`.
template <bool WHOLE>
__device__ __forceinline__ void store(float* c, float alpha, const float* sum, float beta, int inside)
{
    if (WHOLE) {
        float4 old = beta != 0.0f ? *(float4*)c : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        *(float4*)c = make_float4(combine(alpha, sum[0], beta, &old.x), combine(alpha, sum[1], beta, &old.y),
                                  combine(alpha, sum[2], beta, &old.z), combine(alpha, sum[3], beta, &old.w));
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (j < inside)
                c[j] = combine(alpha, sum[j], beta, c + j);
    }
}

// Asks for a copy of 4 or 16 bytes from global to shared memory and goes on. sm_80 and newer.
template <int BYTES>
__device__ __forceinline__ void copy(float* to, const float* from)
{
    unsigned shared = (unsigned)__cvta_generic_to_shared(to);
    if (BYTES == 16)  // past L1, which the narrow ones cannot be
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(from), "n"(BYTES) : "memory");
}

// The copies that a thread has asked for since it last closed a group are one.
__device__ __forceinline__ void close_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for the thread's own groups, all but the newest GROUPS of them.
template <int GROUPS>
__device__ __forceinline__ void wait_for_all_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

// Copies the first `depth` of DEPTH columns of a tile of A, ROWS high, to lines PITCH words long, transposed: word by
// word, eight neighbours of a row side by side, so that a warp asks for whole sectors of four rows. `to` is the
// thread's first place, [threadIdx.x % 8][threadIdx.x / 8]. Of the matrix `rows` rows lie ahead: where the tile is not
// WHOLE, the last of them stands in for those beyond it, so that nothing outside is read.
template <bool WHOLE, int ROWS, int DEPTH, int PITCH, int THREADS>
__device__ __forceinline__ void copy_transposed(float* to, const float* A, int lda, int rows, int depth)
{
    constexpr int STEP = THREADS / 8;
    int k = threadIdx.x % 8, r = threadIdx.x / 8;
#pragma unroll
    for (int k0 = 0; k0 < DEPTH; k0 += 8)
#pragma unroll
        for (int r0 = 0; r0 < ROWS; r0 += STEP)
            if ((ROWS % STEP == 0 || r + r0 < ROWS) && (depth == DEPTH || k + k0 < depth))
                copy<4>(to + k0 * PITCH + r0,
                        (WHOLE ? A + r * lda + r0 * lda : A + min(r + r0, rows - 1) * lda) + k + k0);
}

// Threads that share a line of COLUMNS words, WIDTH words each.
template <int WIDTH, int COLUMNS, int THREADS>
__device__ constexpr int side()
{
    return COLUMNS / WIDTH < THREADS ? COLUMNS / WIDTH : THREADS;
}

// Copies the first `depth` of DEPTH lines of a tile of B, COLUMNS wide, WIDTH words at a time. `to` is the thread's
// first place, [threadIdx.x / SIDE][threadIdx.x % SIDE * WIDTH]. Of the matrix `cols` columns lie ahead, and the last
// of them stands in for those beyond it.
template <bool WHOLE, int WIDTH, int COLUMNS, int DEPTH, int THREADS>
__device__ __forceinline__ void copy_lines(float* to, const float* B, int ldb, int cols, int depth)
{
    constexpr int SIDE = side<WIDTH, COLUMNS, THREADS>(), LINES = THREADS / SIDE;
    constexpr bool ALL = THREADS % SIDE == 0 && DEPTH % LINES == 0;  // threads have something to do on every trip
    int k = threadIdx.x / SIDE, c = threadIdx.x % SIDE * WIDTH;
#pragma unroll
    for (int k0 = 0; k0 < DEPTH; k0 += LINES)
#pragma unroll
        for (int c0 = 0; c0 < COLUMNS; c0 += SIDE * WIDTH)
            if ((ALL || (k < LINES && k + k0 < DEPTH)) && (depth == DEPTH || k + k0 < depth))
                copy<4 * WIDTH>(to + k0 * COLUMNS + c0,
                                B + k * ldb + k0 * ldb + (WHOLE ? c + c0 : min(c + c0, cols - 1)));
}
