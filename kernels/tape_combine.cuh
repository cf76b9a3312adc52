// What the splits of an item of attention have found, put together: words of the whole result.
#pragma once
#include "tape_rows.cuh"

struct Combine : Rows {
    // The splits' partial results of this block's words: sixteen threads a word, each with every
    // sixteenth split, then one tree. The order never changes.
    __device__ __forceinline__ void combine(int layer) {
        begin(layer, ATTENTION);
        const Share& share = s.share;
        const int used = splits.used;
        const int each = share.words / 4, quads = each * width;
        MARK(0)
        prepare<QUERY_SIZE>(share.out_units);
        for (int first = 0; WIDTH <= 4 && first < quads; first += CONSUMERS / 16) {
            const int i = first + (tid >> 4);
            const int token = width == 1 ? 0 : i / each;
            const int word = share.word + (i - token * each) * 4;
            const bool mine = i < quads && word < QUERY_SIZE;
            const int head = word / HEAD_DIM, d = word % HEAD_DIM;
            const int part = (token * HEADS + head) * static_cast<int>(p.splits);
            Partial sum = {NOTHING, 0.0f, {}};
            for (int one = tid & 15; one - (tid & 15) < used; one += 16) {
                const u64* const its_top = p.tops + (part + one) * 2;
                const Quad* const its_part = p.parts + ((part + one) * HEAD_DIM + d) / 4;
                const bool wanted = one < used && mine;
                Pair pair = {};
                Quad quad = {};
                do {  // both at once: one trip instead of two; the lanes together: see Words
                    if (wanted) {
                        peek(its_top, pair);
                        peek(its_part, quad);
                    }
                } while (__any_sync(~0u, wanted && !(pair.is(epoch) && quad.is(epoch)) &&
                                             !life.is_dead()));
                const Partial its = {wanted ? pair.a() : NOTHING, pair.b(), quad.values()};
                if (one < 16)
                    sum = its;
                else
                    sum.add(its);
            }
            const float4 all = result_of(sum);
            if (mine && (tid & 15) == 0)
                put(p.attended + (token * QUERY_SIZE + word) / 4, all.x, all.y, all.z, all.w, epoch);
        }
        for (int first = 0; WIDTH > 4 && first < quads; first += CONSUMERS / 8)
            combine_two(first, quads, each);
        MARK(1)
        MARK(2)
        MARK_END(ATTENTION)
    }

    // Of sixteen lanes that follow each other, the first gets the word that their parts make. It is a
    // block's way from one exchange to the next, so it is as few instructions as it can be.
    __device__ __forceinline__ float4 result_of(const Partial& mine) const {
        float top = mine.top;
#pragma unroll
        for (int mask = 1; mask < 16; mask <<= 1)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
        const float weight = power_of_two(mine.top - top);
        float total = mine.total * weight;
#pragma unroll
        for (int mask = 1; mask < 16; mask <<= 1) total += __shfl_xor_sync(~0u, total, mask);
        float of[4] = {mine.of.x * weight, mine.of.y * weight, mine.of.z * weight,
                       mine.of.w * weight};
        const float x = __fdividef(sum_of_lanes<4, 16>(of, lane), total);
        return {x, __shfl_xor_sync(~0u, x, 4), __shfl_xor_sync(~0u, x, 8),
                __shfl_xor_sync(~0u, x, 12)};
    }

    // Two of those words a thread, of wide passes that have more words than threads: in one trip.
    __device__ __forceinline__ void combine_two(int first, int quads, int each) {
        int part[2], at[2];
        bool mine[2];
        Partial sum[2];
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const int i = first + (tid >> 4) + w * (CONSUMERS / 16), token = i / each;
            const int word = s.share.word + (i - token * each) * 4;
            mine[w] = i < quads && word < QUERY_SIZE;
            at[w] = token * QUERY_SIZE + word;
            part[w] = (token * HEADS + word / HEAD_DIM) * static_cast<int>(p.splits);
            sum[w] = {NOTHING, 0.0f, {}};
        }
        for (int one = tid & 15; one < splits.used && mine[0]; one += 16) {
            Pair pair[2] = {};
            Quad quad[2] = {};
            bool missing;
            do {
                missing = false;
#pragma unroll
                for (int w = 0; w < 2; w++)
                    if (mine[w]) {
                        peek(p.tops + (part[w] + one) * 2, pair[w]);
                        peek(p.parts + ((part[w] + one) * HEAD_DIM + at[w] % HEAD_DIM) / 4, quad[w]);
                    }
#pragma unroll
                for (int w = 0; w < 2; w++)
                    missing |= mine[w] && !(pair[w].is(epoch) && quad[w].is(epoch));
            } while (missing && !life.is_dead());
#pragma unroll
            for (int w = 0; w < 2; w++)
                if (mine[w]) sum[w].add({pair[w].a(), pair[w].b(), quad[w].values()});
        }
#pragma unroll 1
        for (int mask = 1; mask < 16; mask <<= 1)
#pragma unroll
            for (int w = 0; w < 2; w++) sum[w].add(sum[w].shuffled(mask));
#pragma unroll
        for (int w = 0; w < 2; w++)
            if (mine[w] && (tid & 15) == 0) {
                const float scale = 1.0f / sum[w].total;
                const float4 x = sum[w].of;
                put(p.attended + at[w] / 4, x.x * scale, x.y * scale, x.z * scale, x.w * scale,
                    epoch);
            }
    }
};
