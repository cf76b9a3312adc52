// How fast this GPU's memory can be read: bulk copies into shared memory, and nothing else.
//
// One thread a block, one block a multiprocessor; each has its own stretch, as with the tapes, and
// `depth` copies under way. Nobody looks at what arrives.
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int MAX_DEPTH = 12;  // COPY_BYTES: kernels/tape_probe.py

__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void await(u64* barrier, u32 parity) {
    u32 passed = 0;
    while (!passed)
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(passed)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}

extern "C" __global__ void __launch_bounds__(1, 1) read_all(
    const unsigned char* data, long long copies, int depth) {
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ u64 full[MAX_DEPTH];
    for (int i = 0; i < depth; i++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    const unsigned char* from = data + blockIdx.x * copies * COPY_BYTES;
    for (long long i = 0; i < copies + depth; i++) {
        const int slot = static_cast<int>(i % depth);
        const u32 barrier = shared_address(&full[slot]);
        if (i >= depth) await(&full[slot], static_cast<u32>(i / depth - 1) & 1);
        if (i >= copies) continue;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(COPY_BYTES)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1], %2, [%3];" ::"r"(shared_address(ring + slot * COPY_BYTES)),
            "l"(from + i * COPY_BYTES), "r"(COPY_BYTES), "r"(barrier)
            : "memory");
    }
}
