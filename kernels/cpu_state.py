"""What the CPU kernels work on: shared arrays, each thread's own, and the table of matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CHUNK = 8  # tokens that share one reading of the weights: of a prompt, or known and drafted

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

# `Shared.under_way`: of the pass in progress, written by one thread before its first layer.
# AT: position of its first token. DRAFTED: tokens at hand to draft with, fed or not.
TOKENS, AT, DRAFTED, BEGAN_NS = range(4)


class Shared(NamedTuple):
    """What all threads see. T = CHUNK, H = hidden, D = head_dim, G = vocab in whole groups."""

    words: np.ndarray  # int64: the mailbox
    numbers: np.ndarray  # float64: the mailbox's numbers
    slots: np.ndarray  # int64 [capacity, 3]: the ring
    logprobs: np.ndarray  # float64 [capacity, 3]: the ring's memory
    context: np.ndarray  # int64 [positions + 1]: tokens by position; drafts behind the known ones
    under_way: np.ndarray  # int64 [4]: see above
    pace: np.ndarray  # float64: see kernels/cpu_speculation.py
    stop_flags: np.ndarray  # uint8 [vocab]: tokens that end the reply
    seen: np.ndarray  # uint8 [vocab]: 1: in the context, 1 + t: in the draft that column t feeds
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
    logits: np.ndarray  # float32 [T, G]
    scores: np.ndarray  # float32 [T, G]: logits after penalty and temperature
    partials: np.ndarray  # float64 [T, items of the head, sampling.PARTIALS]
    values: np.ndarray  # float32 [G], float32 [G], int64 [G]: scratch of the filters
    sorting: np.ndarray
    ids: np.ndarray


class Own(NamedTuple):
    """What each thread has to itself."""

    normed: np.ndarray  # float32 [T * widest]: an input, normalised
    quantised: np.ndarray  # uint8 [T * widest * 5 / 2]: an input, see cpu_matrix.prepare
    tile: np.ndarray  # float32 [2, T, GROUP]: what one group of rows gives
    heads: np.ndarray  # float32 [T, D]: queries, or a key
    weights: np.ndarray  # float32 [T, positions + GROUP]: attention's, of one head
    inverses: np.ndarray  # float32 [T]: what is still to be multiplied with
    random: np.ndarray  # uint64 [4]
    byte: np.ndarray  # uint8 [1]
