// A block's place in a pass, and what its stages have in common: gathering and multiplying.
#pragma once
#include "tape_params.cuh"
#include "tape_words.cuh"

struct Block {
    const Params& p;
    Shared& s;
    u8* dynamic;
    int tid, warp, lane;
    Ring ring;
    Ahead ahead;
    Life life;
    Epoch epoch;   // of the layer
    Width width;
    int position, pass, sampled;  // sampled: tokens
    int flip;      // of the sums, toggled by every chunk
    int squares;   // of the sums of squares, toggled by every gathering
    u32 kv_parity;  // of this warp's slot of keys and values
    int kv_head, split;  // this block's item of attention
    Splits splits;       // of this pass
    u16 *keys, *values;
    int capacity;
#ifdef SPECULATE
    int meeting;  // of all blocks
#endif
#ifdef MEASURE
    bool traced;
    int trace_stage;
    __device__ __forceinline__ i64 trace_at() const {
        return (static_cast<i64>(blockIdx.x) * (TRACED_ROWS + 2) + trace_stage) * MARKS;
    }
#endif

    template <class T = u8>
    __device__ __forceinline__ T* at(i64 offset) const {
        return reinterpret_cast<T*>(dynamic + offset);
    }
    __device__ __forceinline__ void begin(int layer, Stage stage) {
        renew();
        wait_for_others(layer, stage);
    }
    // The tape's copies stand back meanwhile: messages queue behind them. Who has asked for what it
    // waits for says so afterwards, which then costs no time.
    __device__ __forceinline__ void wait_for_others(int layer, Stage stage) const {
        if (tid != 0) return;
        s.bounds.enter(sampled, layer, stage);
        *const_cast<volatile int*>(&s.waiting) = 1;
    }
    __device__ __forceinline__ void end_wait() const {
        if (tid == 0) *const_cast<volatile int*>(&s.waiting) = 0;
    }
    // Unknown to the compiler at every stage: what follows from them is not worth a register until then.
    // Wide passes have no register for themselves either.
    __device__ __forceinline__ void renew() {
        if constexpr (WIDTH == 1) {
            asm volatile("" : "+r"(tid), "+r"(warp));
        } else {
            asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
            warp = __shfl_sync(~0u, tid / 32, 0);  // known to be the same for all lanes
        }
        lane = tid % 32;
    }

    // K values of each token into fragments; with GAIN normalised but for the common factor. `units`:
    // of the stage's tape, whose first slots are taken meanwhile. `meanwhile`: what else there is to do
    // until the others have given theirs.
    template <int K, bool GAIN, class Meanwhile>
    __device__ __forceinline__ void gather(
        const Quad* from, const u16* gain, int units, int layer, Stage stage,
        Meanwhile meanwhile) {
        squares ^= 1;
        prepare<K>(units);  // first: what is asked for too early has to be asked for again
        Words<K> words;
        words.ask_for(from, width, tid);
        wait_for_others(layer, stage);
        meanwhile();
        const float sum = arrange<GAIN>(words, from, gain, false);
        end_wait();
        sync_consumers();
        if (GAIN && WIDTH == 1) keep_square(sum);
    }

    // Every token's values into fragments, of which the first tokens' have been asked for: as soon as
    // one token's have a place, the next one that has not been asked for takes their registers.
    // `again`: what was there is still being multiplied.
    // The sum of a single token's squares, this thread's; several tokens' are kept at once.
    template <bool GAIN, int K, int APART>
    __device__ __forceinline__ float arrange(
        Words<K, APART>& words, const Quad* from, const u16* gain, bool again) {
        constexpr int EACH = Words<K, APART>::EACH, TOKENS = Words<K, APART>::TOKENS;
        uint2 gains[EACH];
        float sum;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (GAIN && words.has(i, tid))
                gains[i] = __ldg(reinterpret_cast<const uint2*>(gain) + tid + i * CONSUMERS);
#pragma unroll 1
        for (int first = 0; first < width; first += TOKENS) {
            words.receive(from, width - first, tid, epoch, life);
            if (again && first == 0) sync_consumers();
            from += TOKENS * (APART / 4);
            float sums[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                sums[t] = 0.0f;
                if (first + t >= width) continue;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (words.has(i, tid))
                        place<GAIN>(words.quad[t][i].values(), gains[i], i, first + t, sums[t]);
                if (TOKENS < WIDTH && first + TOKENS + t < width) words.ask_for_one(from, t, tid);
            }
            if (GAIN && WIDTH > 1) keep_squares(sums, first);
            sum = sums[0];
        }
        clear_padding<K>();
        return sum;
    }

