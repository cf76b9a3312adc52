"""What the CPU kernels work on: shared arrays, each thread's own, and the table of matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CHUNK = 4  # prompt tokens that share one reading of the weights

# Formats of a matrix: rows as they lie in `Weights`, or packed by `kernels.cpu_pack`
F32, BF16, Q8_0, Q4_0, Q4_1 = range(5)

# Columns of `Shared.plan`, one row a matrix: where it is and how it is shared out
ADDRESS, FORMAT, ROWS, COLUMNS, STRIDE, ITEMS = range(6)
PLAN_COLUMNS = 6
# Rows of a layer, in order; after the layers come the head and the embedding
M_QKV, M_OUTPUT, M_GATE, M_UP, M_DOWN = range(5)
LAYER_MATRICES = 5

# What sampling needs of each item of the head: see kernels/cpu_sampling.py
PARTIALS = 5

# `Shared.shape`
LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, KV_BF16 = range(8)


class Shared(NamedTuple):
    """What all threads see. T = CHUNK, H = hidden, D = head_dim, G = vocab in whole groups."""

    words: np.ndarray  # int64: the mailbox
    numbers: np.ndarray  # float64: the mailbox's numbers
    slots: np.ndarray  # int64 [capacity, 3]: the ring
    logprobs: np.ndarray  # float64 [capacity, 3]: the ring's memory
    prompt: np.ndarray  # int64 [positions]
    stop_flags: np.ndarray  # uint8 [vocab]: tokens that end the reply
    seen: np.ndarray  # uint8 [vocab]: tokens of the context
    shape: np.ndarray  # int64
    eps: np.ndarray  # float32 [1]: of RMSNorm
    plan: np.ndarray  # int64 [matrices, PLAN_COLUMNS]
    norms: np.ndarray  # float32 [2 * layers + 1, H]
    qkv_bias: np.ndarray  # float32 [layers or 0, qkv rows]
    qk_norms: np.ndarray  # float32 [layers or 0, 2, D]
    cos: np.ndarray  # float32 [positions, D / 2]
    sin: np.ndarray  # float32 [positions, D / 2]
    x: np.ndarray  # float32 [T, H]: the residual stream
    qkv: np.ndarray  # float32 [T, qkv rows]
    attended: np.ndarray  # float32 [T, q rows]
    activated: np.ndarray  # float32 [T, intermediate]
    logits: np.ndarray  # float32 [G]
    scores: np.ndarray  # float32 [G]: logits after penalty and temperature
    partials: np.ndarray  # float64 [items of the head, sampling.PARTIALS]
    values: np.ndarray  # float32 [G], float32 [G], int64 [G]: scratch of the filters
    sorting: np.ndarray
    ids: np.ndarray


class Own(NamedTuple):
    """What each thread has to itself."""

    normed: np.ndarray  # float32 [T * widest]: an input, normalised
    quants: np.ndarray  # int8 [2 * T * widest]: an input, quantised
    scales: np.ndarray  # float32 [T * widest / 32]
    totals: np.ndarray  # int32 [2 * T * widest / 32]
    tile: np.ndarray  # float32 [2, T, GROUP]: what one group of rows gives
    head: np.ndarray  # float32 [D]: one query or key
    weights: np.ndarray  # float32 [positions + GROUP]: attention's, of one head
    random: np.ndarray  # uint64 [4]
    byte: np.ndarray  # uint8 [1]
