// The producer's side of the ring: one thread.
//
// It waits for a free slot and for all but the last few copies to have landed, and for nothing else:
// neither a stage's end nor a token's. What is in flight is bounded, because every message of an
// exchange queues behind it. While the ring is full it asks L2 for what comes next, no faster than
// memory delivers: so memory works on through the waits that are longer than the ring.
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

#ifndef KEEP_L2
#define KEEP_L2 1
#endif

struct Feeder {
    u32 base, barriers;
    volatile int *quit, *waiting;
    int* units;  // of the ring's slots
    const u8* tape;
    int slots, in_flight, quiet, ahead, pace;  // ahead: slots; pace: cycles a slot
    u32 issued;
    int at, count;  // slots of this pass on the block's own tape: the next, and all
    int asked;      // of those L2 has been asked for and the ring has not
    i64 asked_at;
    u64 policy;

    __device__ __forceinline__ void start() {
        issued = 0;
        asked = 0;
        asked_at = cycles();
        // Weights are read once a token: they should not push the cache and the exchange out of L2.
#if KEEP_L2
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#else
        asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    }

    // A slot with what lies at `from`. False when the run is over.
    __device__ __forceinline__ bool feed(const u8* from, int unit) {
        const u32 slot = issued % slots, round = issued / slots;
        if (round > 0)
            while (!barrier_is_past(barriers + slot * 8 + EMPTY, (round - 1) & 1)) {
                if (*quit) return false;
                look_ahead();
            }
        if (issued >= in_flight) {
            const u32 copy = issued - in_flight;
            while (!barrier_is_past(barriers + copy % slots * 8, (copy / slots) & 1)) look_ahead();
        }
        if (issued >= quiet) {
            const u32 copy = issued - quiet;
            while (*waiting &&
                   !barrier_is_past(barriers + copy % slots * 8, (copy / slots) & 1))
                look_ahead();
        }
        units[slot] = unit;
        const u32 full = barriers + slot * 8;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full),
                     "r"(SLOT_BYTES)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(base + slot * SLOT_BYTES),
            "l"(from), "r"(SLOT_BYTES), "r"(full), "l"(policy)
            : "memory");
        issued++;
        return true;
    }

    // The next slots of the block's own tape, then units of a pool of `pool`, from `first` on, which
    // lie at `pooled`. `ticket`: where they are drawn; `begun`: how many were before this pass.
    __device__ __forceinline__ bool stage(
        int own, int pool, int first, const u8* pooled, u32* ticket, u32 begun) {
        constexpr int UNIT_SLOTS = padded(HIDDEN) / SLOT_COLUMNS, UNIT_BYTES = UNIT_SLOTS * SLOT_BYTES;
        u32 drawn = 0;
        const u8* from = nullptr;
        int unit = OWN, rest = 0;  // of the unit: slots
        while (true) {
            const bool mine = own > 0;
            if (own == UNIT_SLOTS && pool > 0) drawn = atomicAdd(ticket, 1u) - begun;
            if (mine) {
                from = tape + static_cast<i64>(at) * SLOT_BYTES;
                own--;
            } else if (rest > 0) {
                from += SLOT_BYTES;
                rest--;
            } else {
                if (drawn >= pool) return true;
                from = pooled + static_cast<i64>(drawn) * UNIT_BYTES;
                unit = first + drawn;
                rest = UNIT_SLOTS - 1;
                drawn = atomicAdd(ticket, 1u) - begun;
            }
            if (!feed(from, unit)) return false;
            if (mine) at++;
            if (mine && asked > 0)
                asked--;
            else
                asked_at = cycles();
        }
    }

    // A block must not leave while copies into it are under way.
    __device__ __forceinline__ void drain() {
        const u32 first = issued > in_flight ? issued - in_flight : 0;
        for (u32 copy = first; copy < issued; copy++)
            while (!barrier_passed(barriers + copy % slots * 8, (copy / slots) & 1)) {
            }
    }

  private:
    __device__ __forceinline__ void look_ahead() {
        if (asked >= min(ahead, count) || cycles() - asked_at < pace) return;
        const int next = at + asked < count ? at + asked : at + asked - count;
        asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(
                         tape + static_cast<i64>(next) * SLOT_BYTES),
                     "r"(SLOT_BYTES), "l"(policy)
                     : "memory");
        asked++;
        asked_at = cycles();
    }
};

// The tape, in the order of the passes, as long as there is room.
__device__ __forceinline__ void feed_tape(const Params& p, Shared& s, u8* dynamic) {
    Feeder feeder{shared_address(dynamic), shared_address(&s.ring),
                  const_cast<volatile int*>(&s.quit),
                  const_cast<volatile int*>(&s.waiting), s.ring.unit,
                  p.tape + blockIdx.x * p.tape_stride, static_cast<int>(p.ring_slots),
                  static_cast<int>(p.in_flight), static_cast<int>(p.quiet),
                  static_cast<int>(p.ahead), static_cast<int>(p.pace)};
    feeder.start();
    constexpr int PARTS = 3;  // of a layer: QKV; output, gate and up; down
    constexpr i64 UNIT_BYTES = padded(HIDDEN) / SLOT_COLUMNS * SLOT_BYTES;
    const Share& share = s.share;
    const int layer_slots = share.layer_slots / LAYERS;
    const int qkv_pool = static_cast<int>(p.qkv_pool), gate_pool = static_cast<int>(p.gate_pool);
    Passes passes(p);
    bool going = true;
    for (u32 pass = 0; going; pass++) {
        const bool head = passes.samples() && p.run[MAX_TOKENS] > 0;
        const bool prefilled = passes.samples() && p.run[MAX_TOKENS] == 0;
        feeder.at = 0;
        feeder.count = share.layer_slots + (head ? share.head_slots : 0);
        const u8* pools = p.tape + gridDim.x * p.tape_stride;
        for (int i = 0; i <= LAYERS * PARTS && going; i++) {
            const int part = i % PARTS;
            int own = layer_slots - share.qkv_slots - share.middle_slots, pool = 0, units = 0;
            if (part == 0) own = share.qkv_slots, pool = qkv_pool, units = (QKV_SIZE + 7) / 8;
            if (part == 1) own = share.middle_slots, pool = gate_pool, units = INTERMEDIATE / 4;
            if (i == LAYERS * PARTS) own = head ? share.head_slots : 0, pool = 0;
            going = feeder.stage(own, pool, units - pool, pools, p.tickets + i,
                                 pass * (pool + gridDim.x));
            pools += pool * UNIT_BYTES;
        }
        if (prefilled || *const_cast<volatile int*>(&s.quit)) break;
        if (feeder.count == 0) __nanosleep(1000);  // a model so small that there is nothing to do
        if (passes.fed < passes.prompt) passes.next();
    }
    feeder.drain();
}
