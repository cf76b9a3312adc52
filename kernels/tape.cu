// The tape: one launch decodes a whole reply, layers, LM head, sampling and the decision to stop.
//
// One block a multiprocessor, eight warps that compute and four that help: one feeds the ring from
// this block's tape, one copies keys and values ahead, one (of block 0) speaks with the host, one
// sees to it that waits end. Read `decode` for a token's way through the stages. Shapes are macros:
// the host compiles this for a model (kernels/tape_build.py). Includes: exchange < ring < matvec <
// attention, sampling < params < step < head < reply. With SPECULATE a pass verifies drafts
// (tape_draft.cuh, tape_pace.cuh). What a layer runs has to fit the multiprocessor's instruction
// cache (about 128 KB with the draw): at 230 KB a token took 900 us instead of 670.
#ifdef SPECULATE
#include "tape_draft.cuh"
#else
#include "tape_reply.cuh"
#endif

// The computing threads' way through a reply.
__device__ __forceinline__ void decode(const Params& p, Shared& s, u8* dynamic) {
    const int tid = threadIdx.x;
    const Sampling& sampling = s.sampling;
    Passes passes(p);
    Step step{p, s, dynamic, tid, tid / 32, tid % 32, {}, {}, s.bounds};
    step.ring.begin(dynamic, s.ring, static_cast<int>(p.ring_slots));
    step.flip = step.squares = step.pass = 0;
    step.kv_parity = 0;
    step.keys = reinterpret_cast<u16*>(p.run[KEYS]);
    step.values = reinterpret_cast<u16*>(p.run[VALUES]);
    step.capacity = static_cast<int>(p.run[CAPACITY]);
    const i64 max_tokens = p.run[MAX_TOKENS];
    const int first_row = s.share.head_unit * 8;
    const int rows = max(0, min(s.share.head_units * 8, VOCAB - first_row));
    for (int i = tid; i < rows; i += CONSUMERS) step.at(p.at_seen)[i] = p.seen[first_row + i];
    step.epoch = Epoch::of(p.state[1]);
    step.kv_head = blockIdx.x / static_cast<int>(p.splits);
    step.split = blockIdx.x % static_cast<int>(p.splits);
    i64 sampled = 0;
    int finish = RUNNING;
#ifdef SPECULATE
    Drafts drafts(step);
#endif
    while (finish == RUNNING) {
#ifdef SPECULATE
        step.width = drafts.choose(passes, sampled);
#else
        step.width = passes.tokens();
#endif
        step.position = passes.position;
        step.epoch = step.epoch.next();
#ifdef SPECULATE
        while (drafts.stale()) step.epoch = step.epoch.next();
#endif
        step.sampled = static_cast<int>(sampled);
        if (passes.fed < passes.prompt && tid < step.width)
            s.token[tid] = static_cast<int>(p.prompt[passes.fed + tid]);
        sync_consumers();
#ifdef SPECULATE
        if (tid < passes.tokens()) {  // drafts: see Head::begin
#else
        if (tid < step.width) {  // a token counts as seen once it is fed
#endif
            const int row = s.token[tid] - first_row;
            if (row >= 0 && row < rows) step.at(p.at_seen)[row] = 1;
        }
#ifdef MEASURE
        step.traced = step.pass == p.trace_pass;
        step.trace_stage = 0;
        step.ring.waited = step.ring.first = 0;
        if (tid == 0 && step.traced) calibrate(p.trace + step.trace_at() + TRACED_ROWS * MARKS);
#endif
        step.ahead.held = 0;
        step.begin_pass();
        #pragma unroll 1
        for (int layer = 0; layer < LAYERS; layer++) {
            step.qkv(layer);
            step.attention(layer);
            step.combine(layer);
            step.output(layer);
            step.gate_up(layer);
            step.down(layer);
        }
        const bool last_of_prompt = passes.fed < passes.prompt && passes.samples();
        if (last_of_prompt && tid == 0) s.prefill_end_ns = static_cast<i64>(device_ns());
#ifdef SPECULATE
        drafts.note();
        if (passes.samples() && max_tokens > 0) {
            finish = drafts.verify(passes, sampled);
        } else {
            Head(step, sampling).meet();
        }
        step.meeting++;
#else
        if (passes.samples() && max_tokens > 0) {
            const u32 position = step.position + step.width;
            Head head(step, sampling);
            head.logits(position);
            if (sampling.filtered()) head.filter(position);
            float log_probability;
            bool stopped;
            const Best chosen = head.draw(log_probability, stopped);
            sampled++;
            finish = finish_of(p, chosen.id, sampled, passes, stopped);
            if (blockIdx.x == 0 && tid == 0)
                post(s, chosen.id, log_probability, finish, passes.fed + step.width);
            if (tid == 0) s.token[0] = chosen.id;
        } else {
            Head(step, sampling).meet();
        }
#endif
        if (passes.samples() && max_tokens == 0) {
            finish = PREFILLED;
            if (blockIdx.x == 0 && tid == 0) post(s, -1, 0.0f, finish, passes.fed + step.width);
        }
#ifdef MEASURE
        step.trace_stage = TRACED_ROWS + 1;
        if (tid == 0 && step.traced) calibrate(p.trace + step.trace_at());
#endif
        passes.next();
        step.pass++;
        sync_consumers();
        if (s.bounds.is_dead()) {
            if (blockIdx.x == 0 && tid == 0) post(s, -1, 0.0f, FAULTED, passes.fed);
            finish = FAULTED;
        }
        sync_consumers();
    }
#ifdef SPECULATE
    if (blockIdx.x == 0 && finish != FAULTED) drafts.keep();
#endif
    // Everybody has read it: nobody is through before all have been in an exchange.
    if (blockIdx.x == 0 && tid == 0) p.state[1] = step.epoch.full;
    if (tid == 0) *const_cast<volatile int*>(&s.quit) = 1;
}

// One thread: the tape, in the order of the passes, as long as there is room.
__device__ __forceinline__ void feed_tape(const Params& p, Shared& s, u8* dynamic) {
    Feeder feeder{shared_address(dynamic), shared_address(&s.ring), const_cast<volatile int*>(&s.quit),
                  p.tape + blockIdx.x * p.tape_stride, static_cast<int>(p.ring_slots),
                  static_cast<int>(p.in_flight), static_cast<int>(p.ahead),
                  static_cast<int>(p.pace)};
    feeder.start();
    Passes passes(p);
    bool going = true;
    while (going) {
        const bool head = passes.samples() && p.run[MAX_TOKENS] > 0;
        const bool prefilled = passes.samples() && p.run[MAX_TOKENS] == 0;
        const int slots = s.share.layer_slots + (head ? s.share.head_slots : 0);
        for (int i = 0; i < slots && going; i++) going = feeder.feed(i, slots);
        if (prefilled || *const_cast<volatile int*>(&s.quit)) break;
        if (slots == 0) __nanosleep(1000);  // a model so small that there is nothing to do here
        if (passes.fed < passes.prompt) passes.next();
    }
    feeder.drain();
}

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
            for (int group = 0; group < row_groups(width); group++)
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
            for (int group = 0; group < row_groups(passes.tokens()); group++)
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) tape_decode(
    const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Shared s;
    const int tid = threadIdx.x;
    if (tid == 0) {
        s.share = p.plan[blockIdx.x];
        s.bounds = {0, 0, p.state, p.words + FAULT, static_cast<u64>(p.run[TIMEOUT_NS])};
        s.sampling = sampling_of(p);
        s.quit = s.begun = s.posted = s.stop = s.stop_now = 0;
#ifdef SPECULATE
        s.begun_pass = s.told = 0;
        s.ended_ns = s.drawn_ns = 0;
        s.drafts = {0, 0, 0};
        s.guess = -1;
        s.pace.acceptance = FIRST_ACCEPTANCE;
        for (int i = 0; i <= MAX_WIDTH; i++) s.pace.cost[i] = p.costs[i];
        for (int i = 0; i < MAX_WIDTH; i++) s.tags[i] = 0;
#endif
        for (int i = 0; i < MAX_SLOTS; i++) {
            barrier_init(shared_address(&s.ring.full[i]), 1);
            barrier_init(shared_address(&s.ring.empty[i]), WARPS);
        }
        for (int i = 0; i < KV_SLOTS; i++) {
            barrier_init(shared_address(&s.kv.full[i]), 32);
            barrier_init(shared_address(&s.kv.empty[i]), 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = tid; i < 2 * KV_TILE_BYTES / 16; i += THREADS)
        reinterpret_cast<uint4*>(dynamic + p.at_new)[i] = {0, 0, 0, 0};
    __syncthreads();
    if (tid < CONSUMERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        decode(p, s, dynamic);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        if (tid == CONSUMERS)
            feed_tape(p, s, dynamic);
        else if (tid >= CONSUMERS + 32 && tid < CONSUMERS + 64)
            feed_cache(p, s, dynamic);
        else if (tid == CONSUMERS + 64 && blockIdx.x == 0)
            speak(p, s);
        else if (tid == CONSUMERS + 96)
            s.bounds.watch(const_cast<const volatile int*>(&s.quit));
    }
}
