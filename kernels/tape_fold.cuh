// One exchange less where few words make up attention's result: who needs it reads the splits'
// partial results and puts them together itself, instead of reading what others have put together.
// It looks for their maxima first, which come with them and are few: asking again and again for all is
// in everybody's way (SmolLM2 409 us a token instead of 391).
//
// Every block with rows of the output projection then reads all parts, so this is for a single token
// of a model whose heads are few (kernels/tape_plan.py: folds). The order of the splits never
// changes.
#pragma once
#include "tape_combine.cuh"

#if FOLD
struct Fold : Combine {
    static constexpr int OF_HEAD = HEAD_DIM / 4;     // quads, and lanes that share a head
    static constexpr int EACH = Words<QUERY_SIZE>::EACH;
    static constexpr int TOGETHER = 8;  // splits asked for at once; OF_HEAD is a multiple

    // Attention's result into fragments, for the output projection.
    __device__ __forceinline__ void combine(int layer) {
        begin(layer, ATTENTION);
        MARK(0)
        if (s.share.out_units > 0) {
            prepare<QUERY_SIZE>(s.share.out_units);
            float weight[EACH];
            weigh(weight);
            float4 sum[EACH] = {};
#pragma unroll 1
            for (int first = 0; first < splits.used; first += TOGETHER) add(first, weight, sum);
            float unused;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (Words<QUERY_SIZE>::has(i, tid)) place<false>(sum[i], {}, i, 0, unused);
            clear_padding<QUERY_SIZE>();
            MARK(1)
            end_wait();
            sync_consumers();
            MARK(2)
        }
        MARK_END(ATTENTION)
    }

    // Threads without a word of their own follow what another one does, but ask for nothing.
    __device__ __forceinline__ bool has_word(int i) const {
        return Words<QUERY_SIZE>::has(i, tid);
    }
    __device__ __forceinline__ int part(int i, int split) const {
        return (tid + i * CONSUMERS) % (QUERY_SIZE / 4) / OF_HEAD * static_cast<int>(p.splits) +
               split;
    }
    __device__ __forceinline__ const Quad* word(int i, int split) const {
        return p.parts + part(i, split) * OF_HEAD + lane % OF_HEAD;
    }

    // What each split of this thread's heads counts for: lane `split` of a head's lanes knows it.
    __device__ __forceinline__ void weigh(float (&weight)[EACH]) const {
        const u64* from[EACH];
        bool wanted[EACH];
        Pair pair[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            wanted[i] = has_word(i) && lane % OF_HEAD < splits.used;
            from[i] = p.tops + part(i, lane % OF_HEAD) * 2;
        }
        take(from, wanted, pair, epoch, life);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool counts = lane % OF_HEAD < splits.used;
            const float top = counts ? pair[i].a() : NOTHING;
            float most = top;
#pragma unroll
            for (int mask = 1; mask < OF_HEAD; mask <<= 1)
                most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));
            const float mine = counts ? power_of_two(top - most) : 0.0f;
            float total = counts ? pair[i].b() * mine : 0.0f;
#pragma unroll
            for (int mask = 1; mask < OF_HEAD; mask <<= 1)
                total += __shfl_xor_sync(~0u, total, mask);
            weight[i] = __fdividef(mine, total);
        }
    }

    // Splits `first` and those after it; past the last one that again, whose weight there is zero.
    __device__ __forceinline__ void add(
        int first, const float (&weight)[EACH], float4 (&sum)[EACH]) {
        Quad quad[EACH][TOGETHER];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < TOGETHER; j++)
                    if (has_word(i)) peek(word(i, min(first + j, splits.used - 1)), quad[i][j]);
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < TOGETHER; j++)
                    missing |= has_word(i) && !quad[i][j].is(epoch);
        } while (missing && !life.is_dead());
        const int head_lane = lane & ~(OF_HEAD - 1);
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                const float w = __shfl_sync(~0u, weight[i], head_lane + first + j);
                const float4 x = quad[i][j].values();
                sum[i] = {sum[i].x + x.x * w, sum[i].y + x.y * w, sum[i].z + x.z * w,
                          sum[i].w + x.w * w};
            }
    }
};
#else
using Fold = Combine;
#endif
