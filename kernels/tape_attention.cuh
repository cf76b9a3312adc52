// Attention of one pass: the history split by length over the multiprocessors.
//
// An item is one key head and one split of the history, in tiles of 16 positions, one warp each (two
// in wide passes: tape_rows.cuh).
// Keys and values of the history depend on no data of this pass: a warp of their own copies them
// ahead. The new tokens' keys and values come through the exchange, rounded as the cache rounds
// them, as one more tile of the last split, whose block also appends them. Eight query rows go
// through mma as in tape_matvec.cuh: row r and row r + 8 are the two halves of one query (of one
// probability in the second product).
#pragma once
#include "tape_matvec.cuh"

constexpr int GROUP = HEADS / KV_HEADS;  // query heads of a key head
constexpr int QUERY_SIZE = HEADS * HEAD_DIM;
constexpr int QKV_SIZE = (HEADS + 2 * KV_HEADS) * HEAD_DIM;
constexpr int TILE = 16;                          // positions
constexpr int KV_ROW_BYTES = HEAD_DIM * 2 + 16;   // padded: no bank conflicts
constexpr int KV_TILE_BYTES = TILE * KV_ROW_BYTES;  // of keys, and again of values
constexpr int STEPS = HEAD_DIM / 16;
// KV_SLOTS: tiles of a block copied ahead. What has a result of its own: the tiles of each slot, and
// the new tokens', if a warp is left for them.
constexpr int RESULTS = KV_SLOTS < WARPS ? KV_SLOTS + 1 : WARPS;
constexpr float NOTHING = -1.0e30f;  // a maximum of no scores; finite: differences are numbers

// How the history is divided: `used` splits of `tiles` tiles, the last one perhaps shorter.
struct Splits {
    int used, tiles, all;

    __device__ __forceinline__ void divide(int history, int most, int tiles_wanted) {
        all = (history + TILE - 1) / TILE;
        tiles = max(tiles_wanted, (all + most - 1) / most);
        used = max(1, (all + tiles - 1) / tiles);
    }
    __device__ __forceinline__ int first(int split) const { return split * tiles; }
    __device__ __forceinline__ int count(int split) const {
        return max(0, min(tiles, all - split * tiles));
    }
};

// Query rows of a pass go by in groups of eight. In wide passes two warps share a tile, each with
// every second group, and as many of those as its registers hold: most passes see a tile once.
constexpr int SHARERS = WIDTH == 1 ? 1 : 2;
constexpr int MOST_GROUPS = (WIDTH * GROUP + 7) / 8, SOFTMAX_REGISTERS = HEAD_DIM / 2 + 2;
constexpr int GROUPS_EACH =
    WIDTH > 1 && MOST_GROUPS > SHARERS && 2 * SOFTMAX_REGISTERS <= 72 ? 2 : 1;
constexpr int ROWS_AT_ONCE = SHARERS * GROUPS_EACH * 8;

// How often a pass goes through the history.
__device__ constexpr int turns_of(int width) {
    return (width * GROUP + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
}

// Groups that a pass's queries lie in as operands.
constexpr int QUERY_GROUPS = turns_of(WIDTH) * (ROWS_AT_ONCE / 8);

struct KvBarriers {
    u64 full[KV_SLOTS], empty[KV_SLOTS];
};

// The copying warp's side. Tile t of an item goes to slot t % KV_SLOTS, which always the same warp
// empties: the parity that a barrier tells is enough only for who has seen every phase before.
// Rows beyond the history become zeros: what lies there may be anything.
struct KvFeeder {
    u8* base;
    KvBarriers* barriers;
    volatile int* quit;
    u32 used, parity;  // a bit for each slot

    __device__ __forceinline__ bool feed(
        int slot, const u16* keys, const u16* values, int position, int history, int lane) {
        if (used >> slot & 1)
            while (!barrier_passed(shared_address(&barriers->empty[slot]), ~parity >> slot & 1))
                if (*quit) return false;
        used |= 1u << slot;
        parity ^= 1u << slot;
        const u32 to = shared_address(base + slot * 2 * KV_TILE_BYTES);
        constexpr int CHUNKS = HEAD_DIM / 8;  // of 16 bytes, in a row
        for (int chunk = lane; chunk < TILE * CHUNKS; chunk += 32) {
            const int row = chunk / CHUNKS, at = chunk % CHUNKS;
            const bool inside = position + row < history;
            const i64 from = static_cast<i64>(inside ? position + row : 0) * HEAD_DIM + at * 8;
            const u32 there = to + row * KV_ROW_BYTES + at * 16;
            const int bytes = inside ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(there),
                         "l"(keys + from), "r"(bytes)
                         : "memory");
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                             there + KV_TILE_BYTES),
                         "l"(values + from), "r"(bytes)
                         : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                         shared_address(&barriers->full[slot]))
                     : "memory");
        return true;
    }
};

