// Speculative decoding inside the kernel: what is drafted, how much of it is fed, what is kept.
//
// The rules are those of engine/speculation.py: drafts by looking up what followed the same tokens
// before, the pass's width by pace, and one sampler with each position's own noise, so that the text
// is the one without drafts. Every block decides for itself from the same numbers: the tokens, which
// all have drawn together, and how long the pass took by block 0's clock, which comes with block 0's
// candidate. So a decision costs no exchange, and without filters all draws of a pass take one
// (tape_columns.cuh). A column after the first wrong draft is thrown away;
// what it left in the cache lies beyond the history, where the next pass overwrites it.
#pragma once
#include "tape_reply.cuh"

constexpr int LONGEST_MATCH = 4, SHORTEST_MATCH = 2;
constexpr int LOOK_BACK = 8192;                       // tokens
constexpr int AT_BITS = 24, AT = (1 << AT_BITS) - 1;  // of a match: its length, and where it ends

struct Drafts {
    Step& step;
    const Params& p;
    Shared& s;
    int widest;  // tokens that a pass may verify

    __device__ __forceinline__ Drafts(Step& step)
        : step(step), p(step.p), s(step.s),
          widest(max(1, min(static_cast<int>(p.width), static_cast<int>(p.run[WIDEST])))) {
        step.meeting = 0;
    }

    // The tokens of the next pass; those of a draft are in s.token from 1 on.
    __device__ __forceinline__ int choose(Passes& passes, i64 sampled) {
        passes.known = 1;
        if (passes.fed < passes.prompt) return passes.tokens();
        const i64 left = min(p.run[MAX_TOKENS] - sampled, p.run[CAPACITY] - passes.position);
        const int room = static_cast<int>(min(left, static_cast<i64>(widest))) - 1;
        const int end = passes.position + 1;
        const int found = room > 0 ? look_up(end) : 0;
        const int drafted = found > 0 ? room : 0;
        if (step.warp == 0) {
            const int lane = step.lane, width = s.pace.width(drafted, lane);
            // A draft that reaches the end goes on with itself, as a loop does.
            const int token = lane < drafted ? p.context[found + lane % (end - found)] : -1;
            if (lane + 1 < width) s.token[lane + 1] = token;
            if (lane == 0) {
                s.width = width;
                s.guess = token;
            }
        }
        sync_consumers();
        return s.width;
    }

    // Where the latest of the longest earlier matches of how the context ends ends itself; 0: none.
    __device__ __forceinline__ int look_up(int end) {
        const int* const context = p.context;
        int best = 0;
        for (int at = end - 1 - step.tid; at > max(SHORTEST_MATCH - 1, end - LOOK_BACK);
             at -= CONSUMERS) {
            if (context[at - 1] != context[end - 1] || context[at - 2] != context[end - 2]) continue;
            int size = SHORTEST_MATCH;
            while (size < LONGEST_MATCH && size < at &&
                   context[at - 1 - size] == context[end - 1 - size])
                size++;
            best = max(best, size << AT_BITS | at);
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) best = max(best, __shfl_xor_sync(~0u, best, mask));
        if (step.lane == 0) s.matches[step.warp] = best;
        sync_consumers();
        for (int i = 0; i < WARPS; i++) best = max(best, s.matches[i]);
        return best & AT;
    }

    // Words of columns that narrower passes have left alone hold an epoch of long ago, whose 16 bits
    // may come round again: then the pass takes the next one. Its first layer goes by two.
    __device__ __forceinline__ bool stale() const {
        bool found = false;
        for (int i = 0; i < step.width; i++)
            found |= s.tags[i] == step.epoch.tag || s.tags[i] == step.epoch.next().tag;
        return found;
    }

    // Which columns this pass has written, with its last layer's epoch.
    __device__ __forceinline__ void note() {
        if (step.tid < step.width) s.tags[step.tid] = step.epoch.tag;
    }

    // Draws after the pass's tokens as long as the draft is right, and tells each; why it ends.
    __device__ __forceinline__ int verify(Passes& passes, i64& sampled, Columns& head) {
        const bool first = passes.fed < passes.prompt;
        const int tid = step.tid, fed = step.width, least = head.least;
        const bool filtered = head.sampling.filtered();
        if (!filtered) head.draw_all();
        if (tid == 0 && !first) {
            s.drafts.passes++;
            s.drafts.drafted += fed - 1;
        }
        int token = least, finish, before = 0, id;
        bool right;
        while (true) {
            bool stopped;
            const Drawn drawn = filtered ? head.draw_filtered(token, least, stopped)
                                         : head.draw_known(token, least, stopped);
            id = drawn.id;
            if (token == least) before = id;
            sampled++;
            passes.known = token - least + 1;
            finish = finish_of(p, id, sampled, passes, stopped);
            if (tid == 0) {
                p.context[step.position + token + 1] = id;
                if (token > least) s.drafts.accepted++;
                if (token == least) s.moment_ns = static_cast<i64>(device_ns());
                if (blockIdx.x == 0)
                    post(s, id, drawn.log_probability, finish, passes.fed + passes.tokens());
            }
            right = token + 1 < fed && s.token[token + 1] == id;
            if (!right || finish != RUNNING) break;
            token++;
            if (!filtered) continue;
            step.meeting++;
            step.epoch = step.epoch.next();
        }
        if (tid == 0) {
            if (!first) account(fed, token, token + 1 < fed, before);
            s.ended_ns = s.drawn_ns;
            s.token[0] = id;
        }
        return finish;
    }

    // `accepted` of the fed pass's drafts were right, and then one was wrong or none was left.
    __device__ __forceinline__ void account(int fed, int accepted, bool rejected, int drawn) {
        s.pace.took(fed, s.pass_ns);
        if (fed == 1 && s.guess >= 0) {  // not fed, but what came says whether it was right
            accepted = s.guess == drawn;
            rejected = !accepted;
        }
        s.pace.saw(accepted, rejected);
    }

    // For the next reply: what passes cost.
    __device__ __forceinline__ void keep() const {
        if (threadIdx.x <= MAX_WIDTH) p.costs[threadIdx.x] = s.pace.cost[threadIdx.x];
    }
};
