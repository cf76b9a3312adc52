"""The kernels around a pass of several tokens: feed the drafts, judge them, draft the next.

What lies on the device between passes, so that the host need not answer before the next begins:
`control_ptr` (int64) the token to be fed, its position, passes done, and how many drafts there are;
`drafts_ptr` (int32) the drafts, the one of column c at index c; `history_ptr` (int32) every token
by position; `seen_ptr` (int8 [COLUMNS, N]) what a repetition penalty applies to in each column:
row 0 the context alone, row c the drafts 1..c as well.

ring entry (int64 [RING, ENTRY]), pinned: 0 the pass's number, written last; 1 its time in ns;
2 tokens; 3 drafts fed; 4 for a pass that fed none: 0 nothing was drafted, 1 the first draft would
have been wrong, 2 right; from 8 on the tokens, from 16 on their log-probabilities (float64's bits).
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernels.dependent import let_next_start, wait_for_previous
from kernels.draft_stages import MOST, draft_ngram, mark_drafts
from kernels.draw_stages import embed_token, scores_from
from kernels.sampling import best_of, store_to_host

ENTRY = tl.constexpr(24)
IDS, LOGPROBS = tl.constexpr(8), tl.constexpr(16)
_NONE = tl.constexpr(-3.0e38)
_NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def begin_kernel(
    embed_ptr, control_ptr, x_ptr, seen_ptr, history_ptr, drafts_ptr,
    N: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr,
    MOST_DRAFTS: tl.constexpr, NGRAM: tl.constexpr,
):  # fmt: skip
    """The start of a reply, whose tokens `history_ptr` holds: what a pass's end does otherwise."""
    token = tl.load(control_ptr).to(tl.int32)
    embed_token(embed_ptr, token, x_ptr, seen_ptr, K, BLOCK_K)
    c = tl.arange(0, COLUMNS)
    tl.store(seen_ptr + c * N + token, tl.full([COLUMNS], 1, tl.int8))
    tl.store(control_ptr + 3, tl.full([], 0, tl.int64))
    if NGRAM:
        tl.debug_barrier()
        length = (tl.load(control_ptr + 1) + 1).to(tl.int32)
        draft_ngram(history_ptr, length, drafts_ptr, control_ptr, seen_ptr, MOST_DRAFTS, COLUMNS, N)


