"""The parts that stages are made of beside matrices: norms, RoPE, the cache, attention.

Each has a PyTorch twin of the same meaning in kernels/reference.py.
"""

from __future__ import annotations

import math

import numpy as np

from engine import mailbox as mb
from kernels.cpu_elements import rotate_pairs, scale_row, store_row_bf16, store_row_f32
from kernels.cpu_host import kernel, part
from kernels.cpu_matrix import dot_rows, weighted_sum
from kernels.cpu_state import HEAD_DIM, HEADS, KV_BF16, KV_HEADS, Own, Shared
from kernels.cpu_vector import GROUP, exp_sum, largest, sum_squares


@kernel
def inverse_rms(x: np.ndarray, eps: float) -> np.float32:
    """1 / sqrt(mean of squares + eps). Twin: `rms_norm`."""
    n = x.shape[0]
    return np.float32(1.0) / np.sqrt(sum_squares(x.ctypes.data, n) / np.float32(n) + eps)


@kernel
def normalise(x: np.ndarray, weight: np.ndarray, eps: float, columns: int, out: np.ndarray) -> None:
    """RMSNorm of x[:columns] into `out`, one row after another. Twin: `rms_norm`."""
    n = weight.shape[0]
    for t in range(columns):
        scale, target = inverse_rms(x[t], eps), out.ctypes.data + 4 * n * t
        scale_row(x[t].ctypes.data, weight.ctypes.data, scale, n, target)


@kernel
def rotate(
    source: np.ndarray, norm: np.ndarray, eps: float, cos: np.ndarray, sin: np.ndarray, out: int
) -> None:
    """One head with its norm, if it has any (`norm` is not empty), and RoPE. Twin: `rope`."""
    x, half = source.ctypes.data, cos.shape[0]
    if norm.shape[0] > 0:
        scale_row(x, norm.ctypes.data, inverse_rms(source, eps), 2 * half, out)
        x = out
    rotate_pairs(x, cos.ctypes.data, sin.ctypes.data, half, out)


@part
def rotate_head(
    s: Shared, source: np.ndarray, layer: int, which: int, position: int, out: int
) -> None:
    """`rotate` a query (`which` 0) or key (1) of a layer."""
    norm = s.qk_norms[layer, which] if s.qk_norms.shape[0] > 0 else source[:0]
    rotate(source, norm, s.eps[0], s.cos[position], s.sin[position], out)


@part
def cache_row(s: Shared, base: int, layer: int, kv_head: int, position: int) -> int:
    """The address of one position's key or value in the cache."""
    width = 2 if s.shape[KV_BF16] else 4
    row = (layer * s.shape[KV_HEADS] + kv_head) * s.words[mb.CAPACITY] + position
    return base + row * s.shape[HEAD_DIM] * width


@part
def append(s: Shared, source: np.ndarray, row: int) -> None:
    """Write one head's key or value into the cache, in the cache's dtype."""
    if s.shape[KV_BF16]:
        store_row_bf16(source.ctypes.data, s.shape[HEAD_DIM], row)
    else:
        store_row_f32(source.ctypes.data, s.shape[HEAD_DIM], row)


@part
def rotate_and_append(s: Shared, own: Own, layer: int, kv_head: int, t: int, position: int) -> None:
    """Key and value of one key head and token into the cache. Twin: `rope`."""
    n, q_size = s.shape[HEAD_DIM], s.shape[HEADS] * s.shape[HEAD_DIM]
    key = q_size + kv_head * n
    value = key + s.shape[KV_HEADS] * n
    rotate_head(s, s.qkv[t, key : key + n], layer, 1, position, own.heads.ctypes.data)
    append(s, own.heads[0], cache_row(s, s.words[mb.KEYS], layer, kv_head, position))
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, position)
    append(s, s.qkv[t, value : value + n], values)


@part
def attend(s: Shared, own: Own, layer: int, head: int, count: int, position: int) -> None:
    """One query head of `count` tokens from `position` on, each over every position up to its
    own. Twin: `attention`.
    """
    n, bf16 = s.shape[HEAD_DIM], s.shape[KV_BF16] != 0
    width = 2 if bf16 else 4
    kv_head = head // (s.shape[HEADS] // s.shape[KV_HEADS])
    for t in range(count):
        query = s.qkv[t, head * n : (head + 1) * n]
        rotate_head(s, query, layer, 0, position + t, own.heads[t].ctypes.data)
    keys = cache_row(s, s.words[mb.KEYS], layer, kv_head, 0)
    values = cache_row(s, s.words[mb.VALUES], layer, kv_head, 0)
    queries, weights, step = own.heads.ctypes.data, own.weights.ctypes.data, own.weights.shape[1]
    longest = position + count
    dot_rows(bf16, count, keys, width * n, longest, n, queries, weights, step)
    for t in range(count):
        own.inverses[t] = soften(own.weights[t], position + t + 1, longest, n)
    out = s.attended[:, head * n : (head + 1) * n]
    out[:count] = np.float32(0.0)
    out_step = s.attended.shape[1]
    weighted_sum(bf16, count, weights, step, values, longest, n, out.ctypes.data, out_step)
    for t in range(count):
        for i in range(n):
            out[t, i] *= own.inverses[t]


@kernel
def soften(weights: np.ndarray, length: int, longest: int, head_dim: int) -> np.float32:
    """Softmax, but for a factor that is returned, of the first `length` products of a query and
    keys; 0 from there up to `longest`.
    """
    whole = (length + GROUP - 1) // GROUP * GROUP
    weights[length:whole] = np.float32(-np.inf)
    at, scale = weights.ctypes.data, np.float32(1.0 / math.sqrt(head_dim))
    total = exp_sum(at, at, whole, scale, scale * largest(at, whole))
    weights[length:longest] = np.float32(0.0)
    return np.float32(1.0) / total