    // Four values, this thread's i-th, to where they belong.
    template <bool GAIN>
    __device__ __forceinline__ void place(float4 x, uint2 gains, int i, int token, float& squared) {
        if (GAIN) {
            squared += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
            x = {x.x * low_bf16(gains.x), x.y * high_bf16(gains.x), x.z * low_bf16(gains.y),
                 x.w * high_bf16(gains.y)};
        }
        u8* there = at(p.at_activations) + quad_offset(tid, token, width) +
                    i * (CONSUMERS / 4 * 64) * fragment_rows(width);
        *reinterpret_cast<uint2*>(there) = halves_of(x.x, x.y);
        *reinterpret_cast<uint2*>(there + next_pair(tid)) = halves_of(x.z, x.w);
    }

    // The same as `gather` from the embedding of the one token that is fed.
    __device__ __forceinline__ void gather_embedding(const u16* gain, int units) {
        constexpr int EACH = Words<HIDDEN>::EACH;
        squares ^= 1;
        const uint2* row =
            reinterpret_cast<const uint2*>(p.embed + static_cast<i64>(s.token[0]) * HIDDEN);
        uint2 values[EACH], gains[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (Words<HIDDEN>::has(i, tid)) {
                values[i] = __ldg(row + tid + i * CONSUMERS);
                gains[i] = __ldg(reinterpret_cast<const uint2*>(gain) + tid + i * CONSUMERS);
            }
        prepare<HIDDEN>(units);
        float sums[1] = {0.0f};
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (Words<HIDDEN>::has(i, tid)) {
                const float4 x = {low_bf16(values[i].x), high_bf16(values[i].x),
                                  low_bf16(values[i].y), high_bf16(values[i].y)};
                place<true>(x, gains[i], i, 0, sums[0]);
            }
        clear_padding<HIDDEN>();
        end_wait();
        sync_consumers();
        keep_square(sums[0]);
    }

    // Of the only token; read after the stage's products, while which it takes no time.
    __device__ __forceinline__ void keep_square(float sum) {
#pragma unroll
        for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        if (lane == 0) s.squares[squares][warp][0] = sum;
    }

    // Of tokens `first` and on, this thread's squares.
    template <int N>
    __device__ __forceinline__ void keep_squares(float (&sums)[N], int first) {
        const float sum = sum_of_lanes(sums, lane);
        const int token = first + lane / (32 / N);
        if (lane % (32 / N) == 0 && token < width) s.squares[squares][warp][token] = sum;
    }

    // The last block of columns, as far as they do not fill it.
    template <int COLUMNS>
    __device__ __forceinline__ void clear_padding() {
        if (COLUMNS % 32 == 0) return;
        constexpr int FILLED = (COLUMNS + 31) / 32 * 32;
#pragma unroll 1
        for (int token = 0; token < width; token++) {
            const int column = COLUMNS + tid * 2;
            if (column < FILLED)
                *reinterpret_cast<uint2*>(
                    at(p.at_activations) + fragment_offset(column, token, width)) = {0, 0};
        }
    }

    // What the gathered activations still have to be multiplied by.
    __device__ __forceinline__ float norm_of(int token) const {
        float sum[WARPS];
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum[i] = s.squares[squares][i][token];
        return rsqrtf(sum_of_tree(sum) * (1.0f / HIDDEN) + RMS_EPS);
    }

    // What a stage can do before it has its activations.
    template <int COLUMNS>
    __device__ __forceinline__ void prepare(int units) {
        ahead.try_fill(ring, units * (padded(COLUMNS) / SLOT_COLUMNS), lane);
    }

    // A stage's units from number `first` on, chunk by chunk, and if it has a `pool` what this block
    // gets of that; `use(sums, stride, first unit, units)` sees every warp's sums.
    template <int COLUMNS, class Use>
    __device__ __forceinline__ void multiply(int first, int units, bool pool, Use use) {
        constexpr int SLOTS = padded(COLUMNS) / SLOT_COLUMNS;
        const int chunk = width == 1 ? 16 : 8, stride = chunk * width * 8, end = first + units;
        while (true) {
            int count = min(chunk, end - first);
            if (count <= 0) {
                first = pool ? pooled_unit() : OWN;
                if (first == OWN) break;
                count = 1;
            }
            float* sums = at<float>(p.at_sums) + flip * WARPS * stride;
            multiply_units<COLUMNS>(ring, ahead, count, max(0, end - first - count) * SLOTS,
                                    at(p.at_activations), width, sums + warp * stride, warp, lane,
                                    life);
            MARK(6)
            sync_consumers();
            MARK(2)
            use(sums, stride, first, count);
            flip ^= 1;
            first += count;
        }
    }

    // Of the unit that comes next in the ring, the number if it is of a pool; the ring holds back
    // nothing, so a stage that has a pool is followed by slots that are the block's own.
    __device__ __forceinline__ int pooled_unit() {
        ring.await_slot(life);
        return life.is_dead() ? OWN : *const_cast<volatile int*>(&s.ring.unit[ring.slot]);
    }
};
