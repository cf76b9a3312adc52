// What the host hands to the kernel, and what a block's threads share.
#pragma once
#include "tape_attention.cuh"
#include "tape_sampling.cuh"
#ifdef SPECULATE
#include "tape_pace.cuh"
#endif

// A block's share; order: kernels/tape_plan.py.
struct Share {
    int qkv_unit, qkv_units, out_unit, out_units, gate_unit, gate_units, head_unit, head_units,
        word, words, layer_slots, head_slots, qkv_slots, middle_slots, unused[2];
};

struct Params {
    const u8* tape;  // [blocks][tape_stride], then the pools
    i64 tape_stride;
    const u16 *embed, *attn_norm, *mlp_norm, *norm, *qkv_bias, *q_norm, *k_norm;
    const u16* ones;      // [HIDDEN]
    const float2* turns;  // [positions][HEAD_DIM / 2] cosine, sine
    const Share* plan;
    // Exchanges: words of tape_exchange.cuh.
    Quad *qkv, *parts;
    u64* tops;
    Quad *attended, *middle, *activated, *next;
    u64 *candidates, *digits;
    float* logits;     // [VOCAB]
    const u8* seen;    // [VOCAB]
    i64* words;        // the mailbox, pinned
    i64* slots;        // pinned
    const i64* run;    // the mailbox's words as the run began, on the device
    const double* numbers;
    const i64* prompt;
    u32* state;        // abort, epoch of the next run, and a place: Bounds
    u32* tickets;      // [LAYERS][2], zero: drawn from the pools
    i64* trace;        // with MEASURE
    i64 qkv_pool, gate_pool;  // units
    i64 width, ring_slots, in_flight, quiet, ahead, pace, splits, split_tiles, trace_pass;
    // Where things lie in dynamic shared memory.
    i64 at_activations, at_kv, at_new, at_sums, at_queries, at_residual,
        at_turns, at_scores, at_seen;
#ifdef SPECULATE
    int* context;  // [positions + 1], every token known so far
    float* costs;  // [MAX_WIDTH + 1], of passes by width, kept from reply to reply
#endif
};

// Words of the mailbox: engine/mailbox.py.
enum Word {
    DOORBELL = 0, STOP = 1, SHUTDOWN = 2, TIMEOUT_NS = 3, PROMPT_TOKENS = 6, START = 7,
    CAPACITY = 8, KEYS = 9, VALUES = 10, MAX_TOKENS = 11, SEED = 12, TOP_K = 13, FINISH = 16,
    FED = 17, PREFILL_END_NS = 18, FAULT = 19, PUBLISHED = 24, STOP_COUNT = 63, STOP_IDS = 64
};
enum Number { TEMPERATURE, TOP_P, MIN_P, REPETITION_PENALTY };
#ifdef SPECULATE
enum DraftWord { WIDEST = 14, PASSES = 25, DRAFTED = 26, ACCEPTED = 27 };
#endif
enum Finish { RUNNING, EOS, LENGTH, CONTEXT, STOPPED, PREFILLED, FAULTED };

#ifdef SPECULATE
struct DraftCounts {
    int passes, drafted, accepted;
};
struct Drawn {
    int id;
    float log_probability;
};
#endif

struct Post {
    i64 id;
    double logprob;
    i64 finish, fed;
#ifdef SPECULATE
    DraftCounts drafts;
    i64 time_ns;  // tokens of one pass share their moment
#endif
};

// Between the thread that knows a token and the one that tells the host.
#ifdef SPECULATE
#define POSTS 8
#define LAST_POST 7
#else
#define POSTS 4
#define LAST_POST 3
#endif

struct Shared {
    RingBarriers ring;
    KvBarriers kv;
    Share share;
    Bounds bounds;
    Sampling sampling;
    int quit, begun;  // begun: passes
    int waiting;      // for what other blocks owe
    // To and from the warp that speaks with the host.
    int posted, stop;
    i64 prefill_end_ns;
    Post posts[POSTS];
    int token[MAX_WIDTH];
    alignas(16) float squares[2][WARPS][MAX_WIDTH];
    float tops[WARPS][8], totals[WARPS][8];
    alignas(16) float partial[WARPS][2];
    alignas(16) float masses[WARPS * 2][DIGIT_WORDS], mass[DIGIT_WORDS];
    Best best[WARPS];
    LogSum sums[WARPS];
    int stop_now;
#ifdef SPECULATE
    DraftCounts drafts;
    Pace pace;
    u64 ended_ns, drawn_ns;  // of block 0: the pass before, and the last draw
    i64 moment_ns;           // of the pass's first token
    i64 begun_pass;          // number, position and width, in one word
    float pass_ns;           // what block 0's clock says
    int told;                // posts
    Drawn drawn[MAX_WIDTH];  // after each of the pass's tokens, if all before were right
    int width, guess;        // of the next pass, and its first drafted token or -1
    int matches[WARPS];
    u32 tags[MAX_WIDTH];     // of the epoch in which each column was last written
#endif
};

static_assert(sizeof(Shared) <= (WIDTH == 1 ? 3072 : 4096), "kernels/tape_plan.py: static_bytes");


// Tokens of a pass: a constant where it is always one.
#if WIDTH == 1
struct Width {
    __device__ __forceinline__ void operator=(int) {}
    __device__ __forceinline__ constexpr operator int() const { return 1; }
};
#else
using Width = int;
#endif

#ifdef MEASURE
// Per stage of a traced pass, in cycles of the block's multiprocessor: begun, exchanged, multiplied,
// published; cycles that the first warp waited for the tape, and the stage; its first slot there,
// its own products done. Two rows more say what the cycles are on the clock that blocks share.
constexpr int MARKS = 8, TRACED_ROWS = LAYERS * 6 + 1;
#define MARK(which) \
    if (tid == 0 && traced) p.trace[trace_at() + which] = clock64();
#define MARK_END(stage) \
    if (tid == 0 && traced) { \
        p.trace[trace_at() + 3] = clock64(); \
        p.trace[trace_at() + 4] = ring.waited << 8 | stage; \
        p.trace[trace_at() + 5] = ring.first; \
    } \
    ring.waited = ring.first = 0; \
    trace_stage++;

// The moment at which the shared clock, which ticks coarsely, changes.
__device__ __forceinline__ void calibrate(i64* to) {
    const u64 before = device_ns();
    u64 now = before;
    for (int tries = 0; now == before && tries < 4096; tries++) now = device_ns();
    to[0] = static_cast<i64>(now);
    to[1] = clock64();
}
#else
#define MARK(which) {}
#define MARK_END(stage) {}
#endif
