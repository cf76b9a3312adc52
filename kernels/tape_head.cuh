// The LM head, the filters and the draw: what follows a pass's layers.
#pragma once
#include "tape_step.cuh"

#ifdef SPECULATE
// The time that the width of passes is chosen by.
__device__ __forceinline__ u64 pass_clock(const Step& step) { return device_ns(); }
#endif

struct Head {
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
#else
#define LOGITS p.logits
#define MEETING pass
#endif

    __device__ __forceinline__ Head(Step& step, const Sampling& sampling)
        : step(step), sampling(sampling), p(step.p), s(step.s), best{NO_SCORE, NO_ID, 0.0f},
          sum{NO_SCORE, 0.0f}, top(NO_SCORE),
          rows(max(0, min(step.s.share.head_units * 8,
                          VOCAB - step.s.share.head_unit * 8))) {}

    __device__ __forceinline__ int first_row() const { return s.share.head_unit * 8; }
    __device__ __forceinline__ float& score(int row) const {
        return step.at<float>(p.at_scores)[row];
    }
    __device__ __forceinline__ u8& seen(int row) const { return step.at(p.at_seen)[row]; }

#ifdef SPECULATE
    // Logits after the pass's tokens from number `least` on: [tokens][VOCAB].
    __device__ __forceinline__ void logits(int least) {
        step.renew();
        const Share& share = s.share;
        const Width width = step.width;
        const int tid = step.tid;
#else
    // Logits after the pass's last token, and the draw as far as it needs no other block.
    __device__ __forceinline__ void logits(u32 position_of_next) {
        step.renew();
        const Share& share = s.share;
        const Width width = step.width;
        const int tid = step.tid, token = width - 1;
#endif
#ifdef MEASURE
        Ring& ring = step.ring;
        const bool traced = step.traced;
        int& trace_stage = step.trace_stage;
        auto trace_at = [&] { return step.trace_at(); };
#endif
        MARK(0)
        if (tid == 0) s.bounds.enter(step.sampled, LAYERS, HEAD);
        // Keys and values of this pass are read by other blocks' copying warps in the next one.
        __threadfence();
        if (share.head_units > 0) {
            step.gather<HIDDEN, true>(p.next, p.norm, share.head_units);
            MARK(1)
#ifdef SPECULATE
            step.multiply<HIDDEN>(
                share.head_units, [&](float* sums, int stride, int first, int n) {
                    for (int i = tid; i < n * width * 8; i += CONSUMERS) {
                        const int token = (i >> 3) % width;
                        const int row = (first + (i >> 3) / width) * 8 + (i & 7);
                        if (row >= rows || token < least) continue;
                        float sum_of_row = 0.0f;
#pragma unroll
                        for (int w = 0; w < WARPS; w++) sum_of_row += sums[w * stride + i];
                        p.logits[static_cast<i64>(token - least) * VOCAB + first_row() + row] =
                            sum_of_row * step.norm_of(token);
                    }
                });
#else
            const bool keep = sampling.filtered();
            step.multiply<HIDDEN>(
                share.head_units, [&](float* sums, int stride, int first, int n) {
                    const float norm = step.norm_of(token);
                    for (int i = tid; i < n * 8; i += CONSUMERS) {
                        const int row = first * 8 + i;
                        if (row >= rows) continue;
                        const int at = ((i >> 3) * width + token) * 8 + (i & 7);
                        float sum_of_row = 0.0f;
#pragma unroll
                        for (int w = 0; w < WARPS; w++) sum_of_row += sums[w * stride + at];
                        take_logit(row, sum_of_row * norm, position_of_next, keep);
                    }
                });
#endif
        }
        MARK_END(HEAD)
    }

    __device__ __forceinline__ void take_logit(
        int row, float logit, u32 position, bool keep) {
        const int id = first_row() + row;
#ifndef SPECULATE
        p.logits[id] = logit;
#endif
        const float score_of_row = sampling.score(logit, seen(row));
        sum.add({logit, 1.0f});
        top = fmaxf(top, score_of_row);
        if (keep)
            score(row) = score_of_row;
        else
            best.offer({sampling.value(score_of_row, position, id), id, logit});
    }

#ifdef SPECULATE
    // The draw after one of those tokens as far as it needs no other block. A drafted token counts
    // as seen from here on: all before it were right.
    __device__ __forceinline__ void begin(int token, int least) {
        const int row_of_token = s.token[token] - first_row();
        if (step.tid == 0 && token > least && row_of_token >= 0 && row_of_token < rows)
            seen(row_of_token) = 1;
        sync_consumers();
        best = {NO_SCORE, NO_ID, 0.0f};
        sum = {NO_SCORE, 0.0f};
        top = NO_SCORE;
        logits_of_column = p.logits + static_cast<i64>(token - least) * VOCAB;
        const bool keep = sampling.filtered();
        for (int row = step.tid; row < rows; row += CONSUMERS)
            take_logit(row, logits_of_column[first_row() + row], step.position + token + 1, keep);
    }

    // What block 0 sends along with its candidate: how long the pass took up to here, negative if
    // the reply is to stop.
    __device__ __forceinline__ float message() const {
        if (blockIdx.x != 0) return 0.0f;
        s.drawn_ns = pass_clock(step);
        const float took = max(1.0f, static_cast<float>(s.drawn_ns - s.ended_ns));
        return *const_cast<volatile int*>(&s.stop) ? -took : took;
    }
#endif

    // Every block's partial results to every block: the token, the same one everywhere.
    __device__ __forceinline__ Best draw(float& log_probability, bool& stopped) {
        const int tid = step.tid;
        if (tid == 0) s.bounds.enter(step.sampled, LAYERS, SAMPLE);
        const Epoch epoch = step.epoch;
        u64* all = p.candidates + static_cast<i64>(step.MEETING & 1) * gridDim.x * CANDIDATE_WORDS;
        merge_block();
        if (tid == 0) {
            u64* mine = all + blockIdx.x * CANDIDATE_WORDS;
            put_pair(mine, best.value, __int_as_float(best.id), epoch);
            put_pair(mine + 2, best.logit, sum.top, epoch);
#ifdef SPECULATE
            put_pair(mine + 4, sum.sum, message(), epoch);
#else
            put_pair(mine + 4, sum.sum, *const_cast<volatile int*>(&s.stop) ? 1.0f : 0.0f, epoch);
#endif
        }
        best = {NO_SCORE, NO_ID, 0.0f};
        sum = {NO_SCORE, 0.0f};
        for (int block = tid; block < gridDim.x; block += CONSUMERS) {
            const u64* from[3];
            bool wanted[3];
            Pair pair[3];
#pragma unroll
            for (int i = 0; i < 3; i++) {
                wanted[i] = true;
                from[i] = all + block * CANDIDATE_WORDS + i * 2;
            }
            take(from, wanted, pair, epoch, step.bounds);
            best.offer({pair[0].a(), __float_as_int(pair[0].b()), pair[1].a()});
            sum.add({pair[1].b(), pair[2].a()});
#ifdef SPECULATE
            if (block == 0) {
                s.stop_now = pair[2].b() < 0.0f;
                s.pass_ns = fabsf(pair[2].b());
            }
#else
            if (block == 0) s.stop_now = pair[2].b() != 0.0f;
#endif
        }
        sync_consumers();  // the sums of the first merge have been read
        merge_block();
        log_probability = best.logit - (sum.top + logf(sum.sum));
        stopped = s.stop_now;
        best.id = min(max(best.id, 0), VOCAB - 1);  // there is no winner among NaN
        return best;
    }

    // After a pass that samples nothing: nobody begins the next one, whose first words overwrite
    // some of this one's, before everybody is through.
    __device__ __forceinline__ void meet() {
        __threadfence();  // as in `logits`
        if (step.tid == 0) s.bounds.enter(step.sampled, LAYERS, SAMPLE);
        const Epoch epoch = step.epoch;
        u64* all = p.candidates + static_cast<i64>(step.MEETING & 1) * gridDim.x * CANDIDATE_WORDS;
        sync_consumers();
        if (step.tid == 0) put_pair(all + blockIdx.x * CANDIDATE_WORDS, 0.0f, 0.0f, epoch);
        for (int block = step.tid; block < gridDim.x; block += CONSUMERS) {
            const u64* from[1] = {all + block * CANDIDATE_WORDS};
            const bool wanted[1] = {true};
            Pair pair[1];
            take(from, wanted, pair, epoch, step.bounds);
        }
    }

    // All threads get the block's best and sum.
    __device__ __forceinline__ void merge_block() {
#pragma unroll 1
        for (int mask = 16; mask; mask >>= 1) {
            best.offer(best.shuffled(mask));
            sum.add(sum.shuffled(mask));
        }
        if (step.lane == 0) {
            s.best[step.warp] = best;
            s.sums[step.warp] = sum;
        }
        sync_consumers();
        best = s.best[step.lane % WARPS];
        sum = s.sums[step.lane % WARPS];
#pragma unroll 1
        for (int mask = WARPS / 2; mask; mask >>= 1) {
            best.offer(best.shuffled(mask));
            sum.add(sum.shuffled(mask));
        }
    }

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
            take(from, wanted, pair, digit_epoch(0), step.bounds);
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
                take(from, wanted, pair, epoch, step.bounds);
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
