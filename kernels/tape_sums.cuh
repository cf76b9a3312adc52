// Sums whose order never changes: of a thread's values, of a warp's lanes, of a block's warps.
#pragma once
#include "tape_exchange.cuh"

// Sum of N values, a power of two, by halves.
template <int N>
__device__ __forceinline__ float sum_of_tree(float (&x)[N]) {
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

// One row of the partial sums of all warps.
__device__ __forceinline__ float sum_of_warps(const float* sums, int stride, int index) {
    float part[WARPS];
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) part[warp] = sums[warp * stride + index];
    return sum_of_tree(part);
}

// The same of four rows that follow each other.
__device__ __forceinline__ float4 four_sums_of_warps(const float* sums, int stride, int index) {
    float4 part[WARPS];
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++)
        part[warp] = *reinterpret_cast<const float4*>(sums + warp * stride + index);
#pragma unroll
    for (int half = WARPS / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++)
            part[i] = {part[i].x + part[i + half].x, part[i].y + part[i + half].y,
                       part[i].z + part[i + half].z, part[i].w + part[i + half].w};
    return part[0];
}

// Sums over LANES lanes that follow each other of N values of each, powers of two: a lane gets number
// lane % LANES / (LANES / N). Halves change sides step by step, so that N sums take hardly more steps
// than one; each is the sum that it would be alone, in the same order.
template <int N, int LANES = 32>
__device__ __forceinline__ float sum_of_lanes(float (&x)[N], int lane) {
    int mask = LANES / 2;
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2, mask /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            const bool far = lane & mask;
            const float mine = far ? x[i + half] : x[i], its = far ? x[i] : x[i + half];
            x[i] = mine + __shfl_xor_sync(~0u, its, mask);
        }
#pragma unroll
    for (; mask > 0; mask /= 2) x[0] += __shfl_xor_sync(~0u, x[0], mask);
    return x[0];
}
