// The ring in shared memory that the tape runs through.
//
// One thread copies the tape, slot by slot, with bulk copies that complete on a barrier for each
// slot; it waits for a free slot and for all but the last few copies to have landed, and for
// nothing else: neither a stage's end nor a token's. What is in flight is bounded, because every
// message of an exchange queues behind it; what has landed may fill the ring.
#pragma once
#include "tape_exchange.cuh"

#ifndef KEEP_L2
#define KEEP_L2 1
#endif

constexpr int BLOCK_BYTES = 512;              // what one warp multiplies at a time
constexpr int ROW_BYTES = BLOCK_BYTES * WARPS;  // a block for each warp
constexpr int SLOT_ROWS = 4;
constexpr int SLOT_BYTES = ROW_BYTES * SLOT_ROWS;
constexpr int MAX_SLOTS = 16;

__device__ __forceinline__ uint4 load_shared(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

// Barriers go by their shared addresses, which a warp finds out once.
__device__ __forceinline__ void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool barrier_passed(u32 barrier, u32 parity) {
    u32 passed;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
    return passed;
}

// The same without the hardware's pause: for who has something else to do.
__device__ __forceinline__ bool barrier_is_past(u32 barrier, u32 parity) {
    u32 passed;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
    return passed;
}

__device__ __forceinline__ void barrier_wait(
    u32 barrier, u32 parity, Bounds& bounds) {
    while (!barrier_passed(barrier, parity) && !bounds.is_dead()) {
    }
}

struct RingBarriers {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS];
};
constexpr u32 EMPTY = MAX_SLOTS * 8;  // from a slot's first barrier to its second

// A warp's place in the ring.
struct Ring {
    u32 base;      // this lane's part of the first slot
    u32 barriers;  // of the first slot
    int slots;
    int slot;
    u32 parity;
    i64 waited, first;  // with MEASURE: cycles, and when the stage's first slot was there

    __device__ __forceinline__ void begin(const u8* ring, const RingBarriers& of, int count) {
        base = shared_address(ring) + threadIdx.x * 16;  // a warp's block: BLOCK_BYTES = 32 * 16
        barriers = shared_address(&of);
        slots = count;
        slot = 0;
        parity = 0;
        waited = first = 0;
    }
    __device__ __forceinline__ void await_slot(Bounds& bounds) {
#ifdef MEASURE
        const i64 before = clock64();
#endif
        barrier_wait(barriers + slot * 8, parity, bounds);
#ifdef MEASURE
        const i64 now = clock64();
        waited += now - before;
        if (first == 0) first = now;
#endif
    }
    // The same for all lanes: the first one's answer, which is that of all who ask after it.
    __device__ __forceinline__ bool has_landed() const {
        return __shfl_sync(~0u, barrier_is_past(barriers + slot * 8, parity), 0);
    }
    // This lane's part of a slot.
    __device__ __forceinline__ void take_slot(
        uint4 (&to)[SLOT_ROWS], int lane, Bounds& bounds) {
        await_slot(bounds);
        take_landed(to, lane);
    }
    __device__ __forceinline__ void take_landed(uint4 (&to)[SLOT_ROWS], int lane) {
        const u32 from = base + slot * SLOT_BYTES;
#pragma unroll
        for (int i = 0; i < SLOT_ROWS; i++) to[i] = load_shared(from + i * ROW_BYTES);
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers + slot * 8 + EMPTY);
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// The producer's side: one thread.
//
// While the ring is full it asks L2 for what comes next, no faster than memory delivers: so memory
// works on through the waits that are longer than the ring.
struct Feeder {
    u32 base, barriers;
    volatile int* quit;
    const u8* tape;
    int slots, in_flight, ahead, pace;  // ahead: slots; pace: cycles a slot
    u32 issued;
    int asked;  // slots that L2 has been asked for and the ring has not
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

    // Slot `number` of a pass that has `count`. False when the run is over.
    __device__ __forceinline__ bool feed(int number, int count) {
        const u8* from = tape + static_cast<i64>(number) * SLOT_BYTES;
        const u32 slot = issued % slots, round = issued / slots;
        if (round > 0)
            while (!barrier_is_past(barriers + slot * 8 + EMPTY, (round - 1) & 1)) {
                if (*quit) return false;
                look_ahead(number, count);
            }
        if (issued >= in_flight) {
            const u32 copy = issued - in_flight;
            while (!barrier_is_past(barriers + copy % slots * 8, (copy / slots) & 1))
                look_ahead(number, count);
        }
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
        if (asked > 0)
            asked--;
        else
            asked_at = cycles();
        return true;
    }

    // A block must not leave while copies into it are under way.
    __device__ __forceinline__ void drain() {
        const u32 first = issued > in_flight ? issued - in_flight : 0;
        for (u32 copy = first; copy < issued; copy++)
            while (!barrier_passed(barriers + copy % slots * 8, (copy / slots) & 1)) {
            }
    }

  private:
    __device__ __forceinline__ void look_ahead(int number, int count) {
        if (asked >= min(ahead, count) || cycles() - asked_at < pace) return;
        const int next = number + asked < count ? number + asked : number + asked - count;
        asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(
                         tape + static_cast<i64>(next) * SLOT_BYTES),
                     "r"(SLOT_BYTES), "l"(policy)
                     : "memory");
        asked++;
        asked_at = cycles();
    }
};
