// The producer's side of the ring: a warp whose lanes do the same, and one of which copies. (Of a
// single thread the compiler does not know that it is alone, and elects a lane in a loop.)
//
// It waits for a free slot and for all but the last few copies to have landed, and for nothing else:
// neither a stage's end nor a token's. What is in flight is bounded, because every message of an
// exchange queues behind it. While the ring is full it asks L2 for what comes next, no faster than
// memory delivers: so memory works on through the waits that are longer than the ring. What it does
// between two copies adds to the time of each, so it counts along and divides by nothing.
//
// An eighth of QKV and of gate/up is nobody's: after its own units of the stage a block draws a
// ticket for the next of the pool, as long as there are any, one unit ahead of need. A row's result
// does not depend on whose it is. Each block draws one ticket too many, so the tickets of a pass
// begin where all of the one before have ended (Plan: _SLOTS_BEFORE_POOL).
#pragma once
#ifdef SPECULATE
#include "tape_draft.cuh"
#else
#include "tape_reply.cuh"
#endif

// Slots that follow each other in memory: of the block's own tape, or a unit of a pool.
struct Run {
    const u8* from;
    int slots, unit;  // unit: its number in the stage, or OWN
};

// A pass's way along the tape and through the pools. A layer has three parts: QKV; output, gate and
// up; down. After the first two comes a pool. One more part is the head.
struct Route {
    static constexpr int PARTS = 3, UNIT_SLOTS = padded(HIDDEN) / SLOT_COLUMNS;
    static constexpr int UNIT_BYTES = UNIT_SLOTS * SLOT_BYTES;
    const Params& p;
    const Share& share;
    u32 pass;
    int head_slots;  // of this pass
    int layer, part;
    int own;         // slots of the part's that are still to come
    u32 pool, first; // units, and the first one's number in the stage
    u32 drawn;       // the block's next one of the pool, if there are so many
    u32* ticket;
    const u8* pooled;

    __device__ __forceinline__ void begin(u32 number, bool head) {
        pass = number;
        head_slots = head ? share.head_slots : 0;
        layer = own = 0;
        part = -1;
        pool = drawn = 0;
        pooled = p.tape + gridDim.x * p.tape_stride;
    }

    __device__ __forceinline__ u32 draw() const {
        u32 mine = 0;
        if (threadIdx.x % 32 == 0) mine = atomicAdd(ticket, 1u);
        return __shfl_sync(~0u, mine, 0) - pass * (pool + gridDim.x);
    }

    // What follows, if anything; `tape`: the next of the own slots.
    __device__ __forceinline__ bool next(const u8* tape, Run& run) {
        while (own == 0) {
            if (drawn < pool) {
                run = {pooled + static_cast<i64>(drawn) * UNIT_BYTES, UNIT_SLOTS,
                       static_cast<int>(first + drawn)};
                drawn = draw();
                return true;
            }
            if (layer == LAYERS) return false;
            next_part();
        }
        // A ticket is on its way while the last of these are fed.
        run = {tape, pool > 0 && own > UNIT_SLOTS ? own - UNIT_SLOTS : own, OWN};
        own -= run.slots;
        if (pool > 0 && own == 0) drawn = draw();
        return true;
    }

  private:
    __device__ __forceinline__ void next_part() {
        pooled += pool * UNIT_BYTES;
        if (++part == PARTS) {
            part = 0;
            layer++;
        }
        own = part == 0   ? share.qkv_slots
              : part == 1 ? share.middle_slots
                          : share.layer_slots / LAYERS - share.qkv_slots - share.middle_slots;
        pool = static_cast<u32>(part == 0 ? p.qkv_pool : part == 1 ? p.gate_pool : 0);
        if (layer == LAYERS) own = head_slots, pool = 0;
        first = (part == 0 ? (QKV_SIZE + 7) / 8 : INTERMEDIATE / 4) - pool;
        ticket = p.tickets + layer * 2 + part;
        drawn = 0;
    }
};

struct Feeder {
    u32 base, barriers;
    const volatile int *quit, *waiting;
    const u8* tape;
    int slots, in_flight, quiet, ahead, pace;  // ahead: slots; pace: cycles a slot
    // The slot to fill next, and the first whose copy may still be under way; each with its parity.
    u32 slot, parity, landing, landing_parity;
    int flying;    // copies since then
    bool hushed;   // the block has been waiting for others
    bool wrapped;  // the ring has been filled once
    int at, count;  // slots of this pass on the block's own tape: the next, and all
    int asked;      // of those L2 has been asked for and the ring has not
    i64 asked_at;
    u64 policy;

