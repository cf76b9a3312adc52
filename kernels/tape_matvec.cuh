// Weights times activations on tensor cores, straight from the ring.
//
// The product is computed transposed: activations are the 16 rows of mma.m16n8k16's A, weights its
// B. A row of A is one bfloat16 half of one token's activations: row t holds what rounds off, row
// t + 8 the rest, so that eight tokens go through with the precision of 16 bits of mantissa at the
// cost of one, and both halves of a result lie in one thread. Eight weight rows are a unit.
#pragma once
#include "tape_ahead.cuh"
#include "tape_sums.cuh"

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float from_bf16(u16 bits) {
    return __uint_as_float(static_cast<u32>(bits) << 16);
}
__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ u32 to_bf16_pair(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two neighbouring values as what bfloat16 holds of them, and as what it leaves.
__device__ __forceinline__ uint2 halves_of(float first, float second) {
    const u32 top = to_bf16_pair(first, second);
    return {top, to_bf16_pair(first - low_bf16(top), second - high_bf16(top))};
}

// Activations in shared memory lie as A's fragments: 64 bytes for 16 columns of one token, in rows
// for the tokens. Of several, who writes one token's columns would hit the same few banks again and
// again: so in every second step of 16 columns neighbouring tokens have changed places, and in every
// second pair of steps neighbouring 16 bytes.
__device__ __forceinline__ int fragment_rows(int width) {
    return WIDTH == 1 ? 1 : (width + 1) & ~1;
}

__device__ __forceinline__ int fragment_offset(int column, int token, int width) {
    const int within = column & 15, row = WIDTH == 1 ? token : token ^ (column >> 4 & 1);
    const int pair = WIDTH == 1 ? (within & 7) >> 1 : (within & 7) >> 1 ^ (column >> 5 & 1);
    return ((column >> 4) * fragment_rows(width) + row) * 64 + pair * 16 + (within >> 3) * 8;
}

// The same of column 4 * quad.
__device__ __forceinline__ int quad_offset(u32 quad, int token, int width) {
    const int row = WIDTH == 1 ? token : token ^ (quad >> 2 & 1);
    return ((quad >> 2) * fragment_rows(width) + row) * 64 + (quad & 1) * 32 + (quad & 2) * 4 +
           (WIDTH == 1 ? 0 : (quad & 8) * 2);
}

// From there to the columns that are two on.
__device__ __forceinline__ int next_pair(u32 quad) { return WIDTH > 1 && quad & 8 ? -16 : 16; }

// Zeros unless `wanted`, without a branch.
__device__ __forceinline__ uint4 load_shared_if(u32 address, bool wanted) {
    uint4 v;
    asm volatile(
        "{ .reg .pred p;\n"
        "setp.ne.u32 p, %5, 0;\n"
        "mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
        "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4]; }"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "r"(address), "r"(static_cast<u32>(wanted)));
    return v;
}

// Columns of the activations as one operand A, for two blocks of 32 columns.
//
// With several tokens each product has an operand of its own, token by token in A's rows. A single
// token leaves seven of eight rows free, so they hold the next columns: rows 0 to 3 are four
// k-steps, one load feeds four products, and of product j only row j counts.
//
// Beyond the BLOCKS blocks that the columns fill, an operand is zero: weights are zero there, and what
// lies in memory may be anything, which only a number makes zero.
template <int BLOCKS>
struct Operand {
    u32 address;
    int step;  // bytes of 16 columns
    bool fed;

    // `warp`: whose blocks are all odd or all even, as their pairs of steps are.
    __device__ __forceinline__ Operand(const u8* activations, int width, int warp, int lane)
        : address(shared_address(activations)), step(fragment_rows(width) * 64), fed(true) {
        if (WIDTH == 1) {
            address += (lane & 7) * 16;
            fed = lane < 16;
        } else {
            address += (lane >> 2) * 64 + ((lane & 3) ^ (warp & 1)) * 16;
            fed = (lane >> 2) < width;
        }
    }
    // Of a single token: the k-steps of blocks `block` and `other`.
    __device__ __forceinline__ uint4 pair(int block, int other, int lane) const {
        return load_shared_if(address + (lane < 8 ? block : other) * 128,
                              fed && (lane < 8 ? block : other) < BLOCKS);
    }
    // Of several tokens: operands of the k-steps of blocks `block` and `other`.
    __device__ __forceinline__ void load(int block, int other, uint4 (&to)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = load_shared_if((address ^ (i & 1) * 64) +
                                       ((i < 2 ? block : other) * 2 + (i & 1)) * step,
                                   fed && (i < 2 ? block : other) < BLOCKS);
    }
};

// The four products' sums of one unit.
struct UnitSums {
    float of[4][4];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) of[i][j] = 0.0f;
    }
    // Rows 2q and 2q + 1 of the unit for the token of this lane; valid where `fed`.
    __device__ __forceinline__ float2 total(int lane) const {
        float2 part[4];
#pragma unroll
        for (int i = 0; i < 4; i++) part[i] = {of[i][0] + of[i][2], of[i][1] + of[i][3]};
        if (WIDTH > 1)
            return {part[0].x + part[1].x + (part[2].x + part[3].x),
                    part[0].y + part[1].y + (part[2].y + part[3].y)};
        const bool odd = lane & 4, high = lane & 8;
        float2 mine = {high ? (odd ? part[3].x : part[2].x) : (odd ? part[1].x : part[0].x),
                       high ? (odd ? part[3].y : part[2].y) : (odd ? part[1].y : part[0].y)};
#pragma unroll
        for (int mask = 4; mask <= 8; mask <<= 1) {
            mine.x += __shfl_xor_sync(~0u, mine.x, mask);
            mine.y += __shfl_xor_sync(~0u, mine.y, mask);
        }
        return mine;
    }
};