__device__ __forceinline__ void load_matrices(u32 address, u32 (&to)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_transposed(u32 address, u32 (&to)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What some positions add to four values of a head: a maximum, and sums relative to it.
struct Partial {
    float top, total;
    float4 of;

    __device__ __forceinline__ void add(const Partial& other) {
        const float new_top = fmaxf(top, other.top);
        const float mine = power_of_two(top - new_top), its = power_of_two(other.top - new_top);
        top = new_top;
        total = total * mine + other.total * its;
        of = {of.x * mine + other.of.x * its, of.y * mine + other.of.y * its,
              of.z * mine + other.of.z * its, of.w * mine + other.of.w * its};
    }
    __device__ __forceinline__ Partial shuffled(int mask) const {
        return {__shfl_xor_sync(~0u, top, mask), __shfl_xor_sync(~0u, total, mask),
                {__shfl_xor_sync(~0u, of.x, mask), __shfl_xor_sync(~0u, of.y, mask),
                 __shfl_xor_sync(~0u, of.z, mask), __shfl_xor_sync(~0u, of.w, mask)}};
    }
};

// One warp's running softmax over its tiles, for eight query rows. A thread has row lane / 4.
struct Softmax {
    u32 queries;  // in shared memory, this lane's part of the first operand
    float out[2 * STEPS][4];
    float top, total;

    __device__ __forceinline__ void begin() {
        top = NOTHING;
        total = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) out[i][j] = 0.0f;
    }

    // `valid`: how many of the tile's positions this thread's row may see.
    __device__ __forceinline__ void add(const u8* keys, int valid, int lane) {
        const int quad = lane & 3;
        // Matrices of a k-step: positions 0-7 and 8-15, columns 0-7 and 8-15 of the step.
        const u32 key_at = shared_address(keys) +
                           ((lane >> 4) * 8 + (lane & 7)) * KV_ROW_BYTES + ((lane >> 3) & 1) * 16;
        float near[4] = {}, far[4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 k[4];
            load_matrices(key_at + step * 32, k);
            const uint4 query = load_shared(queries + step * 512);
            mma(near, query, k[0], k[1]);
            mma(far, query, k[2], k[3]);
        }
        float score[4] = {near[0] + near[2], near[1] + near[3], far[0] + far[2], far[1] + far[3]};
        const int at[4] = {quad * 2, quad * 2 + 1, quad * 2 + 8, quad * 2 + 9};
        float best = NOTHING;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (at[i] < valid) best = fmaxf(best, score[i]);
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 1));
        best = fmaxf(best, __shfl_xor_sync(~0u, best, 2));
        const float new_top = fmaxf(top, best), shrink = power_of_two(top - new_top);
        float mass = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            score[i] = at[i] < valid ? power_of_two(score[i] - new_top) : 0.0f;
            mass += score[i];
        }
        mass += __shfl_xor_sync(~0u, mass, 1);
        mass += __shfl_xor_sync(~0u, mass, 2);
        total = total * shrink + mass;
        top = new_top;
        const uint2 low = halves_of(score[0], score[1]), high = halves_of(score[2], score[3]);
        const uint4 weights = {low.x, low.y, high.x, high.y};
        // Matrices: positions 0-7 and 8-15 of eight columns, then of the next eight.
        const u32 value_at = shared_address(keys + KV_TILE_BYTES) +
                             (((lane >> 3) & 1) * 8 + (lane & 7)) * KV_ROW_BYTES +
                             (lane >> 4) * 16;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            u32 v[4];
            load_transposed(value_at + step * 32, v);
#pragma unroll
            for (int j = 0; j < 4; j++) out[2 * step][j] *= shrink, out[2 * step + 1][j] *= shrink;
            mma(out[2 * step], weights, v[0], v[1]);
            mma(out[2 * step + 1], weights, v[2], v[3]);
        }
    }
};
