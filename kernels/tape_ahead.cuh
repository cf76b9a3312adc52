// What a warp takes out of the ring before its stage can use it.
#pragma once
#include "tape_ring.cuh"

constexpr int SLOT_BLOCKS = SLOT_ROWS * WARPS, SLOT_COLUMNS = SLOT_BLOCKS * 32;

// Columns of a matrix on the tape: eight rows of them are whole slots.
__device__ constexpr int padded(int columns) {
    return (columns + SLOT_COLUMNS - 1) / SLOT_COLUMNS * SLOT_COLUMNS;
}

// A warp's part of the next slots, taken out of the ring ahead: while a stage waits for its
// activations, the ring goes on filling.
struct Ahead {
    static constexpr int DEPTH = 2;  // with more, the code outgrows the instruction cache
    uint4 slot[DEPTH][SLOT_ROWS];
    int held;

    // Fills up, of `most` slots that the stage has left.
    __device__ __forceinline__ void fill(Ring& ring, int most, int lane, Life life) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (held == i && most > i) ring.take_slot(slot[i], lane, life), held = i + 1;
    }
    // As far as they have landed: what the others owe is to be looked for meanwhile.
    __device__ __forceinline__ void try_fill(Ring& ring, int most, int lane) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
            if (held == i && most > i && ring.has_landed())
                ring.take_landed(slot[i], lane), held = i + 1;
    }
    // Where nothing is held: the registers are free until then.
    __device__ __forceinline__ void release() {
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int j = 0; j < SLOT_ROWS; j++) slot[i][j] = {0, 0, 0, 0};
    }
    // Slots that may be taken ahead, of `mine` and then `rest`: a call of multiply_units begins with
    // the first of its registers, so that one that does not end with the last takes none for others.
    __device__ __forceinline__ static int to_take(int mine, int rest) {
        return mine + (mine % DEPTH ? 0 : rest);
    }
};
