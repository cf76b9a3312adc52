// Attention as the computing threads of one block go through it: an item of it.
#pragma once
#include "tape_pass.cuh"

struct Item : Pass {
    // Query heads, key and value of this item's key head: all tokens', normed and rotated.
    __device__ __forceinline__ void gather_heads(int layer) {
        float* heads = at<float>(p.at_heads);
        constexpr int QUADS = HEAD_WORDS / 4;
        constexpr int EACH = WIDTH == 1 ? 1 : (QUADS * WIDTH + CONSUMERS - 1) / CONSUMERS;
        for (int first = 0; first < QUADS * width; first += CONSUMERS * EACH) {
            bool wanted[EACH];
            const Quad* from[EACH];
            Quad quad[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int number = first + tid + i * CONSUMERS, token = number / QUADS;
                const int word = number % QUADS * 4, head = word / HEAD_DIM;
                const int row = head < GROUP    ? kv_head * GROUP + head
                                : head == GROUP ? HEADS + kv_head
                                                : HEADS + KV_HEADS + kv_head;
                wanted[i] = number < QUADS * width;
                from[i] = p.qkv + (token * QKV_SIZE + row * HEAD_DIM + word % HEAD_DIM) / 4;
                if (WIDTH > 1) quad[i] = {0, 0};
            }
            take(from, wanted, quad, epoch, life);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (wanted[i])
                    *reinterpret_cast<float4*>(heads + (first + tid + i * CONSUMERS) * 4) =
                        quad[i].values();
        }
        end_wait();
        sync_consumers();
        u8* fresh = at(p.at_new);
        for (int i = warp; i < width * (GROUP + 2); i += WARPS) {
            const int token = i / (GROUP + 2), head = i % (GROUP + 2);
            float* vector = heads + i * HEAD_DIM;
            const float2* turns = at<float2>(p.at_turns) + token * (HEAD_DIM / 2);
            if (head <= GROUP)
                rotate(vector, (head < GROUP ? p.q_norm : p.k_norm) + layer * HEAD_DIM, turns,
                       lane);
            __syncwarp();
            if (head < GROUP) continue;
            u8* row = fresh + (head - GROUP) * KV_TILE_BYTES + token * KV_ROW_BYTES;
            for (int d = lane * 2; d < HEAD_DIM; d += 64)
                *reinterpret_cast<u32*>(row + d * 2) = to_bf16_pair(vector[d], vector[d + 1]);
        }
        sync_consumers();
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

    // Of a pass of one token: rows first_row .. first_row + 7 of this item's queries. In general, row =
    // token * GROUP + head; for wide passes see tape_rows.cuh.
    __device__ __forceinline__ void attend(
        int layer, int first_row) {
        const int tiles = splits.count(split), split_first = splits.first(split);
        const bool last = split == splits.used - 1;
        const int row = first_row + (lane >> 2), quad = lane & 3;
        const int token = row / GROUP, rows = min(8, width * GROUP - first_row);
        // The queries as operands, a warp for each k-step.
        uint4* queries = at<uint4>(p.at_queries);
#pragma unroll 1
        for (int step = warp; step < STEPS; step += WARPS) {
            uint2 a = {}, b = {};
            if (row < width * GROUP) {
                constexpr float scale = ATTENTION_SCALE * 1.4426950408889634f;
                const float* query = at<float>(p.at_heads) +
                                     (token * (GROUP + 2) + row % GROUP) * HEAD_DIM + quad * 2 +
                                     step * 16;
                const float2 low = *reinterpret_cast<const float2*>(query);
                const float2 high = *reinterpret_cast<const float2*>(query + 8);
                a = halves_of(low.x * scale, low.y * scale);
                b = halves_of(high.x * scale, high.y * scale);
            }
            queries[step * 32 + lane] = {a.x, a.y, b.x, b.y};
        }
        sync_consumers();
        Softmax softmax;
        softmax.queries = shared_address(queries) + lane * 16;
        softmax.begin();
        // The history's tiles, by the warps that have a slot, and the new tokens' one by the next.
        constexpr bool SPARE = KV_SLOTS < WARPS;
        const int fresh_warp = SPARE ? min(tiles, KV_SLOTS) : tiles % KV_SLOTS;
        const bool has_fresh = last && warp == fresh_warp;
        int tile = warp < KV_SLOTS ? warp : tiles;
#pragma unroll 1
        while (tile < tiles || has_fresh) {
            const bool fresh = tile >= tiles;
            if (!fresh) barrier_wait(shared_address(&s.kv.full[warp]), kv_parity, life);
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
            float tops[RESULTS], top = NOTHING, total = 0.0f;
#pragma unroll
            for (int w = 0; w < RESULTS; w++) {
                tops[w] = w < active ? found(w, r, d).top : NOTHING;
                top = fmaxf(top, tops[w]);
            }
            float4 sum = {};
#pragma unroll
            for (int w = 0; w < RESULTS; w++)
                if (w < active) {
                    const float weight = power_of_two(tops[w] - top);
                    const Partial its = found(w, r, d);
                    total += its.total * weight;
                    sum = {sum.x + its.of.x * weight, sum.y + its.of.y * weight,
                           sum.z + its.of.z * weight, sum.w + its.of.w * weight};
                }
            const int of_token = (first_row + r) / GROUP;
            const int head = kv_head * GROUP + (first_row + r) % GROUP;
            const i64 part = (static_cast<i64>(of_token) * HEADS + head) * p.splits + split;
            put(p.parts + (part * HEAD_DIM + d) / 4, sum.x, sum.y, sum.z, sum.w, epoch);
            if (d == 0) put_pair(p.tops + part * 2, top, total, epoch);
        }
    }
};
