// The tape: one launch decodes a whole reply, layers, LM head, sampling and the decision to stop.
//
// One block a multiprocessor, eight warps that compute and four that help: one feeds the ring from
// this block's tape, one copies keys and values ahead, one (of block 0) speaks with the host, one
// sees to it that waits end. Read `decode` for a token's way through the stages. Shapes are macros:
// the host compiles this for a model (kernels/tape_build.py). Includes: exchange < words, sums, ring <
// ahead < matvec < attention, sampling < params < block < pass < item < rows < combine < fold < step <
// filter < head < columns < reply < feed < help. With SPECULATE a pass verifies drafts
// (tape_draft.cuh, tape_pace.cuh). What a layer runs has to fit the multiprocessor's instruction
// cache (about 128 KB with the draw): at 230 KB a token took 900 us instead of 670.
#include "tape_help.cuh"

// The computing threads' way through a reply.
__device__ __forceinline__ void decode(const Params& p, Shared& s, u8* dynamic) {
    const int tid = threadIdx.x;
    const Sampling& sampling = s.sampling;
    Passes passes(p);
    Step step{{{{{p, s, dynamic, tid, tid / 32, tid % 32, {}, {}, Life::of(s.bounds)}}}}};
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
        if (tid < passes.tokens()) {  // drafts: see Columns
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
        const bool first = passes.fed < passes.prompt, samples = passes.samples() && max_tokens > 0;
#ifdef SPECULATE
        Columns head(step, sampling);
        head.least = first ? step.width - 1 : 0;
#else
        Head head(step, sampling);
#endif
        constexpr int PARTS = Step::OUTPUT_TOO ? 3 : 2;
#pragma unroll 1
        for (int part = 0; part < PARTS * LAYERS + samples; part++) {
            const int layer = part / PARTS, of_layer = part % PARTS;
            const Stage stage = part == PARTS * LAYERS  ? HEAD
                                : of_layer == 0         ? QKV
                                : of_layer == PARTS - 1 ? GATE_UP
                                                        : OUTPUT;
            if (stage == HEAD) head.open(first);
            step.of_residual(layer, stage, head);
            if (stage == QKV) {
                step.attention(layer);
                step.combine(layer);
                if (!Step::OUTPUT_TOO) step.output(layer);
            }
            if (stage == GATE_UP) step.down(layer);
        }
#ifdef SPECULATE
        drafts.note();
        if (samples)
            finish = drafts.verify(passes, sampled, head);
        else
            head.meet();
        step.meeting++;
#else
        if (samples) {
            const u32 position = step.position + step.width;
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
            head.meet();
        }
#endif
        if (passes.samples() && max_tokens == 0) {
            finish = PREFILLED;
            if (tid == 0) s.prefill_end_ns = static_cast<i64>(device_ns());
            if (blockIdx.x == 0 && tid == 0) post(s, -1, 0.0f, finish, passes.fed + step.width);
        }
#ifdef MEASURE
        step.trace_stage = TRACED_ROWS + 1;
        if (tid == 0 && step.traced) calibrate(p.trace + step.trace_at());
#endif
        passes.next();
        step.pass++;
        sync_consumers();
        if (step.life.is_dead()) {
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) tape_decode(
    const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ Shared s;
    const int tid = threadIdx.x;
    if (tid == 0) {
        s.share = p.plan[blockIdx.x];
        s.bounds = {0, 0, p.state, p.words + FAULT, static_cast<u64>(p.run[TIMEOUT_NS])};
        s.sampling = sampling_of(p);
        s.quit = s.begun = s.waiting = s.posted = s.stop = s.stop_now = 0;
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
            barrier_init(shared_address(&s.kv.empty[i]), SHARERS);
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
        if (tid >= CONSUMERS && tid < CONSUMERS + 32)
            feed_tape(p, s, dynamic);
        else if (tid >= CONSUMERS + 32 && tid < CONSUMERS + 64)
            feed_cache(p, s, dynamic);
        else if (tid == CONSUMERS + 64 && blockIdx.x == 0)
            speak(p, s);
        else if (tid == CONSUMERS + 96)
            s.bounds.watch(const_cast<const volatile int*>(&s.quit));
    }
}
