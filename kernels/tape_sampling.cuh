// Choosing a token, draw for draw as engine/sampling.py does.
//
// Filters act in its order; ties with the last one kept are kept; the draw is the argmax of score +
// Gumbel noise, a pure function of (seed, position, token id); equal sums go to the lower id. Top-k
// and top-p look for a threshold digit by digit, as kernels/sampling.py, which explains it.
#pragma once
#include "tape_exchange.cuh"

constexpr float NO_SCORE = -3.0e38f;  // below every score
constexpr int NO_ID = 0x7fffffff;
constexpr int DIGITS = 16;            // candidates a pass, which settles four bits
constexpr int DIGIT_WORDS = 18;       // masses above the candidates, all mass, and a filler
constexpr int CANDIDATE_WORDS = 6;    // value, id, logit, largest logit, sum of exp, stop

__device__ __forceinline__ u32 philox_word(u64 seed, u32 position, u32 id) {
    u32 c0 = id >> 2, c1 = position, c2 = 0, c3 = 0;
    u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        const u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const u32 low = (id & 1) ? c1 : c0, high = (id & 1) ? c3 : c2;
    return (id & 2) ? high : low;
}

__device__ __forceinline__ float gumbel_noise(u64 seed, u32 position, u32 id) {
    const float word = __uint2float_rn(philox_word(seed, position, id));
    const float uniform = fminf((word + 0.5f) * 2.3283064365386963e-10f, 0.99999994f);
    return -logf(-log1pf(-uniform));
}

// int32 that sort as the scores do; -0 and +0, which are equal, give one value.
__device__ __forceinline__ int ordered(float score) {
    const int bits = __float_as_int(score + 0.0f);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

struct Best {
    float value;
    int id;
    float logit;

    __device__ __forceinline__ void offer(const Best& other) {
        if (other.value > value || (other.value == value && other.id < id)) *this = other;
    }
    __device__ __forceinline__ Best shuffled(int mask) const {
        return {__shfl_xor_sync(~0u, value, mask), __shfl_xor_sync(~0u, id, mask),
                __shfl_xor_sync(~0u, logit, mask)};
    }
};

// log(sum(exp)) in two parts.
struct LogSum {
    float top, sum;

    __device__ __forceinline__ void add(const LogSum& other) {
        const float new_top = fmaxf(top, other.top);
        sum = sum * __expf(top - new_top) + other.sum * __expf(other.top - new_top);
        top = new_top;
    }
    __device__ __forceinline__ LogSum shuffled(int mask) const {
        return {__shfl_xor_sync(~0u, top, mask), __shfl_xor_sync(~0u, sum, mask)};
    }
};

// How a reply samples, the same for all its tokens.
struct Sampling {
    float temperature, top_p, log_min_p, penalty;
    int top_k;
    u64 seed;

    __device__ __forceinline__ float score(float logit, bool seen) const {
        if (seen) logit = logit < 0 ? logit * penalty : logit / penalty;
        return temperature > 0 ? logit / temperature : logit;
    }
    __device__ __forceinline__ float value(float score, u32 position, int id) const {
        return temperature > 0 ? score + gumbel_noise(seed, position, id) : score;
    }
    __device__ __forceinline__ bool filtered() const {
        return temperature > 0 && (top_k > 0 || top_p < 1.0f || log_min_p > NO_SCORE);
    }
};
