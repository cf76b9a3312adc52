// CUDA as the tape kernel uses it, on a CPU: threads are fibers that take turns, copies land late.
//
// tape_emulator.py puts this before the kernel's sources, in which it has replaced what is inline
// PTX, and tape_host_main.h behind them. A warp's collective operations wait for all its lanes.
// Shared memory lies below 4 GB, so that a 32-bit shared address is a pointer.
#include <sys/mman.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __noinline__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads, blocks)
#define __expf expf

struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

template <class A, class B> auto min(A a, B b) { return a < b ? a : b; }
template <class A, class B> auto max(A a, B b) { return a > b ? a : b; }
template <class To, class From> To same_bits(From value) {
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}
inline uint32_t __float_as_uint(float x) { return same_bits<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return same_bits<float>(x); }
inline int __float_as_int(float x) { return same_bits<int>(x); }
inline float __int_as_float(int x) { return same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return same_bits<long long>(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
inline float __uint2float_rn(uint32_t x) { return (float)x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T> T __ldg(const T* p) { return *p; }
inline unsigned atomicAdd(unsigned* p, unsigned value) {
    const unsigned before = *p;
    *p += value;
    return before;
}
inline unsigned long long atomicMin(unsigned long long* p, unsigned long long value) {
    const unsigned long long old = *p;
    *p = min(old, value);
    return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline long long clock64() { return 0; }

struct Fiber { void* at; int thread, block; bool done; void* stack; };
struct Meeting {  // of `members` fibers
    int arrived = 0;
    unsigned round = 0;
    void wait(int members);
};
struct WarpState {
    Meeting meeting;
    uint64_t given[2][32][4];  // what the lanes give each other, alternately
    unsigned turn[32];
};
struct BlockState { char* shared; WarpState warps[12]; Meeting consumers, all; };
struct Copy { void* to; const void* from; int bytes; uint64_t* arrives; };

extern Fiber* current;
extern std::vector<BlockState> blocks;
extern std::deque<Copy> copies;  // under way
extern int grid_size, block_size;
void give_way();
uint64_t time_of_pass(int pass, int width);

struct ThreadIndex { struct { operator unsigned() const { return current->thread; } } x; };
struct BlockIndex { struct { operator unsigned() const { return current->block; } } x; };
struct GridSize { struct { operator unsigned() const { return grid_size; } } x; };
static ThreadIndex threadIdx;
static BlockIndex blockIdx;
static GridSize gridDim;

inline void Meeting::wait(int members) {
    const unsigned mine = round;
    if (++arrived == members) {
        arrived = 0;
        round++;
    } else {
        while (round == mine) give_way();
    }
}
inline BlockState& this_block() { return blocks[current->block]; }
inline WarpState& this_warp() { return this_block().warps[current->thread / 32]; }
inline void __syncwarp() { this_warp().meeting.wait(32); }
inline void __syncthreads() { this_block().all.wait(block_size); }
inline void __nanosleep(int) { give_way(); }

template <class T> uint64_t (*everybodys(const T& mine))[4] {
    WarpState& warp = this_warp();
    const int lane = current->thread % 32;
    auto given = warp.given[warp.turn[lane]++ & 1];
    memcpy(given[lane], &mine, sizeof mine);
    __syncwarp();
    return given;
}
template <class T> T lane_of(T mine, int lane) {
    T theirs;
    memcpy(&theirs, everybodys(mine)[lane], sizeof theirs);
    return theirs;
}
#define __shfl_xor_sync(mask, value, lanes) lane_of(value, current->thread % 32 ^ (lanes))
#define __shfl_sync(mask, value, lane) lane_of(value, lane)

inline bool __any_sync(uint32_t, bool mine) {
    auto given = everybodys((uint64_t)mine);
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= given[lane][0] != 0;
    return any;
}
inline bool __all_sync(uint32_t mask, bool mine) { return !__any_sync(mask, !mine); }

inline float half_of(uint32_t pair, int which) {
    return __uint_as_float(which ? pair & 0xffff0000u : pair << 16);
}
inline uint32_t rounded_to_bf16(float x) {
    const uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return bits + 0x7fff + (bits >> 16 & 1) >> 16;
}
// mma.m16n8k16: a thread has rows g and g + 8 and columns 2q and 2q + 1; g = lane / 4, q = lane % 4.
inline void matrix_product(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    struct Given { uint32_t a[4], b[2]; } mine = {{a.x, a.y, a.z, a.w}, {b0, b1}};
    auto given = everybodys(mine);
    const int g = current->thread % 32 / 4, q = current->thread % 4;
    for (int low = 0; low < 2; low++)
        for (int n = 0; n < 2; n++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) {
                const int quad = k % 8 / 2, far = k / 8;
                const Given& row = *(const Given*)given[g * 4 + quad];
                const Given& column = *(const Given*)given[(2 * q + n) * 4 + quad];
                sum += (double)half_of(row.a[low + 2 * far], k % 2) *
                       half_of(column.b[far], k % 2);
            }
            c[low * 2 + n] += (float)sum;
        }
}
// ldmatrix.x4: lanes 8m .. 8m + 7 give the addresses of matrix m's rows.
inline void matrices(uint32_t address, uint32_t (&to)[4], bool transposed) {
    auto given = everybodys((uint64_t)address);
    const int g = current->thread % 32 / 4, q = current->thread % 4;
    for (int m = 0; m < 4; m++) {
        auto row = [&](int i) { return (const uint16_t*)given[m * 8 + i][0]; };
        to[m] = transposed ? row(2 * q)[g] | (uint32_t)row(2 * q + 1)[g] << 16
                           : row(g)[2 * q] | (uint32_t)row(g)[2 * q + 1] << 16;
    }
}
// An mbarrier: arrivals wanted, arrivals missing, phases completed.
inline uint64_t new_barrier(uint32_t count) { return count | (uint64_t)count << 16; }
inline void arrive_at(uint64_t* barrier) {
    uint64_t wanted = *barrier & 0xffff, missing = (*barrier >> 16 & 0xffff) - 1;
    uint64_t completed = *barrier >> 32;
    if (missing == 0) missing = wanted, completed++;
    *barrier = wanted | missing << 16 | completed << 32;
}
inline bool phase_passed(const uint64_t* barrier, uint32_t parity) {
    give_way();
    return (*barrier >> 32 & 1) != parity;
}
inline void copy_later(void* to, const void* from, int bytes, uint64_t* arrives) {
    copies.push_back({to, from, bytes, arrives});
}
