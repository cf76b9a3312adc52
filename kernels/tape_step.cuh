// The stages of one pass as the computing threads of one block go through them.
//
// Every block has its share of every stage by the plan (kernels/tape_plan.py): rows of the
// matrices, an item of attention, words to combine; of some, also what it gets of a pool
// (tape_feed.cuh). A block that has no share of a stage goes on to the next one at once; its tape
// keeps moving in any case.
#pragma once
#include "tape_fold.cuh"

// The down projection's columns go by in parts.
constexpr int DOWN_PART = DOWN_COLUMNS < INTERMEDIATE ? DOWN_COLUMNS : INTERMEDIATE;
constexpr int PART_SLOTS = padded(DOWN_PART) / SLOT_COLUMNS;  // of a unit
constexpr int OTHER_SLOTS = (INTERMEDIATE / DOWN_PART - 1) * PART_SLOTS +
                            padded(INTERMEDIATE % DOWN_PART) / SLOT_COLUMNS;
constexpr int DOWN_UNITS = 8;  // that go through all parts together

struct Step : Fold {
    // The code for several tokens is so much that the output projection shares it where it can.
    static constexpr bool OUTPUT_TOO = WIDTH > 1 && QUERY_SIZE == HIDDEN;

    // The stages whose activations are the normalised residual: QKV, gate and up, and the head, whose
    // sums go to `head`. One piece of code, because three leave less room in the instruction cache.
    template <class Head>
    __device__ __forceinline__ void of_residual(int layer, Stage stage, Head& head) {
        renew();
        const Share& share = s.share;
        const bool is_qkv = stage == QKV, is_gate = stage == GATE_UP;
        const bool is_out = OUTPUT_TOO && stage == OUTPUT;
        const int units = is_qkv    ? share.qkv_units
                          : is_out  ? share.out_units
                          : is_gate ? share.gate_units
                                    : share.head_units;
        MARK(0)
        if (units > 0) {
            const u16* gain = is_qkv    ? p.attn_norm + layer * HIDDEN
                              : is_out  ? p.ones
                              : is_gate ? p.mlp_norm + layer * HIDDEN
                                        : p.norm;
            int first_unit;
            bool pool;
            auto meanwhile = [&] {
                first_unit = is_qkv ? share.qkv_unit : is_gate ? share.gate_unit : 0;
                pool = is_qkv ? p.qkv_pool > 0 : is_gate && p.gate_pool > 0;
            };
            if (WIDTH == 1 && is_qkv && layer == 0) {
                meanwhile();
                gather_embedding(gain, units);
            } else {  // the output projection's first slots are taken before attention's end: combine
                gather<HIDDEN, true>(is_out ? p.attended : is_gate ? p.middle : p.next, gain,
                                     is_out ? 0 : units, layer, stage, meanwhile);
            }
            if (is_qkv) epoch = epoch.next();
            MARK(1)
            multiply<HIDDEN>(
                first_unit, units, pool,
                [&](float* sums, int stride, int first, int n) {
                    if (is_qkv)
                        give_heads(layer, sums, stride, first, n);
                    else if (is_out)
                        add_to_residual(sums, stride, first, n, p.middle);
                    else if (is_gate)
                        give_gated(sums, stride, first, n);
                    else
                        head.take_sums(sums, stride, first, n);
                });
        } else if (is_qkv) {
            epoch = epoch.next();
        }
        MARK_END(stage)
    }

    // Queries, keys and values for everybody.
    __device__ __forceinline__ void give_heads(
        int layer, const float* sums, int stride, int first, int n) {
        for (int i = tid; i < n * width * 2; i += CONSUMERS) {
            const int token = (i >> 1) % width, unit = (i >> 1) / width;
            const int row = (first + unit) * 8 + (i & 1) * 4;
            if (row >= QKV_SIZE) continue;
            const float norm = norm_of(token);
            float4 x = four_sums_of_warps(sums, stride, i * 4);
            x = {x.x * norm, x.y * norm, x.z * norm, x.w * norm};
#if QKV_BIAS
            const uint2 bias =
                *reinterpret_cast<const uint2*>(p.qkv_bias + layer * QKV_SIZE + row);
            x = {x.x + low_bf16(bias.x), x.y + high_bf16(bias.x), x.z + low_bf16(bias.y),
                 x.w + high_bf16(bias.y)};
#endif
            put(p.qkv + (token * QKV_SIZE + row) / 4, x.x, x.y, x.z, x.w, epoch);
        }
    }

