// The head and the draws of a pass that verifies drafts: a draw after each of its tokens.
//
// A draw is a function of the logits, of its position and, with a repetition penalty, of the drafted
// tokens before it, which are right if the draw counts. So without filters all draws of a pass meet in
// one exchange, a warp for each, and their noise is made while the head still streams. A filter's
// thresholds are exchanges of their own, which draws that do not count are not worth.
#pragma once
#include "tape_head.cuh"

#ifdef SPECULATE
struct Columns : Head {
    using Head::Head;
    int least = 0;  // the first token of the pass after which there is a draw

    // A block's part of one draw.
    struct Part {
        Best best;
        LogSum sum;
    };

    // Sums of `n` of this block's units: logits after the pass's tokens from number `least` on,
    // [tokens][VOCAB]. Without filters each thread has seen its rows' scores of its own token.
    __device__ __forceinline__ void take_sums(const float* sums, int stride, int first, int n) {
        const int width = step.width, tid = step.tid;
        const int token = token_of(tid), each = CONSUMERS >> 3 >> places();
        if (token < least || token >= width) return;
        const bool draws = !sampling.filtered();
        const float norm = step.norm_of(token);
        for (int unit = tid >> 3 >> places(); unit < n; unit += each) {
            const int row = (first + unit) * 8 + (tid & 7), id = first_row() + row;
            if (row >= rows) continue;
            const float logit =
                sum_of_warps(sums, stride, (unit * width + token) * 8 + (tid & 7)) * norm;
            p.logits[static_cast<i64>(token - least) * VOCAB + id] = logit;
            if (draws)
                take_logit(row, logit, step.position + token + 1, false,
                           seen(row) || is_drafted(id, least, token));
        }
    }

    // The bits of a thread's number that say which token it has, behind the three of its row.
    __device__ __forceinline__ int places() const {
        const int width = step.width;
        return width > 4 ? 3 : width > 2 ? 2 : width - 1;
    }
    __device__ __forceinline__ int token_of(int tid) const {
        return tid >> 3 & (1 << places()) - 1;
    }
    __device__ __forceinline__ bool is_drafted(int id, int least, int token) const {
        bool found = false;
        if (sampling.penalty != 1.0f)
            for (int i = least + 1; i <= token; i++) found |= s.token[i] == id;
        return found;
    }

    // Without filters: all draws of the pass, the same ones everywhere, in s.drawn from 0 on.
    __device__ __forceinline__ void draw_all() {
        step.begin(LAYERS, SAMPLE);
        const int lane = step.lane, column = step.warp, columns = step.width - least;
        sync_consumers();  // the last logits' sums have been read: parts lie there
        const int parts = share_out();
        sync_consumers();
        if (column < columns) {
            const Part* mine = step.at<Part>(p.at_sums) + (least + column) * WARPS;
            best = mine[lane % parts].best;
            sum = mine[lane % parts].sum;
            merge(parts / 2);
            u64* all = candidates_of(column);
            if (lane == 0) {
                u64* to = all + blockIdx.x * CANDIDATE_WORDS;
                put_pair(to, best.value, __int_as_float(best.id), step.epoch);
                put_pair(to + 2, best.logit, sum.top, step.epoch);
                put_pair(to + 4, sum.sum, column == 0 ? message() : 0.0f, step.epoch);
            }
            collect(all, column);
            merge(16);
            if (lane == 0)  // there is no winner among NaN
                s.drawn[column] = {min(max(best.id, 0), VOCAB - 1),
                                   best.logit - (sum.top + logf(sum.sum))};
        }
        sync_consumers();
    }

    // What this block's threads have seen of each token, by warp; how many parts a token has.
    __device__ __forceinline__ int share_out() {
        const int apart = 8 << places();  // threads from one of a token's groups of eight to the next
#pragma unroll 1
        for (int mask = 16; mask; mask >>= 1)
            if (mask < 8 || mask >= apart) merge_with(mask);
        const int warps = max(1, apart / 32), token = token_of(step.tid);
        if ((step.lane & 7) == 0 && step.lane < apart)
            step.at<Part>(p.at_sums)[token * WARPS + step.warp / warps] = {best, sum};
        return WARPS / warps;
    }

    __device__ __forceinline__ void merge(int mask) {
#pragma unroll 1
        for (; mask; mask >>= 1) merge_with(mask);
    }
    __device__ __forceinline__ void merge_with(int mask) {
        best.offer(best.shuffled(mask));
        sum.add(sum.shuffled(mask));
    }

    // By one warp, what all blocks have of a draw: every lane several blocks' words at once.
    __device__ __forceinline__ void collect(const u64* all, int column) {
        constexpr int AT_ONCE = 5;
        best = {NO_SCORE, NO_ID, 0.0f};
        sum = {NO_SCORE, 0.0f};
        for (int first = step.lane; first < gridDim.x; first += 32 * AT_ONCE) {
            const u64* from[AT_ONCE * 3];
            bool wanted[AT_ONCE * 3];
            Pair pair[AT_ONCE * 3] = {};
#pragma unroll
            for (int i = 0; i < AT_ONCE * 3; i++) {
                const int block = first + i / 3 * 32;
                wanted[i] = block < gridDim.x;
                from[i] = all + block * CANDIDATE_WORDS + i % 3 * 2;
            }
            take(from, wanted, pair, step.epoch, step.life);
#pragma unroll
            for (int i = 0; i < AT_ONCE * 3; i += 3)
                if (wanted[i]) {
                    best.offer({pair[i].a(), __float_as_int(pair[i].b()), pair[i + 1].a()});
                    sum.add({pair[i + 1].b(), pair[i + 2].a()});
                }
            if (first == 0 && column == 0) {  // block 0's message
                s.stop_now = pair[2].b() < 0.0f;
                s.pass_ns = fabsf(pair[2].b());
            }
        }
    }

    // One of those draws; the draft before it was right.
    __device__ __forceinline__ Drawn draw_known(int token, int least, bool& stopped) {
        if (step.tid == 0 && token > least) see(token);
        stopped = s.stop_now;
        return s.drawn[token - least];
    }

    __device__ __forceinline__ Drawn draw_filtered(int token, int least, bool& stopped) {
        begin(token, least);
        filter(step.position + token + 1);
        float log_probability;
        const int id = draw(log_probability, stopped).id;
        return {id, log_probability};
    }
};
#endif