    __device__ __forceinline__ void start() {
        slot = parity = landing = landing_parity = 0;
        flying = asked = 0;
        wrapped = hushed = false;
        // Kept, and not found out again for every slot.
        base = kept(base);
        barriers = kept(barriers);
        asked_at = cycles();
        policy = read_once();
    }

    // Weights are read once a token: they should not push the cache and the exchange out of L2.
    __device__ __forceinline__ static u64 read_once() {
        u64 policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        return policy;
    }

    __device__ __forceinline__ const u8* next_own() const {
        return tape + static_cast<i64>(at) * SLOT_BYTES;
    }

    // A slot with what lies at `from`. False when the run is over.
    __device__ __forceinline__ bool feed(const u8* from, int unit) {
        const u32 full = barriers + slot * 8;
        if (wrapped)
            while (!__all_sync(~0u, barrier_is_past(full + EMPTY, parity ^ 1))) {
                if (__any_sync(~0u, *quit)) return false;
                look_ahead();
            }
        if (flying == in_flight)
            await_landing();
        else
            flying++;
        for (; hushed && flying > quiet; flying--) await_landing();
        asm volatile(
            "{ .reg .pred p;\n"
            "elect.sync _|p, -1;\n"
            "@p st.shared.s32 [%5], %6;\n"
            "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n"
            "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4; }" ::"r"(base + slot * SLOT_BYTES),
            "l"(from), "r"(SLOT_BYTES), "r"(full), "l"(policy), "r"(barriers + UNITS + slot * 4),
            "r"(unit)
            : "memory");
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
            wrapped = true;
        }
        return true;
    }

    __device__ __forceinline__ bool feed(const Run& run) {
        const u8* from = run.from;
#pragma unroll 1
        for (int left = run.slots; left > 0; left--, from += SLOT_BYTES) {
            if (!feed(from, run.unit)) return false;
            if (run.unit == OWN) at++;
            if (run.unit == OWN && asked > 0)
                asked--;
            else if (ahead > 0)
                asked_at = cycles();
        }
        return true;
    }

    // A block must not leave while copies into it are under way.
    __device__ __forceinline__ void drain() {
        while (flying-- > 0) await_landing();
    }

  private:
    __device__ __forceinline__ void await_landing() {
        while (!__all_sync(~0u, barrier_is_past(barriers + landing * 8, landing_parity))) {
            hushed = __any_sync(~0u, *waiting);  // here it costs no time
            look_ahead();
        }
        if (++landing == slots) {
            landing = 0;
            landing_parity ^= 1;
        }
    }
    __device__ __forceinline__ void look_ahead() {
        if (asked >= ahead || !__all_sync(~0u, cycles() - asked_at >= pace)) return;
        const int next = at + asked < count ? at + asked : at + asked - count;
        asm volatile(
            "{ .reg .pred p;\n"
            "elect.sync _|p, -1;\n"
            "@p cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2; }" ::"l"(
                tape + static_cast<i64>(next) * SLOT_BYTES),
            "r"(SLOT_BYTES), "l"(policy)
            : "memory");
        asked++;
        asked_at = cycles();
    }
};

// The tape, in the order of the passes, as long as there is room.
__device__ __forceinline__ void feed_tape(const Params& p, Shared& s, u8* dynamic) {
    Feeder feeder{shared_address(dynamic), shared_address(&s.ring), &s.quit, &s.waiting,
                  p.tape + blockIdx.x * p.tape_stride,
                  static_cast<int>(p.ring_slots), static_cast<int>(p.in_flight),
                  static_cast<int>(p.quiet), 0, static_cast<int>(p.pace)};
    feeder.start();
    Route route{p, s.share};
    Passes passes(p);
    bool going = true;
    for (u32 pass = 0; going; pass++) {
        const bool head = passes.samples() && p.run[MAX_TOKENS] > 0;
        const bool prefilled = passes.samples() && p.run[MAX_TOKENS] == 0;
        route.begin(pass, head);
        feeder.at = 0;
        feeder.count = s.share.layer_slots + route.head_slots;
        feeder.ahead = min(static_cast<int>(p.ahead), feeder.count);
        Run run;
        while (going && route.next(feeder.next_own(), run)) going = feeder.feed(run);
        if (prefilled || __any_sync(~0u, *feeder.quit)) break;
        if (feeder.count == 0) __nanosleep(1000);  // a model so small that there is nothing to do
        if (passes.fed < passes.prompt) passes.next();
    }
    feeder.drain();
}
