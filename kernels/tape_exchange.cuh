// Data that carry their own epoch, and waits that end.
//
// A word is 64 bits: a value and the epoch it belongs to, written at once. Readers poll the word
// itself, so an exchange costs one store and one load, without fence, flag or barrier (the idea of
// NCCL's LL protocol). An epoch is used once for each buffer; a word is overwritten only by
// somebody who depends, through other words, on everybody who had to read it.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#ifndef EPOCHS
#define EPOCHS 65535  // that the 16 bits of a word can tell apart
#endif

constexpr int CONSUMERS = 256;  // threads that compute
constexpr int WARPS = CONSUMERS / 32;
constexpr int MAX_WIDTH = WIDTH;  // tokens of a pass

__device__ __forceinline__ u64 device_ns() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Of this multiprocessor alone.
__device__ __forceinline__ i64 cycles() { return clock64(); }

__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// The same, but the compiler does not know it: it keeps the result and does not find it out again.
__device__ __forceinline__ u32 kept(u32 address) {
    u32 copy;
    asm volatile("mov.u32 %0, %1;" : "=r"(copy) : "r"(address));
    return copy;
}

__device__ __forceinline__ u32 load_shared_word(u32 address) {
    u32 word;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

// All threads that compute, and only they.
__device__ __forceinline__ void sync_consumers() {
    asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory");
}

// A number that an exchange's words carry: in full, and as 16 bits that are never 0, which is what
// cleared words hold.
struct Epoch {
    u32 full, tag;

    __device__ __forceinline__ static Epoch of(u32 number) { return {number, number % EPOCHS + 1}; }
    __device__ __forceinline__ Epoch next() const {
        return {full + 1, tag == EPOCHS ? 1 : tag + 1};
    }
};

__device__ __forceinline__ u64 word_of(float value, u32 epoch) {
    return static_cast<u64>(epoch) << 32 | __float_as_uint(value);
}

__device__ __forceinline__ void put_pair(u64* to, float first, float second, Epoch epoch) {
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to),
                 "l"(word_of(first, epoch.full)), "l"(word_of(second, epoch.full))
                 : "memory");
}

struct Pair {
    u64 first, second;

    __device__ __forceinline__ bool is(Epoch epoch) const {
        return static_cast<u32>(first >> 32) == epoch.full &&
               static_cast<u32>(second >> 32) == epoch.full;
    }
    __device__ __forceinline__ float a() const { return __uint_as_float(static_cast<u32>(first)); }
    __device__ __forceinline__ float b() const { return __uint_as_float(static_cast<u32>(second)); }
};

__device__ __forceinline__ void peek(const u64* from, Pair& pair) {
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                 : "=l"(pair.first), "=l"(pair.second)
                 : "l"(from)
                 : "memory");
}

// Four values in one 128-bit word: of each 32 bits 28 are the value's and four the epoch's. What is cut
// off is less than what the tensor cores' operands can hold (tape_matvec.cuh), and half the traffic is
// saved: under a full stream of weights, the volume of an exchange is most of its time. Such words are
// written by every pass, so the only other epoch that one can have is the last.
struct Quad {
    u64 low, high;

    __device__ __forceinline__ static Quad of(float a, float b, float c, float d, Epoch epoch) {
        return {pack(a, b, epoch.tag), pack(c, d, epoch.tag >> 8)};
    }
    __device__ __forceinline__ bool is(Epoch epoch) const {
        const u32 tag = epoch.tag;
        return (((first(low) ^ tag) | (second(low) ^ tag >> 4) | (first(high) ^ tag >> 8) |
                 (second(high) ^ tag >> 12)) & TAG) == 0;
    }
    __device__ __forceinline__ float4 values() const {
        return {value(first(low)), value(second(low)), value(first(high)), value(second(high))};
    }

  private:
    static constexpr u32 TAG = 15;
    __device__ __forceinline__ static u64 pack(float a, float b, u32 tag) {
        return static_cast<u64>((__float_as_uint(b) & ~TAG) | (tag >> 4 & TAG)) << 32 |
               ((__float_as_uint(a) & ~TAG) | (tag & TAG));
    }
    __device__ __forceinline__ static u32 first(u64 half) { return static_cast<u32>(half); }
    __device__ __forceinline__ static u32 second(u64 half) { return static_cast<u32>(half >> 32); }
    __device__ __forceinline__ static float value(u32 word) { return __uint_as_float(word & ~TAG); }
};

