// The scores of a block's rows of the vocabulary, and the filters of the draw over all blocks' scores.
#pragma once
#include "tape_step.cuh"

struct Scores {
    Step& step;
    const Sampling& sampling;
    const Params& p;
    Shared& s;
    // A thread's own best, and all it has seen.
    Best best;
    LogSum sum;
    float top;  // largest score
    int rows;   // of this block
#ifdef SPECULATE
    float* logits_of_column;  // [VOCAB]
#define LOGITS logits_of_column
#define MEETING meeting
#define COLUMNS MAX_WIDTH
#else
#define LOGITS p.logits
#define MEETING pass
#define COLUMNS 1  // that are drawn after
#endif

    __device__ __forceinline__ Scores(Step& step, const Sampling& sampling)
        : step(step), sampling(sampling), p(step.p), s(step.s), best{NO_SCORE, NO_ID, 0.0f},
          sum{NO_SCORE, 0.0f}, top(NO_SCORE),
          rows(max(0, min(step.s.share.head_units * 8,
                          VOCAB - step.s.share.head_unit * 8))) {}

    __device__ __forceinline__ int first_row() const { return s.share.head_unit * 8; }
    __device__ __forceinline__ float& score(int row) const {
        return step.at<float>(p.at_scores)[row];
    }
    __device__ __forceinline__ u8& seen(int row) const { return step.at(p.at_seen)[row]; }

    // With filters: thresholds over all blocks' scores, then the best of those that pass.
    __device__ __forceinline__ void filter(u32 position) {
        top = largest_score();
        int floor = -2147483647 - 1, number = 1;
        if (sampling.top_k > 0) floor = threshold(true, floor, number);
        if (sampling.top_p < 1.0f) floor = threshold(false, floor, number);
        const float least = top + sampling.log_min_p;
        for (int row = step.tid; row < rows; row += CONSUMERS) {
            const float score_of_row = score(row);
            if (score_of_row < least || ordered(score_of_row) < floor) continue;
            const int id = first_row() + row;
            best.offer({sampling.value(score_of_row, position, id), id, LOGITS[id]});
        }
    }

    // Words of one exchange among all blocks, of which a token has many.
    __device__ __forceinline__ u64* digits(int number) const {
        return p.digits + static_cast<i64>(number & 1) * gridDim.x * DIGIT_WORDS;
    }
    __device__ __forceinline__ Epoch digit_epoch(int number) const {
        return {step.epoch.full * 32 + number, 0};
    }

    __device__ __forceinline__ float largest_score() {
        float largest = top;
        for (int mask = 16; mask; mask >>= 1)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        if (step.lane == 0) s.partial[step.warp][0] = largest;
        sync_consumers();
        for (int i = 0; i < WARPS; i++) largest = fmaxf(largest, s.partial[i][0]);
        u64* all = digits(0);
        if (step.tid == 0) put_pair(all + blockIdx.x * DIGIT_WORDS, largest, 0.0f, digit_epoch(0));
        for (int block = step.tid; block < gridDim.x; block += CONSUMERS) {
            const u64* from[1] = {all + block * DIGIT_WORDS};
            const bool wanted[1] = {true};
            Pair pair[1];
            take(from, wanted, pair, digit_epoch(0), step.life);
            largest = fmaxf(largest, pair[0].a());
        }
        for (int mask = 16; mask; mask >>= 1)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
        if (step.lane == 0) s.partial[step.warp][1] = largest;
        sync_consumers();
        for (int i = 0; i < WARPS; i++) largest = fmaxf(largest, s.partial[i][1]);
        return largest;
    }

    // The least score (as `ordered`) with less than the target above it: top-k or top-p.
    __device__ __forceinline__ int threshold(bool count, int floor, int& number) {
        int low = -2147483647 - 1;
        for (int shift = 28; shift >= 0; shift -= 4, number++) {
            float mass[DIGIT_WORDS] = {};
            for (int row = step.tid; row < rows; row += CONSUMERS) {
                const float score_of_row = score(row);
                const int key = ordered(score_of_row);
                if (key < floor) continue;
                const float weight = count ? 1.0f : expf(score_of_row - top);
                // How many of the candidates, low + ((digit + 1) << shift) - 1, lie below.
                const u32 beyond = static_cast<u32>(key) - static_cast<u32>(low);
                const u32 below = key < low ? 0 : min(beyond >> shift, u32(DIGITS));
#pragma unroll
                for (int digit = 0; digit < DIGITS; digit++)
                    if (digit < below) mass[digit] += weight;
                mass[DIGITS] += weight;
            }
            add_up(mass, number);
            const float wanted = count ? static_cast<float>(sampling.top_k)
                                       : sampling.top_p * s.mass[DIGITS];
            int reached = 0;
#pragma unroll
            for (int digit = 0; digit < DIGITS; digit++) reached += s.mass[digit] >= wanted;
            low = static_cast<int>(low + (static_cast<i64>(reached) << shift));
        }
        return low;
    }

    // s.mass = the sums over all threads of all blocks, in one fixed order.
    __device__ __forceinline__ void add_up(float (&mass)[DIGIT_WORDS], int number) {
        const int tid = step.tid;
#pragma unroll
        for (int i = 0; i <= DIGITS; i++) {
            for (int mask = 16; mask; mask >>= 1)
                mass[i] += __shfl_xor_sync(~0u, mass[i], mask);
            if (step.lane == 0) s.masses[step.warp][i] = mass[i];
        }
        sync_consumers();
        u64* all = digits(number);
        const Epoch epoch = digit_epoch(number);
        if (tid < DIGIT_WORDS / 2) {
            float pair[2] = {0.0f, 0.0f};
            for (int i = 0; i < 2; i++)
                if (tid * 2 + i <= DIGITS)
                    for (int w = 0; w < WARPS; w++) pair[i] += s.masses[w][tid * 2 + i];
            put_pair(all + blockIdx.x * DIGIT_WORDS + tid * 2, pair[0], pair[1], epoch);
        }
        sync_consumers();
        const int column = tid & 15, group = tid >> 4;
        float2 total = {0.0f, 0.0f};
        if (column < DIGIT_WORDS / 2)
            for (int block = group; block < gridDim.x; block += 16 * 4) {
                const u64* from[4];
                bool wanted[4];
                Pair pair[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    wanted[i] = block + i * 16 < gridDim.x;
                    from[i] = all + (block + i * 16) * DIGIT_WORDS + column * 2;
                }
                take(from, wanted, pair, epoch, step.life);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (wanted[i]) total.x += pair[i].a(), total.y += pair[i].b();
            }
        if (column < DIGIT_WORDS / 2)
            *reinterpret_cast<float2*>(&s.masses[group][column * 2]) = total;
        sync_consumers();
        if (tid < DIGIT_WORDS) {
            float sum_of_groups = 0.0f;
            for (int i = 0; i < 16; i++) sum_of_groups += s.masses[i][tid];
            s.mass[tid] = sum_of_groups;
        }
        sync_consumers();
    }
};
