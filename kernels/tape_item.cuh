// Attention as the computing threads of one block go through it: an item of it.
#pragma once
#include "tape_pass.cuh"

struct Item : Pass {
    static constexpr int VECTORS = GROUP + 2;         // of a token: query heads, key, value
    static constexpr int OF_VECTOR = HEAD_DIM / 4;    // lanes that have four columns of one
    static constexpr int SEGMENT = OF_VECTOR > 16 ? 32 : OF_VECTOR > 8 ? 16 : OF_VECTOR > 4 ? 8 : 4;
    static constexpr int AT_ONCE = CONSUMERS / SEGMENT;
    static constexpr int EACH_VECTORS = (VECTORS * MAX_WIDTH + AT_ONCE - 1) / AT_ONCE;

    // Query heads, key and value of this item's key head, normed and rotated where they arrive: queries
    // as operands, the new tokens' keys and values as rows of a tile.
    __device__ __forceinline__ void gather_heads(int layer) {
        const int column = lane % SEGMENT * 4, first = tid / SEGMENT;
        bool wanted[EACH_VECTORS];
        const Quad* from[EACH_VECTORS];
        Quad quad[EACH_VECTORS];
        uint2 gains[EACH_VECTORS];
#pragma unroll
        for (int i = 0; i < EACH_VECTORS; i++) {
            const int vector = first + i * AT_ONCE;
            const int token = WIDTH == 1 ? 0 : vector / VECTORS, head = vector - token * VECTORS;
            const int row = head < GROUP    ? kv_head * GROUP + head
                            : head == GROUP ? HEADS + kv_head
                                            : HEADS + KV_HEADS + kv_head;
            wanted[i] = vector < VECTORS * width && column < HEAD_DIM;
            from[i] = p.qkv + (token * QKV_SIZE + row * HEAD_DIM + column) / 4;
            quad[i] = {0, 0};
#if QK_NORM
            if (wanted[i])
                gains[i] = __ldg(reinterpret_cast<const uint2*>(
                    (head < GROUP ? p.q_norm : p.k_norm) + layer * HEAD_DIM + column));
#endif
        }
        take(from, wanted, quad, epoch, life);
        end_wait();
#pragma unroll
        for (int i = 0; i < EACH_VECTORS; i++) {
            const int vector = first + i * AT_ONCE;
            const int token = WIDTH == 1 ? 0 : vector / VECTORS, head = vector - token * VECTORS;
            const float4 plain = quad[i].values();
            const float4 turned = rotated(normed(plain, gains[i]), wanted[i] ? token : 0, column);
            if (!wanted[i]) continue;
            if (head < GROUP)
                leave_query(turned, token * GROUP + head, column);
            else
                leave_fresh(head == GROUP ? turned : plain, head - GROUP, token, column);
        }
        sync_consumers();
    }

    // By the lanes of one head; in a model without this norm what was given.
    __device__ __forceinline__ float4 normed(float4 x, uint2 gains) const {
#if QK_NORM
        float squares = x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
#pragma unroll
        for (int mask = SEGMENT / 2; mask; mask >>= 1)
            squares += __shfl_xor_sync(~0u, squares, mask);
        const float scale = rsqrtf(squares * (1.0f / HEAD_DIM) + RMS_EPS);
        x = {x.x * scale * low_bf16(gains.x), x.y * scale * high_bf16(gains.x),
             x.z * scale * low_bf16(gains.y), x.w * scale * high_bf16(gains.y)};
#endif
        return x;
    }

    // Columns of the first half turn with those of the second, which other lanes have.
    __device__ __forceinline__ float4 rotated(float4 x, int token, int column) const {
        constexpr int APART = OF_VECTOR / 2;
        const bool low = column < HEAD_DIM / 2;
        const int other = low ? lane + APART : lane - APART;
        const float4 y = {__shfl_sync(~0u, x.x, other), __shfl_sync(~0u, x.y, other),
                          __shfl_sync(~0u, x.z, other), __shfl_sync(~0u, x.w, other)};
        const int turn = low ? column : min(column, HEAD_DIM - 4) - HEAD_DIM / 2;
        const float4* turns =
            reinterpret_cast<const float4*>(at<float2>(p.at_turns) + token * (HEAD_DIM / 2) + turn);
        const float4 a = turns[0], b = turns[1];  // cosine and sine of two columns each
        const float sign = low ? -1.0f : 1.0f;
        return {x.x * a.x + y.x * a.y * sign, x.y * a.z + y.y * a.w * sign,
                x.z * b.x + y.z * b.y * sign, x.w * b.z + y.w * b.w * sign};
    }

    // Four columns of a query row to where they are an operand: a k-step of a group of rows is 32 lanes'
    // 16 bytes, of which the first eight are columns 0 to 7.
    __device__ __forceinline__ void leave_query(float4 x, int row, int column) {
        constexpr float scale = ATTENTION_SCALE * 1.4426950408889634f;
        const int step = (row >> 3) * STEPS + (column >> 4);
        u8* to = at(p.at_queries) + (step * 32 + (row & 7) * 4) * 16 + (column & 4) * 8 + (column & 8);
        *reinterpret_cast<uint2*>(to) = halves_of(x.x * scale, x.y * scale);
        *reinterpret_cast<uint2*>(to + 16) = halves_of(x.z * scale, x.w * scale);
    }