// Units of the tape, 8 weight rows by COLUMNS columns, filled up to whole slots. A unit's blocks of 32
// columns follow each other, dealt to the warps in turn; every warp leaves its partial sum of every
// unit in `sums` [units][width][8], or with `add` adds it to what is there. `rest` slots of the stage
// follow, whose first are taken ahead.
template <int COLUMNS>
__device__ __forceinline__ void multiply_units(
    Ring& ring, Ahead& ahead, int units, int rest, const u8* activations, int width, float* sums,
    int warp, int lane, Life life, bool add = false) {
    constexpr int SLOTS = padded(COLUMNS) / SLOT_COLUMNS, BLOCKS = (COLUMNS + 31) / 32;
    const Operand<BLOCKS> operand(activations, width, warp, lane);
    const int token = WIDTH == 1 ? 0 : lane >> 2;
    const bool writes = WIDTH == 1 ? lane < 4 : operand.fed;
    float2* to = reinterpret_cast<float2*>(sums + token * 8 + (lane & 3) * 2);
    UnitSums sum;
    sum.clear();
    auto close = [&] {
        const float2 total = sum.total(lane);
        if (writes) *to = add ? float2{to->x + total.x, to->y + total.y} : total;
        to += width * 4;
        sum.clear();
    };
    constexpr int DEPTH = Ahead::DEPTH, LAST = SLOTS - 1;
    constexpr int TURN = SLOTS % DEPTH ? DEPTH * SLOTS : SLOTS;  // whole units, all of Ahead
    // Several tokens' operands stay in registers where they fit: read from shared memory for every
    // unit, they keep what has landed from being worked off faster than memory delivers more.
    constexpr bool HELD = WIDTH > 1 && SLOTS <= 2;
    uint4 operands_held[HELD ? SLOTS : 1][2][4];
    if (HELD)
#pragma unroll
        for (int i = 0; i < SLOTS * 2; i++) {
            const int block = warp + i * 2 * WARPS;
            operand.load(block, block + WARPS, operands_held[HELD ? i / 2 : 0][i & 1]);
        }
    uint4 columns_held[SLOTS][2];
    if (WIDTH == 1)
#pragma unroll
        for (int i = 0; i < SLOTS * 2; i++) {
            const int block = warp + i * 2 * WARPS;
            columns_held[i / 2][i & 1] = operand.pair(block, block + WARPS, lane);
        }
    const int mine = units * SLOTS, all = Ahead::to_take(mine, rest);
    ahead.fill(ring, all, lane, life);
#pragma unroll 1
    for (int first = 0; first < mine; first += TURN) {
#pragma unroll
        for (int i = 0; i < TURN; i++) {
            if (TURN != SLOTS && first + i >= mine) break;
            uint4(&now)[SLOT_ROWS] = ahead.slot[i % DEPTH];
            const bool more = first + i + DEPTH < all, landed = ring.is_there();
            uint4 columns[2][4];
            if (WIDTH > 1 && !HELD)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int block = warp + (i % SLOTS * 2 + j) * 2 * WARPS;
                    operand.load(block, block + WARPS, columns[j]);
                }
#pragma unroll
            for (int j = 0; j < SLOT_ROWS; j++) {
                if ((i % SLOTS * SLOT_ROWS + j) * WARPS >= BLOCKS) continue;
                const int at = (j & 1) * 2;
                const uint4& held = columns_held[i % SLOTS][j / 2];
                const uint4(&own)[4] =
                    HELD ? operands_held[HELD ? i % SLOTS : 0][j / 2] : columns[j / 2];
                mma(sum.of[at], WIDTH == 1 ? held : own[at], now[j].x, now[j].y);
                mma(sum.of[at + 1], WIDTH == 1 ? held : own[at + 1], now[j].z, now[j].w);
            }
            if (more) {
                if (!landed) ring.await_slot(life);
                ring.take_landed(now, lane);
            }
            if (i % SLOTS == LAST) close();
        }
    }
    ahead.held = min(DEPTH, all - mine);
}