    // What gate and up make together, for everybody.
    __device__ __forceinline__ void give_gated(const float* sums, int stride, int first, int n) {
        for (int i = tid; i < n * width; i += CONSUMERS) {
            const int token = i % width, unit = first + i / width;
            const float norm = norm_of(token);
            const float4 gate = four_sums_of_warps(sums, stride, i * 8);
            const float4 up = four_sums_of_warps(sums, stride, i * 8 + 4);
            put(p.activated + token * (INTERMEDIATE / 4) + unit,
                product(gate.x * norm, up.x * norm), product(gate.y * norm, up.y * norm),
                product(gate.z * norm, up.z * norm), product(gate.w * norm, up.w * norm), epoch);
        }
    }

    __device__ __forceinline__ static float product(float gate, float up) {
        return __fdividef(gate, 1.0f + __expf(-gate)) * up;
    }

    // This block's rows of the residual and what `sums` adds to them, for everybody.
    __device__ __forceinline__ void add_to_residual(
        float* sums, int stride, int first, int n, Quad* to) {
        const Share& share = s.share;
        float* residual = at<float>(p.at_residual);
        const int rows = share.out_units * 8;
        for (int i = tid; i < n * width * 2; i += CONSUMERS) {
            const int token = (i >> 1) % width, unit = (i >> 1) / width;
            const int own = (first + unit) * 8 + (i & 1) * 4;
            float4* x = reinterpret_cast<float4*>(residual + token * rows + own);
            const float4 sum = four_sums_of_warps(sums, stride, i * 4);
            *x = {x->x + sum.x, x->y + sum.y, x->z + sum.z, x->w + sum.w};
            put(to + (token * HIDDEN + share.out_unit * 8 + own) / 4, x->x, x->y, x->z, x->w,
                epoch);
        }
    }

    __device__ __forceinline__ void output(int layer) {
        renew();
        const Share& share = s.share;
        MARK(0)
        if (share.out_units > 0) {
#if !FOLD
            gather<QUERY_SIZE, false>(p.attended, nullptr, 0, layer, OUTPUT, [] {});  // see combine
#endif
            MARK(1)
            multiply<QUERY_SIZE>(
                0, share.out_units, false, [&](float* sums, int stride, int first, int n) {
                    add_to_residual(sums, stride, first, n, p.middle);
                });
        }
        MARK_END(OUTPUT)
    }

    // The columns in parts: the activations of all would leave the ring too little room.
    __device__ __forceinline__ void down(int layer) {
        renew();
        const Share& share = s.share;
        MARK(0)
        const int stride = DOWN_UNITS * width * 8;
        for (int first = 0; first < share.out_units; first += DOWN_UNITS) {
            const int count = min(DOWN_UNITS, share.out_units - first);
            float* sums = at<float>(p.at_sums) + flip * WARPS * stride;
            ahead.try_fill(ring, Ahead::to_take(count * PART_SLOTS, count * OTHER_SLOTS), lane);
            down_parts(layer, count, sums + warp * stride, first > 0);
            MARK(6)
            sync_consumers();
            MARK(2)
            add_to_residual(sums, stride, first, count, p.next);
            flip ^= 1;
        }
        MARK_END(DOWN)
    }

    // `again`: what was gathered before is still being multiplied. The next words, as many as there are
    // registers for, are under way while these are multiplied.
    __device__ __forceinline__ void down_parts(int layer, int units, float* sums, bool again) {
        constexpr int PARTS = INTERMEDIATE / DOWN_PART, LAST = INTERMEDIATE % DOWN_PART;
        Words<DOWN_PART, INTERMEDIATE> words;
        words.ask_for(p.activated, width, tid);
        if (!again) wait_for_others(layer, DOWN);
        int rest = units * (PART_SLOTS + OTHER_SLOTS);
#pragma unroll 1
        for (int part = 0; part < PARTS; part++) {
            const u32 column = part * DOWN_PART;
            arrange<false>(words, p.activated + column / 4, nullptr, again || part > 0);
            sync_consumers();
            if (part == 0) {
                end_wait();
                MARK(1)
            }
            if (part + 1 < PARTS)
                words.ask_for(p.activated + (part + 1) * (DOWN_PART / 4), width, tid);
            rest -= units * PART_SLOTS;
            multiply_units<DOWN_PART>(ring, ahead, units, rest, at(p.at_activations), width, sums,
                                      warp, lane, life, part > 0);
        }
        last_part<LAST>(units, sums);
    }

    template <int LAST>
    __device__ __forceinline__ void last_part(int units, float* sums) {
        if constexpr (LAST > 0) {
            Words<LAST, INTERMEDIATE> words;
            const Quad* const from = p.activated + (INTERMEDIATE - LAST) / 4;
            words.ask_for(from, width, tid);
            arrange<false>(words, from, nullptr, true);
            sync_consumers();
            multiply_units<LAST>(ring, ahead, units, 0, at(p.at_activations), width, sums, warp, lane,
                                 life, true);
        }
    }
};
