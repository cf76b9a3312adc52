// A reply's passes, how it samples, and how it ends.
#pragma once
#include "tape_columns.cuh"

constexpr int THREADS = CONSUMERS + 4 * 32;  // two warp groups that compute, one that helps

// The passes of a reply: the prompt, `width` tokens at a time, then token by token.
struct Passes {
    int prompt, width, fed, position;
#ifdef SPECULATE
    int known = 1;  // tokens of a pass after the prompt's that are the reply's
#endif

    __device__ __forceinline__ Passes(const Params& p)
        : prompt(static_cast<int>(p.run[PROMPT_TOKENS])), width(static_cast<int>(p.width)), fed(0),
          position(static_cast<int>(p.run[START])) {}
    __device__ __forceinline__ int tokens() const {
#ifdef SPECULATE
        return fed < prompt ? min(width, prompt - fed) : known;
#else
        return fed < prompt ? min(width, prompt - fed) : 1;
#endif
    }
    __device__ __forceinline__ bool samples() const { return fed + tokens() >= prompt; }
    __device__ __forceinline__ void next() {
        position += tokens();
        fed += tokens();
    }
};

__device__ __forceinline__ Sampling sampling_of(const Params& p) {
    const float min_p = static_cast<float>(p.numbers[MIN_P]);
    return {static_cast<float>(p.numbers[TEMPERATURE]),
            static_cast<float>(p.numbers[TOP_P]),
            min_p > 0 ? static_cast<float>(log(p.numbers[MIN_P])) : NO_SCORE,
            static_cast<float>(p.numbers[REPETITION_PENALTY]),
            static_cast<int>(p.run[TOP_K]),
            static_cast<u64>(p.run[SEED])};
}

__device__ void post(Shared& s, i64 id, float logprob, int finish, int fed) {
#ifdef SPECULATE
    // A pass may have more tokens than there are slots.
    while (s.posted - *const_cast<volatile int*>(&s.told) >= POSTS && !Life::of(s.bounds).is_dead())
        __nanosleep(100);
#endif
    Post& slot = s.posts[s.posted & LAST_POST];
    slot = {id, logprob, finish, fed};
#ifdef SPECULATE
    slot.drafts = s.drafts;
    slot.time_ns = s.moment_ns;
#endif
    __threadfence_block();
    *const_cast<volatile int*>(&s.posted) = s.posted + 1;
}

__device__ __forceinline__ int finish_of(
    const Params& p, i64 id, i64 sampled, const Passes& passes, bool stopped) {
    for (int i = 0; i < p.run[STOP_COUNT]; i++)
        if (p.run[STOP_IDS + i] == id) return EOS;
    if (sampled >= p.run[MAX_TOKENS]) return LENGTH;
    if (passes.position + passes.tokens() >= p.run[CAPACITY]) return CONTEXT;
    return stopped ? STOPPED : RUNNING;
}
