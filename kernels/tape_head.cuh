// The LM head and the draw: what follows a pass's layers.
#pragma once
#include "tape_filter.cuh"

#ifdef SPECULATE
// The time that the width of passes is chosen by.
__device__ __forceinline__ u64 pass_clock(const Step& step) { return device_ns(); }
#endif

struct Head : Scores {
    using Scores::Scores;

    // After the layers, of the `first` pass that samples those of the prompt's end. Keys and values
    // of this pass are read by other blocks' copying warps in the next one.
    __device__ __forceinline__ void open(bool first) const {
        if (first && step.tid == 0) s.prefill_end_ns = static_cast<i64>(device_ns());
        __threadfence();
    }

#ifndef SPECULATE
    // Sums of `n` of this block's units: logits after the pass's last token, and the draw as far as
    // it needs no other block.
    __device__ __forceinline__ void take_sums(const float* sums, int stride, int first, int n) {
        const Width width = step.width;
        const int token = width - 1;
        const u32 position_of_next = step.position + width;
        const bool keep = sampling.filtered();
        const float norm = step.norm_of(token);
        for (int i = step.tid; i < n * 8; i += CONSUMERS) {
            const int row = first * 8 + i;
            if (row >= rows) continue;
            const int at = ((i >> 3) * width + token) * 8 + (i & 7);
            take_logit(row, sum_of_warps(sums, stride, at) * norm, position_of_next, keep);
        }
    }
#endif

    __device__ __forceinline__ void take_logit(
        int row, float logit, u32 position, bool keep) {
#ifndef SPECULATE
        p.logits[first_row() + row] = logit;
#endif
        take_logit(row, logit, position, keep, seen(row));
    }
    __device__ __forceinline__ void take_logit(
        int row, float logit, u32 position, bool keep, bool is_seen) {
        const int id = first_row() + row;
        const float score_of_row = sampling.score(logit, is_seen);
        sum.add({logit, 1.0f});
        top = fmaxf(top, score_of_row);
        if (keep)
            score(row) = score_of_row;
        else
            best.offer({sampling.value(score_of_row, position, id), id, logit});
    }

#ifdef SPECULATE
    // With filters: the draw after one of a pass's tokens as far as it needs no other block. A drafted
    // token counts as seen from here on: all before it were right.
    __device__ __forceinline__ void begin(int token, int least) {
        if (step.tid == 0 && token > least) see(token);
        sync_consumers();
        best = {NO_SCORE, NO_ID, 0.0f};
        sum = {NO_SCORE, 0.0f};
        top = NO_SCORE;
        logits_of_column = p.logits + static_cast<i64>(token - least) * VOCAB;
#pragma unroll 1
        for (int row = step.tid; row < rows; row += CONSUMERS)
            take_logit(row, logits_of_column[first_row() + row], 0, true);
    }

    __device__ __forceinline__ void see(int token) {
        const int row = s.token[token] - first_row();
        if (row >= 0 && row < rows) seen(row) = 1;
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

    // Where the blocks' partial results of one of a pass's tokens meet.
    __device__ __forceinline__ u64* candidates_of(int column) const {
        return p.candidates + static_cast<i64>((step.MEETING & 1) * COLUMNS + column) * gridDim.x *
                                  CANDIDATE_WORDS;
    }

    // Every block's partial results to every block: the token, the same one everywhere.
    __device__ __forceinline__ Best draw(float& log_probability, bool& stopped) {
        const int tid = step.tid;
        step.begin(LAYERS, SAMPLE);
        const Epoch epoch = step.epoch;
        u64* all = candidates_of(0);
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
            take(from, wanted, pair, epoch, step.life);
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
        __threadfence();  // as in `open`
        step.begin(LAYERS, SAMPLE);
        const Epoch epoch = step.epoch;
        u64* all = candidates_of(0);
        sync_consumers();
        if (step.tid == 0) put_pair(all + blockIdx.x * CANDIDATE_WORDS, 0.0f, 0.0f, epoch);
        for (int block = step.tid; block < gridDim.x; block += CONSUMERS) {
            const u64* from[1] = {all + block * CANDIDATE_WORDS};
            const bool wanted[1] = {true};
            Pair pair[1];
            take(from, wanted, pair, epoch, step.life);
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
};
