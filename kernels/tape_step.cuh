// The stages of one pass as the computing threads of one block go through them.
//
// Every block has its share of every stage by the plan (kernels/tape_plan.py): rows of the
// matrices, columns of the MLP, an item of attention, words to combine. A block that has no share
// of a stage goes on to the next one at once; its tape keeps moving in any case.
#pragma once
#include "tape_params.cuh"

// The down projection's columns go by in parts.
constexpr int DOWN_PART = DOWN_COLUMNS < INTERMEDIATE ? DOWN_COLUMNS : INTERMEDIATE;
constexpr int PART_SLOTS = padded(DOWN_PART) / SLOT_COLUMNS;  // of a unit
constexpr int OTHER_SLOTS = (INTERMEDIATE / DOWN_PART - 1) * PART_SLOTS +
                            padded(INTERMEDIATE % DOWN_PART) / SLOT_COLUMNS;
constexpr int DOWN_UNITS = 8;  // that go through all parts together

struct Step {
    const Params& p;
    Shared& s;
    u8* dynamic;
    int tid, warp, lane;
    Ring ring;
    Ahead ahead;
    Bounds& bounds;
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
        if (tid == 0) bounds.enter(sampled, layer, stage);
    }
    // Read anew at every stage: what follows from them is not worth a register until then.
    __device__ __forceinline__ void renew() {
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
        warp = __shfl_sync(~0u, tid / 32, 0);  // known to be the same for all lanes
        lane = tid % 32;
    }

    // A thread's words of K values of one token, which begin at `first`.
    template <int K>
    struct Words {
        static constexpr int QUADS = K / 4, EACH = (QUADS + CONSUMERS - 1) / CONSUMERS;
        Quad quad[EACH];

        __device__ __forceinline__ static bool has(int i, int tid) {
            return (i + 1) * CONSUMERS <= QUADS || tid + i * CONSUMERS < QUADS;
        }
        __device__ __forceinline__ void ask_for(const Quad* first, int tid) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (has(i, tid)) peek(first + tid + i * CONSUMERS, quad[i]);
        }
        // Late ones are asked for again.
        __device__ __forceinline__ void receive(
            const Quad* first, int tid, Epoch epoch, Bounds& bounds) {
            bool missing;
            do {
                missing = false;
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (has(i, tid) && !quad[i].is(epoch)) {
                        peek(first + tid + i * CONSUMERS, quad[i]);
                        missing = true;
                    }
            } while (missing && !bounds.is_dead());
        }
    };

    // K values of each token into fragments; with GAIN normalised but for the common factor. `units`:
    // of the stage's tape, whose first slots are taken meanwhile.
    template <int K, bool GAIN>
    __device__ __forceinline__ void gather(const Quad* from, const u16* gain, int units) {
        squares ^= 1;
        prepare<K>(units);  // first: what is asked for too early has to be asked for again
        for (int token = 0; token < width; token++) {
            Words<K> words;
            words.ask_for(from + token * (K / 4), tid);
            arrange<K, GAIN>(words, from + token * (K / 4), token, gain, false);
        }
        sync_consumers();
    }

    // What has been asked for into fragments. `again`: what was there is still being multiplied.
    template <int K, bool GAIN>
    __device__ __forceinline__ void arrange(
        Words<K>& words, const Quad* from, int token, const u16* gain, bool again) {
        constexpr int EACH = Words<K>::EACH;
        uint2 gains[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (GAIN && words.has(i, tid))
                gains[i] = __ldg(reinterpret_cast<const uint2*>(gain) + tid + i * CONSUMERS);
        words.receive(from, tid, epoch, bounds);
        if (again) sync_consumers();
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (words.has(i, tid)) place<GAIN>(words.quad[i].values(), gains[i], i, token, sum);
        if (GAIN) keep_squares(sum, token);
        clear_padding<K>(token);
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
                    i * (CONSUMERS / 4 * 64) * width;
        *reinterpret_cast<uint2*>(there) = halves_of(x.x, x.y);
        *reinterpret_cast<uint2*>(there + 16) = halves_of(x.z, x.w);
    }

    // The same as `gather` from the embedding of the tokens that are fed.
    __device__ __forceinline__ void gather_embedding(const u16* gain, int units) {
        constexpr int EACH = Words<HIDDEN>::EACH;
        squares ^= 1;
        for (int token = 0; token < width; token++) {
            const uint2* row = reinterpret_cast<const uint2*>(
                p.embed + static_cast<i64>(s.token[token]) * HIDDEN);
            uint2 values[EACH], gains[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (Words<HIDDEN>::has(i, tid)) {
                    values[i] = __ldg(row + tid + i * CONSUMERS);
                    gains[i] = __ldg(reinterpret_cast<const uint2*>(gain) + tid + i * CONSUMERS);
                }
            if (token == 0) prepare<HIDDEN>(units);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (Words<HIDDEN>::has(i, tid)) {
                    const float4 x = {low_bf16(values[i].x), high_bf16(values[i].x),
                                      low_bf16(values[i].y), high_bf16(values[i].y)};
                    place<true>(x, gains[i], i, token, sum);
                }
            keep_squares(sum, token);
            clear_padding<HIDDEN>(token);
        }
        sync_consumers();
    }

    __device__ __forceinline__ void keep_squares(float sum, int token) {
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
        if (lane == 0) s.squares[squares][warp][token] = sum;
    }

    // Weights are zero there, which only a number makes zero.
    template <int COLUMNS>
    __device__ __forceinline__ void clear_padding(int token) {
        if (padded(COLUMNS) > COLUMNS)
            for (int column = COLUMNS + tid * 2; column < padded(COLUMNS); column += CONSUMERS * 2)
            *reinterpret_cast<uint2*>(
                at(p.at_activations) + fragment_offset(column, token, width)) = {0, 0};
    }

    // What the gathered activations still have to be multiplied by.
    __device__ __forceinline__ float norm_of(int token) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum += s.squares[squares][i][token];
        return rsqrtf(sum / HIDDEN + RMS_EPS);
    }

    // What a stage can do before it has its activations.
    template <int COLUMNS>
    __device__ __forceinline__ void prepare(int units) {
        ahead.try_fill(ring, units * (padded(COLUMNS) / SLOT_COLUMNS), lane);
    }

    // Chunks of a stage's units; `use(sums, stride, first unit, units)` sees every warp's sums.
    template <int COLUMNS, class Use>
    __device__ __forceinline__ void multiply(int units, Use use) {
        constexpr int SLOTS = padded(COLUMNS) / SLOT_COLUMNS;
        const int chunk = width == 1 ? 16 : 8, stride = chunk * width * 8;
        for (int first = 0; first < units; first += chunk) {
            const int count = min(chunk, units - first);
            float* sums = at<float>(p.at_sums) + flip * WARPS * stride;
            multiply_units<SLOTS>(ring, ahead, count, (units - first - count) * SLOTS,
                                  at(p.at_activations), width, sums + warp * stride, warp, lane,
                                  bounds);
            MARK(6)
            sync_consumers();
            if (first + chunk >= units) MARK(2)
            use(sums, stride, first, count);
            flip ^= 1;
        }
    }

    // What this pass is the first to read, into L2: one trip to memory instead of one after another.
    __device__ __forceinline__ void prefetch(const u8* from, int bytes) const {
        if (tid * 128 < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + tid * 128));
    }

    __device__ __forceinline__ void begin_pass() {
        if (tid < width && s.token[tid] >= VOCAB) s.token[tid] = VOCAB - 1;
        sync_consumers();
        const Share& share = s.share;
        prefetch(reinterpret_cast<const u8*>(p.turns + static_cast<i64>(position) * (HEAD_DIM / 2)),
                 width * (HEAD_DIM / 2) * static_cast<int>(sizeof(float2)));
        for (int token = 0; token < width; token++)
            prefetch(reinterpret_cast<const u8*>(p.embed) +
                         static_cast<i64>(s.token[token]) * (HIDDEN * 2), HIDDEN * 2);
        float2* turns = at<float2>(p.at_turns);
#pragma unroll 1
        for (int i = tid; i < width * (HEAD_DIM / 2); i += CONSUMERS)
            turns[i] = p.turns[static_cast<i64>(position) * (HEAD_DIM / 2) + i];
        float* residual = at<float>(p.at_residual);
        const int rows = share.out_units * 8;
#pragma unroll 1
        for (int i = tid; i < width * rows; i += CONSUMERS) {
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

    __device__ __forceinline__ void qkv(int layer) {
        begin(layer, QKV);
        const Share& share = s.share;
        MARK(0)
        if (share.qkv_units > 0) {
            const u16* gain = p.attn_norm + layer * HIDDEN;
            if (layer == 0)
                gather_embedding(gain, share.qkv_units);
            else
                gather<HIDDEN, true>(p.next, gain, share.qkv_units);
            epoch = epoch.next();
            MARK(1)
            multiply<HIDDEN>(share.qkv_units, [&](float* sums, int stride, int first, int n) {
                for (int i = tid; i < n * width * 2; i += CONSUMERS) {
                    const int token = (i >> 1) % width, unit = (i >> 1) / width;
                    const int row = (share.qkv_unit + first + unit) * 8 + (i & 1) * 4;
                    if (row >= QKV_SIZE) continue;
                    const float norm = norm_of(token);
                    float4 x = sum_of_warps(sums, stride, i * 4);
                    x = {x.x * norm, x.y * norm, x.z * norm, x.w * norm};
#if QKV_BIAS
                    const uint2 bias =
                        *reinterpret_cast<const uint2*>(p.qkv_bias + layer * QKV_SIZE + row);
                    x = {x.x + low_bf16(bias.x), x.y + high_bf16(bias.x),
                         x.z + low_bf16(bias.y), x.w + high_bf16(bias.y)};
#endif
                    put(p.qkv + (token * QKV_SIZE + row) / 4, x.x, x.y, x.z, x.w, epoch);
                }
            });
        } else {
            epoch = epoch.next();
        }
        MARK_END(QKV)
    }

    // Query heads, key and value of this item's key head: all tokens', normed and rotated.
    __device__ __forceinline__ void gather_heads(int layer) {
        float* heads = at<float>(p.at_heads);
        constexpr int QUADS = HEAD_WORDS / 4;
        for (int first = 0; first < QUADS * width; first += CONSUMERS) {
            const int number = first + tid, token = number / QUADS, word = number % QUADS * 4;
            const int head = word / HEAD_DIM;
            const int row = head < GROUP    ? kv_head * GROUP + head
                            : head == GROUP ? HEADS + kv_head
                                            : HEADS + KV_HEADS + kv_head;
            const bool wanted[1] = {number < QUADS * width};
            const Quad* const from[1] = {
                p.qkv + (token * QKV_SIZE + row * HEAD_DIM + word % HEAD_DIM) / 4};
            Quad quad[1];
            take(from, wanted, quad, epoch, bounds);
            if (wanted[0]) *reinterpret_cast<float4*>(heads + number * 4) = quad[0].values();
        }
        sync_consumers();
        u8* fresh = at(p.at_new);
        for (int i = warp; i < width * (GROUP + 2); i += WARPS) {
            const int token = i / (GROUP + 2), head = i % (GROUP + 2);
            float* vector = heads + i * HEAD_DIM;
            const float2* turns = at<float2>(p.at_turns) + token * (HEAD_DIM / 2);
            if (head <= GROUP)
                rotate(vector, (head < GROUP ? p.q_norm : p.k_norm) + layer * HEAD_DIM, turns,
                       lane);
            __syncwarp();
            if (head < GROUP) continue;
            u8* row = fresh + (head - GROUP) * KV_TILE_BYTES + token * KV_ROW_BYTES;
            for (int d = lane * 2; d < HEAD_DIM; d += 64)
                *reinterpret_cast<u32*>(row + d * 2) = to_bf16_pair(vector[d], vector[d + 1]);
        }
        sync_consumers();
    }

    __device__ __forceinline__ void append(int layer) {
        const u8* fresh = at(p.at_new);
        constexpr int CHUNKS = HEAD_DIM / 8;
#pragma unroll 1
        for (int i = tid; i < 2 * width * CHUNKS; i += CONSUMERS) {
            const int which = i / (width * CHUNKS), token = i / CHUNKS % width, chunk = i % CHUNKS;
            if (position + token >= capacity) continue;
            u16* to = (which ? values : keys) +
                      ((static_cast<i64>(layer) * KV_HEADS + kv_head) * capacity + position +
                       token) * HEAD_DIM;
            reinterpret_cast<uint4*>(to)[chunk] = *reinterpret_cast<const uint4*>(
                fresh + which * KV_TILE_BYTES + token * KV_ROW_BYTES + chunk * 16);
        }
    }

    __device__ __forceinline__ void attention(int layer) {
        begin(layer, ATTENTION);
        MARK(0)
        if (kv_head < KV_HEADS && split < splits.used) {
            gather_heads(layer);
            MARK(1)
            if (split == splits.used - 1) append(layer);
            for (int group = 0; group < row_groups(width); group++) {
                attend(layer, group * 8);
                if (group + 1 < row_groups(width)) sync_consumers();
            }
        }
        MARK(2)
        MARK_END(ATTENTION)
    }

    // Rows first_row .. first_row + 7 of this item's queries; row = token * GROUP + head.
    __device__ __forceinline__ void attend(
        int layer, int first_row) {
        const int tiles = splits.count(split), split_first = splits.first(split);
        const bool last = split == splits.used - 1;
        const int row = first_row + (lane >> 2), quad = lane & 3;
        const int token = row / GROUP, rows = min(8, width * GROUP - first_row);
        // The queries as operands, a warp for each k-step.
        uint4* queries = at<uint4>(p.at_queries);
#pragma unroll 1
        for (int step = warp; step < STEPS; step += WARPS) {
            uint2 a = {}, b = {};
            if (row < width * GROUP) {
                constexpr float scale = ATTENTION_SCALE * 1.4426950408889634f;
                const float* query = at<float>(p.at_heads) +
                                     (token * (GROUP + 2) + row % GROUP) * HEAD_DIM + quad * 2 +
                                     step * 16;
                const float2 low = *reinterpret_cast<const float2*>(query);
                const float2 high = *reinterpret_cast<const float2*>(query + 8);
                a = halves_of(low.x * scale, low.y * scale);
                b = halves_of(high.x * scale, high.y * scale);
            }
            queries[step * 32 + lane] = {a.x, a.y, b.x, b.y};
        }
        sync_consumers();
        Softmax softmax;
        softmax.queries = shared_address(queries) + lane * 16;
        softmax.begin();
        // The history's tiles, by the warps that have a slot, and the new tokens' one by the next.
        const bool has_fresh = last && warp == min(tiles, KV_SLOTS);
        int tile = warp < KV_SLOTS ? warp : tiles;
#pragma unroll 1
        while (tile < tiles || has_fresh) {
            const bool fresh = tile >= tiles;
            if (!fresh) barrier_wait(shared_address(&s.kv.full[warp]), kv_parity, bounds);
            const int start = (split_first + tile) * TILE;
            softmax.add(fresh ? at(p.at_new) : at(p.at_kv) + warp * 2 * KV_TILE_BYTES,
                        fresh ? min(token, width - 1) + 1 : position - start, lane);
            if (fresh) break;
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&s.kv.empty[warp]));
            kv_parity ^= 1;
            tile += KV_SLOTS;
        }
        constexpr int MOST = KV_SLOTS + 1;  // warps that have a result
        const int active = min(KV_SLOTS, tiles) + (last ? 1 : 0);
        float* outs = at<float>(p.at_sums);
        if (warp < active && row < first_row + rows) {
            if (quad == 0) {
                s.tops[warp][lane >> 2] = softmax.top;
                s.totals[warp][lane >> 2] = softmax.total;
            }
            float* out = outs + (warp * rows + (lane >> 2)) * HEAD_DIM + quad * 2;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; i++)
                *reinterpret_cast<float2*>(out + i * 8) = {
                    softmax.out[i][0] + softmax.out[i][2], softmax.out[i][1] + softmax.out[i][3]};
        }
        sync_consumers();
        for (int i = tid; i < rows * (HEAD_DIM / 4); i += CONSUMERS) {
            const int r = i / (HEAD_DIM / 4), d = i % (HEAD_DIM / 4) * 4;
            float tops[MOST], top = NOTHING, total = 0.0f;
#pragma unroll
            for (int w = 0; w < MOST; w++) {
                tops[w] = w < active ? s.tops[w][r] : NOTHING;
                top = fmaxf(top, tops[w]);
            }
            float4 sum = {};
#pragma unroll
            for (int w = 0; w < MOST; w++)
                if (w < active) {
                    const float weight = power_of_two(tops[w] - top);
                    const float4 out =
                        *reinterpret_cast<const float4*>(outs + (w * rows + r) * HEAD_DIM + d);
                    total += s.totals[w][r] * weight;
                    sum = {sum.x + out.x * weight, sum.y + out.y * weight,
                           sum.z + out.z * weight, sum.w + out.w * weight};
                }
            const int of_token = (first_row + r) / GROUP;
            const int head = kv_head * GROUP + (first_row + r) % GROUP;
            const i64 part = (static_cast<i64>(of_token) * HEADS + head) * p.splits + split;
            put(p.parts + (part * HEAD_DIM + d) / 4, sum.x, sum.y, sum.z, sum.w, epoch);
            if (d == 0) put_pair(p.tops + part * 2, top, total, epoch);
        }
    }

    // The splits' partial results of this block's words: sixteen threads a word, each with every
    // sixteenth split, then one tree. The order never changes.
    __device__ __forceinline__ void combine(int layer) {
        begin(layer, ATTENTION);
        const Share& share = s.share;
        const int used = splits.used;
        const int each = share.words / 4, quads = each * width;
        MARK(0)
        prepare<QUERY_SIZE>(share.out_units);
        for (int first = 0; first < quads; first += CONSUMERS / 16) {
            const int i = first + (tid >> 4);
            const int token = width == 1 ? 0 : i / each;
            const int word = share.word + (i - token * each) * 4;
            const bool mine = i < quads && word < QUERY_SIZE;
            const int head = word / HEAD_DIM, d = word % HEAD_DIM;
            const int part = (token * HEADS + head) * static_cast<int>(p.splits);
            Partial sum = {NOTHING, 0.0f, {}};
            for (int one = tid & 15; one < used && mine; one += 16) {
                const u64* const its_top = p.tops + (part + one) * 2;
                const Quad* const its_part = p.parts + ((part + one) * HEAD_DIM + d) / 4;
                Pair pair;
                Quad quad;
                do {  // both at once: one trip instead of two
                    peek(its_top, pair);
                    peek(its_part, quad);
                } while (!(pair.is(epoch) && quad.is(epoch)) && !bounds.is_dead());
                sum.add({pair.a(), pair.b(), quad.values()});
            }
#pragma unroll
            for (int mask = 1; mask < 16; mask <<= 1) sum.add(sum.shuffled(mask));
            if (mine && (tid & 15) == 0) {
                const float scale = 1.0f / sum.total;
                put(p.attended + (token * QUERY_SIZE + word) / 4, sum.of.x * scale,
                    sum.of.y * scale, sum.of.z * scale, sum.of.w * scale, epoch);
            }
        }
        MARK(1)
        MARK(2)
        MARK_END(ATTENTION)
    }

    // This block's rows of the residual and what `sums` adds to them, for everybody.
    __device__ __forceinline__ void add_to_residual(
        float* sums, int stride, int first, int n, Quad* to) {
        const Share& share = s.share;
        float* residual = at<float>(p.at_residual);
        const int rows = share.out_units * 8;
        for (int i = tid; i < n * width * 2; i += CONSUMERS) {
            const int token = (i >> 1) % width, unit = (i >> 1) / width;
            const int own = (first + unit) * 8 + (i & 1) * 4;
            float4* x = reinterpret_cast<float4*>(residual + token * rows + own);
            const float4 sum = sum_of_warps(sums, stride, i * 4);
            *x = {x->x + sum.x, x->y + sum.y, x->z + sum.z, x->w + sum.w};
            put(to + (token * HIDDEN + share.out_unit * 8 + own) / 4, x->x, x->y, x->z, x->w,
                epoch);
        }
    }

    __device__ __forceinline__ void output(int layer) {
        begin(layer, OUTPUT);
        const Share& share = s.share;
        MARK(0)
        if (share.out_units > 0) {
            gather<QUERY_SIZE, false>(p.attended, nullptr, 0);  // prepared: see combine
            MARK(1)
            multiply<QUERY_SIZE>(
                share.out_units, [&](float* sums, int stride, int first, int n) {
                    add_to_residual(sums, stride, first, n, p.middle);
                });
        }
        MARK_END(OUTPUT)
    }

    // Gate and up of this block's columns, and their product for everybody.
    __device__ __forceinline__ void gate_up(int layer) {
        begin(layer, GATE_UP);
        const Share& share = s.share;
        MARK(0)
        if (share.slices > 0) {
            gather<HIDDEN, true>(p.middle, p.mlp_norm + layer * HIDDEN, share.slices * 2);
            MARK(1)
            multiply<HIDDEN>(
                share.slices * 2, [&](float* sums, int stride, int first, int n) {
                    for (int i = tid; i < n * width; i += CONSUMERS) {
                        const int token = (i >> 1) % width, slice = (i >> 1) / width;
                        const int column = (share.slice + first / 2 + slice) * 8 + (i & 1) * 4;
                        if (column >= INTERMEDIATE) continue;
                        const int at_gate = (slice * 2 * width + token) * 8 + (i & 1) * 4;
                        const float norm = norm_of(token);
                        const float4 gate = sum_of_warps(sums, stride, at_gate);
                        const float4 up = sum_of_warps(sums, stride, at_gate + width * 8);
                        put(p.activated + (token * INTERMEDIATE + column) / 4,
                            product(gate.x * norm, up.x * norm),
                            product(gate.y * norm, up.y * norm),
                            product(gate.z * norm, up.z * norm),
                            product(gate.w * norm, up.w * norm), epoch);
                    }
                });
        }
        MARK_END(GATE_UP)
    }

    __device__ __forceinline__ static float product(float gate, float up) {
        return __fdividef(gate, 1.0f + __expf(-gate)) * up;
    }

    // The columns in parts: the activations of all would leave the ring too little room.
    __device__ __forceinline__ void down(int layer) {
        begin(layer, DOWN);
        const Share& share = s.share;
        MARK(0)
        const int stride = DOWN_UNITS * width * 8;
        for (int first = 0; first < share.out_units; first += DOWN_UNITS) {
            const int count = min(DOWN_UNITS, share.out_units - first);
            float* sums = at<float>(p.at_sums) + flip * WARPS * stride;
            ahead.try_fill(ring, Ahead::to_take(count * PART_SLOTS, count * OTHER_SLOTS), lane);
            down_parts(count, sums + warp * stride, first > 0);
            MARK(6)
            sync_consumers();
            MARK(2)
            add_to_residual(sums, stride, first, count, p.next);
            flip ^= 1;
        }
        MARK_END(DOWN)
    }

    // `again`: what was gathered before is still being multiplied. A single token's next words are
    // under way while these are multiplied.
    __device__ __forceinline__ void down_parts(int units, float* sums, bool again) {
        constexpr int PARTS = INTERMEDIATE / DOWN_PART, LAST = INTERMEDIATE % DOWN_PART;
        Words<DOWN_PART> words;
        if (width == 1) words.ask_for(p.activated, tid);
        int rest = units * (PART_SLOTS + OTHER_SLOTS);
#pragma unroll 1
        for (int part = 0; part < PARTS; part++) {
            arrange_part(words, part * DOWN_PART, again || part > 0);
            if (part == 0) MARK(1)
            if (width == 1 && part + 1 < PARTS)
                words.ask_for(p.activated + (part + 1) * (DOWN_PART / 4), tid);
            rest -= units * PART_SLOTS;
            multiply_units<PART_SLOTS>(ring, ahead, units, rest, at(p.at_activations), width, sums,
                                       warp, lane, bounds, part > 0);
        }
        last_part<LAST>(units, sums);
    }

    template <int LAST>
    __device__ __forceinline__ void last_part(int units, float* sums) {
        if constexpr (LAST > 0) {
            Words<LAST> words;
            if (width == 1) words.ask_for(p.activated + (INTERMEDIATE - LAST) / 4, tid);
            arrange_part(words, INTERMEDIATE - LAST, true);
            multiply_units<padded(LAST) / SLOT_COLUMNS>(ring, ahead, units, 0,
                                                        at(p.at_activations), width, sums, warp,
                                                        lane, bounds, true);
        }
    }

    template <int K>
    __device__ __forceinline__ void arrange_part(Words<K>& words, int column, bool again) {
        for (int token = 0; token < width; token++) {
            const Quad* const from = p.activated + (token * INTERMEDIATE + column) / 4;
            if (width > 1) words.ask_for(from, tid);
            arrange<K, false>(words, from, token, nullptr, again && token == 0);
        }
        sync_consumers();
    }
};