    __device__ __forceinline__ void leave_fresh(float4 x, int is_value, int token, int column) {
        u8* row = at(p.at_new) + is_value * KV_TILE_BYTES + token * KV_ROW_BYTES;
        *reinterpret_cast<uint2*>(row + column * 2) = {to_bf16_pair(x.x, x.y),
                                                       to_bf16_pair(x.z, x.w)};
    }

    __device__ __forceinline__ void append(int layer) {
        const u8* fresh = at(p.at_new);
        constexpr int CHUNKS = HEAD_DIM / 8;
#pragma unroll 1
        for (int i = tid; i < 2 * width * CHUNKS; i += CONSUMERS) {
            const int which = i / (width * CHUNKS), token = i / CHUNKS % width, chunk = i % CHUNKS;
            if (position + token >= capacity) continue;
            u16* to = (which ? values : keys) +
                      ((static_cast<i64>(layer) * KV_HEADS + kv_head) * capacity + position +
                       token) * HEAD_DIM;
            reinterpret_cast<uint4*>(to)[chunk] = *reinterpret_cast<const uint4*>(
                fresh + which * KV_TILE_BYTES + token * KV_ROW_BYTES + chunk * 16);
        }
    }

    // The first tile's copy has been waited for while the queries were on their way.
    __device__ __forceinline__ void await_tile() {
        barrier_wait(shared_address(&s.kv.full[warp]), kv_parity, life);
    }

    // Of a pass of one token: rows first_row .. first_row + 7 of this item's queries. In general, row =
    // token * GROUP + head; for wide passes see tape_rows.cuh.
    __device__ __forceinline__ void attend(
        int layer, int first_row) {
        const int tiles = splits.count(split), split_first = splits.first(split);
        const bool last = split == splits.used - 1;
        const int row = first_row + (lane >> 2), quad = lane & 3;
        const int token = row / GROUP, rows = min(8, width * GROUP - first_row);
        Softmax softmax;
        softmax.queries = shared_address(at(p.at_queries)) + (first_row / 8 * STEPS * 32 + lane) * 16;
        softmax.begin();
        // The history's tiles, by the warps that have a slot, and the new tokens' one by the next.
        constexpr bool SPARE = KV_SLOTS < WARPS;
        const int fresh_warp = SPARE ? min(tiles, KV_SLOTS) : tiles % KV_SLOTS;
        const bool has_fresh = last && warp == fresh_warp;
        int tile = warp < KV_SLOTS ? warp : tiles;
#pragma unroll 1
        while (tile < tiles || has_fresh) {
            const bool fresh = tile >= tiles;
            if (!fresh && tile >= KV_SLOTS) await_tile();
            const int start = (split_first + tile) * TILE;
            softmax.add(fresh ? at(p.at_new) : at(p.at_kv) + warp * 2 * KV_TILE_BYTES,
                        fresh ? min(token, width - 1) + 1 : position - start, lane);
            if (fresh) break;
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&s.kv.empty[warp]));
            kv_parity ^= 1;
            tile += KV_SLOTS;
        }
        const int active = max(min(KV_SLOTS, tiles), last ? fresh_warp + 1 : 0);
        float* outs = at<float>(p.at_sums);
        if (warp < active && row < first_row + rows) {
            if (quad == 0) {
                s.tops[warp][lane >> 2] = softmax.top;
                s.totals[warp][lane >> 2] = softmax.total;
            }
            float* out = outs + (warp * rows + (lane >> 2)) * HEAD_DIM + quad * 2;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++)
                *reinterpret_cast<float2*>(out + i * 8) = {
                    softmax.out[i][0] + softmax.out[i][2], softmax.out[i][1] + softmax.out[i][3]};
        }
        sync_consumers();
        publish_rows(first_row, rows, active, [&](int w, int r, int d) {
            return Partial{s.tops[w][r], s.totals[w][r],
                           *reinterpret_cast<const float4*>(outs + (w * rows + r) * HEAD_DIM + d)};
        });
    }

    // What `active` warps or their like have found of the rows from first_row on, put together, for
    // who combines the splits. `found(which, row, column)`: four columns of one's.
    template <class Found>
    __device__ __forceinline__ void publish_rows(int first_row, int rows, int active, Found found) {
        for (int i = tid; i < rows * (HEAD_DIM / 4); i += CONSUMERS) {
            const int r = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
            Partial its[RESULTS];  // all at once: what is not there is whatever lies there
#pragma unroll
            for (int w = 0; w < RESULTS; w++) its[w] = found(w, r, d);
            float top = NOTHING, total = 0.0f;
#pragma unroll
            for (int w = 0; w < RESULTS; w++) top = w < active ? fmaxf(top, its[w].top) : top;
            float4 sum = {};
#pragma unroll
            for (int w = 0; w < RESULTS; w++) {
                const float weight = power_of_two(its[w].top - top);
                const float4 of = its[w].of;
                const bool there = w < active;
                total = there ? total + its[w].total * weight : total;
                sum = {there ? sum.x + of.x * weight : sum.x, there ? sum.y + of.y * weight : sum.y,
                       there ? sum.z + of.z * weight : sum.z, there ? sum.w + of.w * weight : sum.w};
            }
            const int of_token = (first_row + r) / GROUP;
            const int head = kv_head * GROUP + (first_row + r) % GROUP;
            const i64 part = (static_cast<i64>(of_token) * HEADS + head) * p.splits + split;
            put(p.parts + (part * HEAD_DIM + d) / 4, sum.x, sum.y, sum.z, sum.w, epoch);
            if (d == 0) put_pair(p.tops + part * 2, top, total, epoch);
        }
    }
};
