// What a thread gathers of an exchange: words of several tokens, all under way before it waits for one.
//
// A trip to L2 takes about as long under the stream of weights as a layer's products of one token, so
// tokens that take their trips one after another would cost nearly a pass of their own.
#pragma once
#include "tape_exchange.cuh"

constexpr int UNDER_WAY = 8;  // quads of a thread: more registers, and more asked in vain, than it gains

// The most tokens whose words are under way at a time: a power of two.
__device__ constexpr int tokens_at_once(int words_each) {
    int tokens = 1;
    while (tokens * 2 <= WIDTH && tokens * 2 * words_each <= UNDER_WAY) tokens *= 2;
    return tokens;
}

// A thread's words of K values of each token, whose values begin APART after the token's before.
template <int K, int APART = K>
struct Words {
    static constexpr int QUADS = K / 4, EACH = (QUADS + CONSUMERS - 1) / CONSUMERS;
    static constexpr int TOKENS = tokens_at_once(EACH);
    Quad quad[TOKENS][EACH];

    __device__ __forceinline__ static bool has(int i, int tid) {
        return (i + 1) * CONSUMERS <= QUADS || tid + i * CONSUMERS < QUADS;
    }
    // Of the t-th of tokens whose first begins at `first`.
    __device__ __forceinline__ void ask_for_one(const Quad* first, int t, int tid) {
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (has(i, tid)) peek(first + t * (APART / 4) + tid + i * CONSUMERS, quad[t][i]);
    }
    // Of `count` tokens, or as many as there are registers for.
    __device__ __forceinline__ void ask_for(const Quad* first, int count, int tid) {
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (WIDTH > 1)  // what is written only perhaps would need its registers at all times
                for (int i = 0; i < EACH; i++) quad[t][i] = {0, 0};
            if (t < count) ask_for_one(first, t, tid);
        }
    }
    // Late ones are asked for again until no lane of the warp misses any while the block lives: lanes
    // that went on alone would do what follows one after another.
    __device__ __forceinline__ void receive(
        const Quad* first, int count, int tid, Epoch epoch, Life life) {
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (t < count && has(i, tid) && !quad[t][i].is(epoch)) {
                        peek(first + t * (APART / 4) + tid + i * CONSUMERS, quad[t][i]);
                        missing = true;
                    }
        } while (__any_sync(~0u, missing && !life.is_dead()));
    }
};
