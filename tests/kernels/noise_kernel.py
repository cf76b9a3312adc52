"""A kernel that writes the device's Gumbel noise down. Imports Triton: import it inside a test."""

import triton
import triton.language as tl

from kernels.sampling import gumbel_noise


@triton.jit
def noise_kernel(out_ptr, seed_ptr, position, N: tl.constexpr):
    """out[i] = noise of token i at `position`; the seed lies in memory, as int64."""
    ids = tl.arange(0, N)
    tl.store(out_ptr + ids, gumbel_noise(tl.load(seed_ptr), position, ids))
