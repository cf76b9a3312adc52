// How a pass begins: what its first stages read is brought near.
#pragma once
#include "tape_block.cuh"

struct Pass : Block {
    // What this pass is the first to read, into L2: one trip to memory instead of one after another.
    __device__ __forceinline__ void prefetch(const u8* from, int bytes) const {
        if (tid * 128 < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + tid * 128));
    }

    // Of several tokens, each block's rows of the residual go to all as a layer's would: one trip more,
    // and the first layer gathers like the others.
    __device__ __forceinline__ void publish_embedding() {
        const int each = s.share.out_units * 2;
#pragma unroll 1
        for (int i = tid; i < width * each; i += CONSUMERS) {
            const int token = i / each, row = s.share.out_unit * 8 + i % each * 4;
            const uint2 x = *reinterpret_cast<const uint2*>(
                p.embed + static_cast<i64>(s.token[token]) * HIDDEN + row);
            const float4 values = {low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)};
            at<float4>(p.at_residual)[i] = values;
            put(p.next + (token * HIDDEN + row) / 4, values.x, values.y, values.z, values.w, epoch);
        }
    }

    __device__ __forceinline__ void begin_pass() {
        if (tid < width && s.token[tid] >= VOCAB) s.token[tid] = VOCAB - 1;
        sync_consumers();
        const Share& share = s.share;
        if constexpr (WIDTH > 1) publish_embedding();
        prefetch(reinterpret_cast<const u8*>(p.turns + static_cast<i64>(position) * (HEAD_DIM / 2)),
                 width * (HEAD_DIM / 2) * static_cast<int>(sizeof(float2)));
        if (WIDTH == 1)
            prefetch(reinterpret_cast<const u8*>(p.embed) +
                         static_cast<i64>(s.token[0]) * (HIDDEN * 2), HIDDEN * 2);
        float2* turns = at<float2>(p.at_turns);
#pragma unroll 1
        for (int i = tid; i < width * (HEAD_DIM / 2); i += CONSUMERS)
            turns[i] = p.turns[static_cast<i64>(position) * (HEAD_DIM / 2) + i];
        float* residual = at<float>(p.at_residual);
        const int rows = share.out_units * 8;
#pragma unroll 1
        for (int i = tid; WIDTH == 1 && i < width * rows; i += CONSUMERS) {
            const int row = share.out_unit * 8 + i % rows;
            if (row < HIDDEN)
                residual[i] =
                    from_bf16(p.embed[static_cast<i64>(s.token[i / rows]) * HIDDEN + row]);
        }
        splits.divide(position, static_cast<int>(p.splits), static_cast<int>(p.split_tiles));
#ifdef SPECULATE
        if (tid == 0)
            *const_cast<volatile i64*>(&s.begun_pass) =
                static_cast<i64>(pass + 1) << 40 | static_cast<i64>(position) << 8 | width;
#else
        if (tid == 0) *const_cast<volatile int*>(&s.begun) = pass + 1;
#endif
    }
};
