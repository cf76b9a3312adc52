// The threads that help: they feed the ring and the cache's slots, and speak with the host.
#pragma once
#include "tape_feed.cuh"

// One warp: this item's keys and values of the history, layer by layer, as long as there is room.
__device__ __forceinline__ void feed_cache(const Params& p, Shared& s, u8* dynamic) {
    const int lane = threadIdx.x % 32;
    KvFeeder feeder{dynamic + p.at_kv, &s.kv, const_cast<volatile int*>(&s.quit), 0, 0};
    const int kv_head = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    const i64 capacity = p.run[CAPACITY];
    const u16* keys = reinterpret_cast<const u16*>(p.run[KEYS]);
    const u16* values = reinterpret_cast<const u16*>(p.run[VALUES]);
#ifdef SPECULATE
    i64 begun = 0;
    while (kv_head < KV_HEADS) {
        // The latest pass: in one that has tiles for this block it cannot be left behind. All lanes
        // go by what the first has read.
        const bool over = *const_cast<volatile int*>(&s.quit);
        const i64 now =
            __shfl_sync(~0u, over ? -1 : *const_cast<volatile i64*>(&s.begun_pass), 0);
        if (now < 0) break;
        if (now == begun) {
            __nanosleep(100);
            continue;
        }
        begun = now;
        const int position = static_cast<int>(now >> 8), width = static_cast<int>(now & 255);
        Splits splits;
        splits.divide(position, p.splits, p.split_tiles);
        const int tiles = split < splits.used ? splits.count(split) : 0;
        bool going = true;
        for (int layer = 0; layer < LAYERS && tiles > 0; layer++) {
            const i64 from = (static_cast<i64>(layer) * KV_HEADS + kv_head) * capacity * HEAD_DIM;
            for (int turn = 0; turn < turns_of(width); turn++)
                for (int tile = 0; tile < tiles && going; tile++)
                    going = feeder.feed(tile % KV_SLOTS, keys + from, values + from,
                                        (splits.first(split) + tile) * TILE, position, lane);
        }
    }
#else
    Passes passes(p);
    bool going = kv_head < KV_HEADS;
    for (int pass = 0; going; pass++) {
        // What the pass before appended is there once this one has begun.
        while (*const_cast<volatile int*>(&s.begun) <= pass && going) {
            if (*const_cast<volatile int*>(&s.quit)) going = false;
            __nanosleep(100);
        }
        Splits splits;
        splits.divide(passes.position, p.splits, p.split_tiles);
        const int tiles = split < splits.used ? splits.count(split) : 0;
        for (int layer = 0; layer < LAYERS && tiles > 0; layer++) {
            const i64 from = (static_cast<i64>(layer) * KV_HEADS + kv_head) * capacity * HEAD_DIM;
            for (int turn = 0; turn < turns_of(passes.tokens()); turn++)
                for (int tile = 0; tile < tiles && going; tile++)
                    going = feeder.feed(tile % KV_SLOTS, keys + from, values + from,
                                        (splits.first(split) + tile) * TILE, passes.position,
                                        lane);
        }
        passes.next();
    }
#endif
    asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void tell(i64* word, i64 value) {
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ void tell_last(i64* word, i64 value) {
    asm volatile("st.release.sys.global.b64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ __forceinline__ i64 ask(const i64* word) {
    i64 value;
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

// One thread of block 0: tokens to the host, the wish to stop from it.
__device__ __forceinline__ void speak(const Params& p, Shared& s) {
    int told = 0;
    i64 published = 0;
    const i64 run = p.run[DOORBELL];
    while (true) {
        const bool over = *const_cast<volatile int*>(&s.quit);
        if (*const_cast<volatile int*>(&s.posted) == told) {
            if (over) return;
            if (ask(p.words + STOP) == run || ask(p.words + SHUTDOWN) != 0)
                *const_cast<volatile int*>(&s.stop) = 1;
            __nanosleep(500);
            continue;
        }
        __threadfence_block();
        const volatile Post& told_now = s.posts[told & LAST_POST];
        if (told == 0) tell(p.words + PREFILL_END_NS, *const_cast<volatile i64*>(&s.prefill_end_ns));
        if (told_now.id >= 0) {
            i64* slot = p.slots + published * 3;
            tell(slot, told_now.id);
#ifdef SPECULATE
            tell(slot + 1, told_now.time_ns);
#else
            tell(slot + 1, static_cast<i64>(device_ns()));
#endif
            tell(slot + 2, __double_as_longlong(told_now.logprob));
            published++;
        }
        tell(p.words + FED, p.run[FED] + told_now.fed);
#ifdef SPECULATE
        tell(p.words + PASSES, told_now.drafts.passes);
        tell(p.words + DRAFTED, told_now.drafts.drafted);
        tell(p.words + ACCEPTED, told_now.drafts.accepted);
#endif
        const i64 finish = told_now.finish == RUNNING ? 0 : published << 8 | told_now.finish;
        if (told_now.id >= 0) tell(p.words + FINISH, finish);
        tell_last(p.words + PUBLISHED, published);
        if (told_now.id < 0) tell_last(p.words + FINISH, finish);
        told++;
#ifdef SPECULATE
        *const_cast<volatile int*>(&s.told) = told;
#endif
    }
}
