// The ring in shared memory that the tape runs through.
//
// One thread (tape_feed.cuh) copies the tape, slot by slot, with bulk copies that complete on a
// barrier for each slot. What has landed may fill the ring.
#pragma once
#include "tape_exchange.cuh"

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
    u32 barrier, u32 parity, Life life) {
    while (!barrier_passed(barrier, parity) && !life.is_dead()) {
    }
}

struct RingBarriers {
    u64 full[MAX_SLOTS], empty[MAX_SLOTS];
    int unit[MAX_SLOTS];  // what a slot holds of a stage's pool, or OWN: known once it is full
};
constexpr int OWN = -1;
constexpr u32 EMPTY = MAX_SLOTS * 8;  // from a slot's first barrier to its second
constexpr u32 UNITS = 2 * MAX_SLOTS * 8;  // from the first barrier to the first slot's unit

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
    __device__ __forceinline__ void await_slot(Life life) {
#ifdef MEASURE
        const i64 before = clock64();
#endif
        barrier_wait(barriers + slot * 8, parity, life);
#ifdef MEASURE
        const i64 now = clock64();
        waited += now - before;
        if (first == 0) first = now;
#endif
    }
    // Asked for early, the answer costs no time; each lane has its own.
    __device__ __forceinline__ bool is_there() const {
        return barrier_is_past(barriers + slot * 8, parity);
    }
    // The same for all lanes: the first one's answer, which is that of all who ask after it.
    __device__ __forceinline__ bool has_landed() const {
        return __shfl_sync(~0u, is_there(), 0);
    }
    // This lane's part of a slot.
    __device__ __forceinline__ void take_slot(
        uint4 (&to)[SLOT_ROWS], int lane, Life life) {
        await_slot(life);
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
