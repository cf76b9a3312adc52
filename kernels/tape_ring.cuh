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

__device__ __forceinline__ void barrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count));
}

__device__ __forceinline__ void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ bool barrier_passed(u64* barrier, u32 parity) {
    u32 passed;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(passed)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return passed;
}

__device__ __forceinline__ void barrier_wait(
    u64* barrier, u32 parity, Bounds& bounds, int stage) {
    Patience patience;
    while (!barrier_passed(barrier, parity) && !patience.over(bounds, stage)) {
    }
}

struct RingBarriers {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS];
};

// A warp's place in the ring.
struct Ring {
    u8* base;
    RingBarriers* barriers;
    int slots;
    int slot, row;
    u32 parity;
    i64 waited;  // cycles, with MEASURE

    __device__ __forceinline__ void await_slot(Bounds& bounds, int stage) {
#ifdef MEASURE
        const i64 before = clock64();
#endif
        barrier_wait(&barriers->full[slot], parity, bounds, stage);
#ifdef MEASURE
        waited += clock64() - before;
#endif
    }
    __device__ __forceinline__ const u8* here() const {
        return base + slot * SLOT_BYTES + row * ROW_BYTES;
    }
    __device__ __forceinline__ void advance(int rows, int lane) {
        row += rows;
        if (row == SLOT_ROWS) leave(lane);
    }
    // The tape starts a new slot here.
    __device__ __forceinline__ void align(int lane) {
        if (row > 0) leave(lane);
    }

  private:
    __device__ __forceinline__ void leave(int lane) {
        __syncwarp();
        if (lane == 0) barrier_arrive(&barriers->empty[slot]);
        row = 0;
        if (++slot == slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// The producer's side: one thread.
struct Feeder {
    u8* base;
    RingBarriers* barriers;
    volatile int* quit;
    int slots, in_flight;
    u32 issued;
    u64 policy;

    __device__ __forceinline__ void start() {
        issued = 0;
        // Weights are read once a token: they should not push the cache and the exchange out of L2.
#if KEEP_L2
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#else
        asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
    }

    // False when the run is over.
    __device__ __forceinline__ bool feed(const u8* from) {
        const u32 slot = issued % slots, round = issued / slots;
        if (round > 0)
            while (!barrier_passed(&barriers->empty[slot], (round - 1) & 1))
                if (*quit) return false;
        if (issued >= in_flight) landed(issued - in_flight);
        const u32 full = shared_address(&barriers->full[slot]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full),
                     "r"(SLOT_BYTES)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(base + slot * SLOT_BYTES)),
            "l"(from), "r"(SLOT_BYTES), "r"(full), "l"(policy)
            : "memory");
        issued++;
        return true;
    }

    // A block must not leave while copies into it are under way.
    __device__ __forceinline__ void drain() {
        const u32 first = issued > in_flight ? issued - in_flight : 0;
        for (u32 copy = first; copy < issued; copy++) landed(copy);
    }

  private:
    __device__ __forceinline__ void landed(u32 copy) {
        while (!barrier_passed(&barriers->full[copy % slots], (copy / slots) & 1)) {
        }
    }
};