@triton.jit
def embed_drafts_kernel(
    embed_ptr, drafts_ptr, x_ptr,
    K: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The inputs of columns 1, 2, ..., a program each; column 0 has its own since the last pass."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    column = tl.program_id(0) + 1
    token = tl.load(drafts_ptr + column).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    row = tl.load(embed_ptr + token * K + k, mask=k < K, other=0.0)
    tl.store(x_ptr + column * K + k, row.to(tl.float32), mask=k < K)


@triton.jit
def score_kernel(
    logits_ptr, seen_ptr, control_ptr, settings_ptr, reals_ptr,
    best_ptr, best_id_ptr, top_ptr, exp_max_ptr, exp_sum_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Of a block of one column's logits: its part of the draw and of the softmax.

    What kernels.step_stages.head_segment does of its own rows. Grid: (BLOCKS, columns).
    """
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    column = tl.program_id(1)
    logits_ptr += column * N
    ids, present, scores = scores_from(
        tl.program_id(0) * BLOCK, logits_ptr, seen_ptr + column * N, tl.load(reals_ptr + 3),
        tl.load(reals_ptr), N, BLOCK,
    )  # fmt: skip
    scores = tl.where(present, scores, _NONE)
    position = (tl.load(control_ptr + 1) + 1).to(tl.int32) + column
    value, winner = best_of(
        scores, ids, present, tl.load(settings_ptr + 3), position, tl.load(reals_ptr)
    )
    logits = tl.load(logits_ptr + ids, mask=present, other=_NONE)
    exp_max = tl.max(logits, axis=0)
    to = column * BLOCKS + tl.program_id(0)
    tl.store(best_ptr + to, value)
    tl.store(best_id_ptr + to, winner)
    tl.store(top_ptr + to, tl.max(scores, axis=0))
    tl.store(exp_max_ptr + to, exp_max)
    exp_sum = tl.sum(tl.where(present, tl.exp(logits - exp_max), 0.0), axis=0)
    tl.store(exp_sum_ptr + to, exp_sum)


@triton.jit
def settle_kernel(
    logits_ptr, best_ptr, best_id_ptr, exp_max_ptr, exp_sum_ptr, control_ptr, ring_ptr,
    embed_ptr, x_ptr, seen_ptr, history_ptr, drafts_ptr, most,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, BLOCK_P: tl.constexpr,
    EXPS: tl.constexpr, BLOCK_E: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BLOCK_K: tl.constexpr, RING: tl.constexpr, LIMIT: tl.constexpr,
    MOST_DRAFTS: tl.constexpr, NGRAM: tl.constexpr, DEVICE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: draw every column's token, keep what the drafts had right and the one after.

    WIDTH: columns of this pass, of which `most` + 1 count. COLUMNS: those of the widest pass.
    Drafts right up to column a give a + 1 tokens; their keys and values are in the cache, and
    those of the others will be overwritten. LIMIT: positions that `history_ptr` has.
    """
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    c, p, e = tl.arange(0, WIDTH), tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_E)
    part = c[:, None] * PARTS + p[None, :]
    value = tl.load(best_ptr + part, mask=(p < PARTS)[None, :], other=_NONE)
    ids = tl.load(best_id_ptr + part, mask=(p < PARTS)[None, :], other=_NO_ID)
    exp = c[:, None] * EXPS + e[None, :]
    exp_max = tl.load(exp_max_ptr + exp, mask=(e < EXPS)[None, :], other=_NONE)
    exp_sum = tl.load(exp_sum_ptr + exp, mask=(e < EXPS)[None, :], other=0.0)
    position, step = tl.load(control_ptr + 1), tl.load(control_ptr + 2)
    drafted = tl.load(control_ptr + 3).to(tl.int32)
    expected = tl.load(drafts_ptr + c + 1)
    old = tl.load(drafts_ptr + tl.arange(0, MOST))
    fed = tl.minimum(drafted, most)

    winners = tl.where(value == tl.max(value, axis=1)[:, None], ids, _NO_ID)
    tokens = tl.minimum(tl.min(winners, axis=1), N - 1)  # there is no winner among NaN
    top = tl.max(exp_max, axis=1)
    log_total = top + tl.log(tl.sum(exp_sum * tl.exp(exp_max - top[:, None]), axis=1))
    logprobs = tl.load(logits_ptr + c * N + tokens) - log_total
    right = (c < fed) & (tokens == expected)
    accepted = tl.min(tl.where(right, WIDTH, c), axis=0)
    token = tl.sum(tl.where(c == accepted, tokens, 0), axis=0)
    first_right = tl.sum(tl.where((c == 0) & (tokens == expected), 1, 0), axis=0)
    shadow = tl.where((fed == 0) & (drafted > 0), 1 + first_right, 0)

    entry_ptr = ring_ptr + step % RING * ENTRY
    tl.store(entry_ptr + IDS + c, tokens.to(tl.int64))
    tl.store(entry_ptr + LOGPROBS + c, logprobs.to(tl.float64).to(tl.int64, bitcast=True))
    tl.store(entry_ptr + 2, (accepted + 1).to(tl.int64))
    tl.store(entry_ptr + 3, fed.to(tl.int64))
    tl.store(entry_ptr + 4, shadow.to(tl.int64))
    tl.store(entry_ptr + 1, cuda.globaltimer() if DEVICE else step + 1)
    # The drafts that columns saw ahead leave no trace where they were wrong: row 0 has the truth.
    rows, j = tl.arange(0, COLUMNS), tl.arange(0, MOST)
    ahead = (rows[:, None] >= 1) & ((j >= 1) & (j <= drafted))[None, :]
    truth = tl.load(seen_ptr + old, mask=(j >= 1) & (j <= drafted), other=0)
    tl.debug_barrier()  # the loads above before the stores below, by all threads
    tl.store(
        seen_ptr + rows[:, None] * N + old[None, :],
        tl.broadcast_to(truth[None, :], [COLUMNS, MOST]), mask=ahead,
    )  # fmt: skip
    tl.debug_barrier()
    if DEVICE:
        store_to_host(entry_ptr, step + 1)
    else:
        tl.store(entry_ptr, step + 1)
    kept = c <= accepted
    tl.store(
        seen_ptr + rows[:, None] * N + tokens[None, :],
        tl.full([COLUMNS, WIDTH], 1, tl.int8), mask=(rows >= 0)[:, None] & kept[None, :],
    )  # fmt: skip
    place = position + 1 + c
    tl.store(history_ptr + place, tokens, mask=kept & (place < LIMIT))
    tl.store(control_ptr, token.to(tl.int64))
    tl.store(control_ptr + 1, position + accepted + 1)
    tl.store(control_ptr + 2, step + 1)
    tl.store(control_ptr + 3, tl.full([], 0, tl.int64))
    embed_token(embed_ptr, token, x_ptr, seen_ptr, K, BLOCK_K)
    if NGRAM:
        tl.debug_barrier()
        length = tl.minimum(position + accepted + 2, LIMIT).to(tl.int32)
        draft_ngram(history_ptr, length, drafts_ptr, control_ptr, seen_ptr, MOST_DRAFTS, COLUMNS, N)


@triton.jit
def hand_kernel(
    control_ptr, seen_ptr, draft_control_ptr, draft_seen_ptr, draft_embed_ptr, draft_x_ptr,
    N: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Let the draft model go on from the target's token. Grid: blocks of the vocabulary."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(draft_seen_ptr + ids, tl.load(seen_ptr + ids, mask=ids < N, other=0), mask=ids < N)
    if tl.program_id(0) == 0:
        token = tl.load(control_ptr)
        tl.store(draft_control_ptr, token)
        tl.store(draft_control_ptr + 1, tl.load(control_ptr + 1))
        k = tl.arange(0, BLOCK_K)
        row = tl.load(draft_embed_ptr + token * K + k, mask=k < K, other=0.0)
        tl.store(draft_x_ptr + k, row.to(tl.float32), mask=k < K)


@triton.jit
def adopt_kernel(
    control_ptr, seen_ptr, drafts_ptr, draft_history_ptr, count,
    COLUMNS: tl.constexpr, N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The `count` tokens that the draft model has drawn become the target's drafts."""
    let_next_start(PDL == 1)
    wait_for_previous(PDL)
    let_next_start(PDL == 2)
    j = tl.arange(0, MOST)
    position = tl.load(control_ptr + 1)
    drafts = tl.load(draft_history_ptr + position + j, mask=(j >= 1) & (j <= count), other=0)
    tl.store(drafts_ptr + j, drafts)
    tl.store(control_ptr + 3, tl.full([], 0, tl.int64) + count)
    mark_drafts(seen_ptr, drafts, count, COLUMNS, N)