__device__ __forceinline__ void peek(const Quad* from, Quad& quad) {
    asm volatile(
        "{ .reg .b128 q;\n"
        "ld.relaxed.gpu.global.b128 q, [%2];\n"
        "mov.b128 {%0, %1}, q; }"
        : "=l"(quad.low), "=l"(quad.high)
        : "l"(from)
        : "memory");
}

__device__ __forceinline__ void put(
    Quad* to, float a, float b, float c, float d, Epoch epoch) {
    const Quad quad = Quad::of(a, b, c, d, epoch);
    asm volatile(
        "{ .reg .b128 q;\n"
        "mov.b128 q, {%1, %2};\n"
        "st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(to),
        "l"(quad.low), "l"(quad.high)
        : "memory");
}

// Where a wait is, for the message when it is in vain. Names and order: kernels/stages.py.
enum Stage { EMBED, QKV, ROPE, ATTENTION, OUTPUT, GATE_UP, DOWN, HEAD, SAMPLE };

constexpr int EARLIEST = 2;

// What every wait needs to end in any case; in shared memory. Waits only look whether the block is
// dead: that is decided by a thread that has nothing else to do (`watch`).
struct Bounds {
    int dead;    // of this block: nobody waits for anything any more
    u64 place;   // where its first thread is: token, layer, stage
    u32* abort;  // of all blocks; EARLIEST words on, the earliest place of those who gave up
    i64* fault;  // the host's word
    u64 timeout_ns;

    __device__ __forceinline__ void enter(i64 token, int layer, Stage stage) {
        *const_cast<volatile u64*>(&place) =
            (static_cast<u64>(token) << 16 | static_cast<u64>(layer)) << 8 | (stage + 1);
    }

    // Until `quit`: ends the block's waits when its place has not changed for too long, or when
    // another block has given up.
    __device__ __forceinline__ void watch(const volatile int* quit) {
        u64 last = 0, since_ns = device_ns();
        while (!*quit) {
            __nanosleep(2000);
            const u64 now = device_ns(), here = *const_cast<volatile u64*>(&place);
            if (here != last) since_ns = now;
            last = here;
            if (*const_cast<volatile u32*>(abort) == 0 && now - since_ns <= timeout_ns) continue;
            *const_cast<volatile int*>(&dead) = 1;
            *const_cast<volatile u32*>(abort) = 1;
            tell_place(here);
            return;
        }
    }

  private:
    // The earliest place that anybody waits at is where something is missing: whoever has nothing to
    // do there waits further on, and may lose patience first.
    __device__ __forceinline__ void tell_place(u64 here) {
        u64* const earliest = reinterpret_cast<u64*>(abort + EARLIEST);
        if (atomicMin(earliest, here) <= here) return;
        for (u64 told = ~0ull; here < told; here = *const_cast<volatile u64*>(earliest)) {
            told = here;
            asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(fault), "l"(told) : "memory");
        }
    }
};

// For who asks often whether its block is dead: by an address that is found out once, where the
// compiler would find out that of a variable anew each time.
struct Life {
    u32 flag;  // in shared memory

    __device__ __forceinline__ static Life of(const Bounds& bounds) {
        return {kept(shared_address(&bounds.dead))};
    }
    __device__ __forceinline__ bool is_dead() const { return load_shared_word(flag) != 0; }
};

// N words at once: every load is under way before the first is looked at; late ones are repeated.
template <int N, class Word, class Source>
__device__ __forceinline__ void take(
    const Source* const (&from)[N], const bool (&wanted)[N], Word (&got)[N], Epoch epoch,
    Life life) {
    bool missing;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (wanted[i]) peek(from[i], got[i]);
    do {
        missing = false;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (wanted[i] && !got[i].is(epoch)) {
                peek(from[i], got[i]);
                missing = true;
            }
    } while (missing && !life.is_dead());
}
