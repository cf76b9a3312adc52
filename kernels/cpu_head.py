"""The end of a decode step: LM head, sampling, and publishing the token."""

from __future__ import annotations

import numpy as np
from numba import njit

from engine import mailbox as mb
from kernels import cpu_sampling as sampling
from kernels.cpu_atomics import now_ns, store_release
from kernels.cpu_exchange import complete, next_item, word
from kernels.cpu_layers import dot_group, normalise, prepare, rows_of, share_of
from kernels.cpu_notify import notify
from kernels.cpu_state import ITEMS, VOCAB, Own, Shared
from kernels.cpu_vector import GROUP, exp_sum, largest
from kernels.stages import HEAD, SAMPLE


@njit(error_model="numpy")
def head_stage(s: Shared, own: Own, sequence: int, count: int, position: int) -> int:
    """Final RMSNorm and logits of the last token, and each item's part in sampling."""
    matrix = s.plan[-2]
    ready, source = False, 0
    while True:
        item = next_item(s.words, sequence, matrix[ITEMS], HEAD, 0)
        if item < 0:
            return sequence + 1
        if not ready:
            normalise(s.x[count - 1 :], s.norms[-1], s.eps[0], 1, own.normed)
            source = prepare(own, own.normed.ctypes.data, matrix, 1)
            ready = True
        first, last = share_of(matrix, item)
        for group in range(first, last):
            dot_group(own, source, matrix, group, 1, own.tile[0])
            start, rows = rows_of(matrix, group)
            for r in range(GROUP):
                s.logits[start + r] = own.tile[0, 0, r] if r < rows else np.float32(-np.inf)
        summarise(s, own, item, GROUP * first, GROUP * last, position)
        complete(s.words, sequence, matrix[ITEMS])


@njit(error_model="numpy")
def summarise(s: Shared, own: Own, item: int, first: int, last: int, position: int) -> None:
    """What sampling needs to know of tokens first .. last - 1; see `sampling.PARTIALS`."""
    logits, scores = s.logits[first:].ctypes.data, s.scores[first:].ctypes.data
    size, one, part = last - first, np.float32(1.0), s.partials[item]
    top = largest(logits, size)
    part[sampling.LOGIT_MAX] = top
    part[sampling.LOGIT_SUM] = exp_sum(logits, scores, size, one, top)
    temperature = np.float32(s.numbers[mb.TEMPERATURE])
    penalty = np.float32(s.numbers[mb.REPETITION_PENALTY])
    if temperature == 0 and penalty == one:
        part[sampling.BEST] = top
        part[sampling.BEST_ID] = sampling.first_equal(s.logits, top, first, last)
        return
    last = min(last, s.shape[VOCAB])
    sampling.make_scores(s.logits, s.scores, s.seen, penalty, temperature, first, last)
    for token in range(last, first + size):
        s.scores[token] = np.float32(-np.inf)
    best = largest(scores, size)
    part[sampling.BEST] = best
    if temperature == 0:
        part[sampling.BEST_ID] = sampling.first_equal(s.scores, best, first, last)
    elif _filtered(s):
        part[sampling.SCORE_SUM] = exp_sum(scores, s.values[first:].ctypes.data, size, one, best)
    else:
        best, token = sampling.noisiest(
            s.scores, s.words[mb.SEED], position, first, last, own.random
        )
        part[sampling.BEST], part[sampling.BEST_ID] = best, token


@njit(error_model="numpy")
def sample_stage(s: Shared, own: Own, sequence: int, position: int, fed: int) -> int:
    """Choose the token for `position`, publish it, and settle whether the reply goes on."""
    while next_item(s.words, sequence, 1, SAMPLE, 0) >= 0:
        w, items = s.words, s.plan[-2, ITEMS]
        count = w[mb.PUBLISHED]
        if count == 0:
            w[mb.PREFILL_END_NS] = now_ns(w[mb.CLOCK])
        if s.numbers[mb.TEMPERATURE] > 0 and _filtered(s):
            token = sampling.choose_filtered(
                s.scores, s.shape[VOCAB], s.partials, items, w[mb.SEED], position, w[mb.TOP_K],
                s.numbers[mb.TOP_P], s.numbers[mb.MIN_P], s.values, s.sorting, s.ids, own.random,
            )  # fmt: skip
        else:
            token = sampling.combine_best(s.partials, items)
        logprob = s.logits[token] - sampling.combine_logsumexp(s.partials, items)
        publish(s, sequence, token, logprob, count, position, fed)
        complete(w, sequence, 1)
    return sequence + 1


@njit(error_model="numpy")
def publish(
    s: Shared, sequence: int, token: int, logprob: float, count: int, position: int, fed: int
) -> None:
    """Put token number `count` into the ring; if it is the last one, say so first."""
    w = s.words
    s.slots[count, mb.SLOT_ID] = token
    s.slots[count, mb.SLOT_TIME_NS] = now_ns(w[mb.CLOCK])
    s.logprobs[count, mb.SLOT_LOGPROB] = logprob
    w[mb.NEXT_TOKEN] = token
    s.seen[token] = 1
    if s.stop_flags[token]:
        finish(s, sequence, mb.EOS, count + 1)
    elif count + 1 >= w[mb.MAX_TOKENS]:
        finish(s, sequence, mb.LENGTH, count + 1)
    elif position >= w[mb.CAPACITY]:
        finish(s, sequence, mb.CONTEXT, count + 1)
    store_release(word(w, mb.FED), fed)
    store_release(word(w, mb.PUBLISHED), count + 1)
    notify(w)


@njit(error_model="numpy")
def finish(s: Shared, sequence: int, reason: int, tokens: int) -> None:
    """End the run of `tokens` tokens: every thread leaves after stage number `sequence`."""
    store_release(word(s.words, mb.END), sequence)
    store_release(word(s.words, mb.FINISH), tokens << 8 | reason)  # as mailbox.pack_finish


@njit(error_model="numpy")
def _filtered(s: Shared) -> bool:
    return s.words[mb.TOP_K] > 0 or s.numbers[mb.TOP_P] < 1 or s.numbers[mb.MIN_P] > 0
