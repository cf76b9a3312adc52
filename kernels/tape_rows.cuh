// Attention of a wide pass, and which way a pass goes.
//
// The query rows of all tokens of a pass, in groups of eight, share one item's tiles: two warps wait
// for a tile, each multiplies it with its groups, and only then it goes. What slots and groups have
// found lies behind the queries until it is put together, all at once.
#pragma once
#include "tape_item.cuh"

struct Rows : Item {
    __device__ __forceinline__ void attention(int layer) {
        begin(layer, ATTENTION);
        MARK(0)
        if (kv_head < KV_HEADS && split < splits.used) {
            if (WIDTH == 1 && warp < min(KV_SLOTS, splits.count(split))) await_tile();
            gather_heads(layer);
            MARK(1)
            if (split == splits.used - 1) append(layer);
            for (int turn = 0; turn < turns_of(width); turn++) {
                if constexpr (WIDTH == 1)
                    attend(layer, turn * 8);
                else
                    attend_wide(turn * ROWS_AT_ONCE);
                // A wide pass's results lie where the next stage gathers.
                if (WIDTH > 1 || turn + 1 < turns_of(width)) sync_consumers();
            }
        }
        if constexpr (WIDTH > 1) ahead.release();  // QKV has left nothing
        MARK(2)
        MARK_END(ATTENTION)
    }

    __device__ __forceinline__ void attend_wide(int first_row) {
        const int tiles = splits.count(split), split_first = splits.first(split);
        const bool last = split == splits.used - 1;
        const int rows = min(ROWS_AT_ONCE, width * GROUP - first_row);
        const int slot = warp % KV_SLOTS, side = warp / KV_SLOTS;
        Softmax softmax[GROUPS_EACH];
        begin_rows(softmax, first_row, side);
        // The new tokens' tile goes to a slot that has none, or to the first, when it is through.
        const int results = min(KV_SLOTS, tiles);  // of the history
        const bool has_fresh = last && slot == results % KV_SLOTS;
#pragma unroll 1
        for (int tile = slot; tile < tiles || has_fresh;) {
            const bool fresh = tile >= tiles;
            if (!fresh) barrier_wait(shared_address(&s.kv.full[slot]), kv_parity, life);
            const int start = (split_first + tile) * TILE;
#pragma unroll
            for (int i = 0; i < GROUPS_EACH; i++) {
                const int token = (first_row + row_of(side, i)) / GROUP;
                softmax[i].add(fresh ? at(p.at_new) : at(p.at_kv) + slot * 2 * KV_TILE_BYTES,
                               fresh ? min(token, width - 1) + 1 : position - start, lane);
            }
            if (!fresh) {
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&s.kv.empty[slot]));
                kv_parity ^= 1;
                tile += KV_SLOTS;
            }
            if (tile < tiles) continue;
            leave_rows(softmax, side, fresh ? results : slot, rows);
            if (fresh) break;
            begin_rows(softmax, first_row, side);
        }
        sync_consumers();
        float* outs = outs_of_rows();
        const float2* sums = sums_of_rows();
        publish_rows(first_row, rows, results + (last ? 1 : 0), [&](int w, int r, int d) {
            const int row = w * ROWS_AT_ONCE + r;
            return Partial{sums[row].x, sums[row].y,
                           *reinterpret_cast<const float4*>(
                               outs + row * HEAD_DIM + (d ^ spread(r) * 8))};
        });
    }

    __device__ __forceinline__ void begin_rows(
        Softmax (&softmax)[GROUPS_EACH], int first_row, int side) {
#pragma unroll
        for (int i = 0; i < GROUPS_EACH; i++) {
            softmax[i].queries = shared_address(at(p.at_queries)) +
                                 ((first_row / 8 + side + i * SHARERS) * STEPS * 32 + lane) * 16;
            softmax[i].begin();
        }
    }

    // Of the i-th group that a warp on this side has, this lane's row: every second group is its.
    __device__ __forceinline__ int row_of(int side, int i) const {
        return (side + i * SHARERS) * 8 + (lane >> 2);
    }

    // Behind the queries: [RESULTS][ROWS_AT_ONCE][HEAD_DIM], then the largest score and the total.
    __device__ __forceinline__ float* outs_of_rows() const {
        return at<float>(p.at_queries) + QUERY_GROUPS * STEPS * 128;
    }
    __device__ __forceinline__ float2* sums_of_rows() const {
        return reinterpret_cast<float2*>(outs_of_rows() + RESULTS * ROWS_AT_ONCE * HEAD_DIM);
    }
    // Neighbouring rows lie in other banks: eight columns change places, by the row.
    __device__ __forceinline__ static int spread(int row) {
        return row & (HEAD_DIM % 32 ? 1 : 3);
    }

    __device__ __forceinline__ void leave_rows(
        Softmax (&softmax)[GROUPS_EACH], int side, int result, int rows) {
        const int quad = lane & 3;
#pragma unroll
        for (int i = 0; i < GROUPS_EACH; i++) {
            const int r = row_of(side, i), row = result * ROWS_AT_ONCE + r;
            if (r >= rows) continue;
            if (quad == 0) sums_of_rows()[row] = {softmax[i].top, softmax[i].total};
            float* out = outs_of_rows() + row * HEAD_DIM + quad * 2;
#pragma unroll
            for (int j = 0; j < 2 * STEPS; j++)
                *reinterpret_cast<float2*>(out + (j ^ spread(r)) * 8) = {
                    softmax[i].out[j][0] + softmax[i].out[j][2],
                    softmax[i].out[j][1] + softmax[i].out[j][3]};
        }
    }
};
