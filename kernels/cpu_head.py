"""The end of a decode step: LM head, sampling, and publishing the tokens."""

from __future__ import annotations

import numpy as np

from engine import mailbox as mb
from kernels import cpu_sampling as sampling
from kernels.cpu_atomics import load_acquire, now_ns, store_release
from kernels.cpu_exchange import complete, next_item, word
from kernels.cpu_filters import choose_filtered
from kernels.cpu_host import part
from kernels.cpu_layers import normalise
from kernels.cpu_matrix import dot_group, prepare, rows_of, share_of
from kernels.cpu_notify import notify
from kernels.cpu_speculation import pace_saw, pace_took
from kernels.cpu_state import BEGAN_NS, DRAFTED, ITEMS, VOCAB, Own, Shared
from kernels.cpu_vector import GROUP, exp_sum, first_equal, largest
from kernels.stages import HEAD, SAMPLE


@part
def head_stage(s: Shared, own: Own, sequence: int, count: int, known: int, position: int) -> int:
    """Final RMSNorm, and logits after the last of the `known` tokens of a pass of `count` and
    after each of the draft behind it; and each item's part in sampling.
    """
    matrix, sampled = s.plan[-2], count - known + 1
    ready, source = False, 0
    while True:
        item = next_item(s.words, sequence, matrix[ITEMS], HEAD, 0)
        if item < 0:
            return sequence + 1
        if not ready:
            normalise(s.x[known - 1 :], s.norms[-1], s.eps[0], sampled, own.normed)
            source = prepare(own.normed.ctypes.data, matrix, sampled, own.quantised.ctypes.data)
            ready = True
        first, last = share_of(matrix, item)
        for group in range(first, last):
            dot_group(source, matrix, group, sampled, own.tile.ctypes.data)
            start, rows = rows_of(matrix, group)
            for t in range(sampled):
                for r in range(GROUP):
                    value = own.tile[0, t, r] if r < rows else np.float32(-np.inf)
                    s.logits[t, start + r] = value
        for t in range(sampled):
            summarise(s, own, t, item, GROUP * first, GROUP * last, position + known + t)
        complete(s.words, sequence, matrix[ITEMS])


@part
def summarise(
    s: Shared, own: Own, column: int, item: int, first: int, last: int, position: int
) -> None:
    """What sampling needs to know of tokens first .. last - 1; see `sampling.PARTIALS`."""
    logits, scores, part = s.logits[column], s.scores[column], s.partials[column, item]
    logits_at, scores_at = logits[first:].ctypes.data, scores[first:].ctypes.data
    size, one = last - first, np.float32(1.0)
    top = largest(logits_at, size)
    part[sampling.LOGIT_MAX] = top
    part[sampling.LOGIT_SUM] = exp_sum(logits_at, scores_at, size, one, top)
    temperature = np.float32(s.numbers[mb.TEMPERATURE])
    penalty = np.float32(s.numbers[mb.REPETITION_PENALTY])
    if temperature == 0 and penalty == one:
        part[sampling.BEST] = top
        part[sampling.BEST_ID] = first + first_equal(logits_at, size, top)
        return
    last = min(last, s.shape[VOCAB])
    sampling.make_scores(logits, scores, s.seen, column, penalty, temperature, first, last)
    for token in range(last, first + size):
        scores[token] = np.float32(-np.inf)
    best = largest(scores_at, size)
    part[sampling.BEST] = best
    if temperature == 0:
        part[sampling.BEST_ID] = first + first_equal(scores_at, size, best)
    elif _filtered(s):
        values_at = s.values[first:].ctypes.data
        part[sampling.SCORE_SUM] = exp_sum(scores_at, values_at, size, one, best)
    else:
        best, token = sampling.noisiest(scores, s.words[mb.SEED], position, first, last, own.random)
        part[sampling.BEST], part[sampling.BEST_ID] = best, token


@part
def sample_stage(s: Shared, own: Own, sequence: int, count: int, known: int, position: int) -> int:
    """Choose the tokens that follow, up to the first that the draft has wrong, publish them, and
    settle whether the reply goes on. Tokens of one pass share its moment.
    """
    while next_item(s.words, sequence, 1, SAMPLE, 0) >= 0:
        w, first, drafted = s.words, position + known, count - known
        published, kept, guessed = w[mb.PUBLISHED], 0, False
        if published == 0:
            w[mb.PREFILL_END_NS] = now_ns(w[mb.CLOCK])
        moment = np.int64(0)
        while True:
            place = first + kept
            token, logprob = choose(s, own, kept, place)
            guess = s.context[place] == token
            right = kept < drafted and guess
            if kept == 0:
                moment, guessed = now_ns(w[mb.CLOCK]), guess
            if not right:
                unmark_draft(s, place, first + drafted)
            put(s, published + kept, token, logprob, moment, place)
            kept += 1
            reason = end_after(s, token, published + kept, place, right)
            if reason != mb.RUNNING or not right:
                break
        if published > 0 and w[mb.WIDTH] > 1:
            account(s, drafted, kept, not right and kept <= drafted, guessed)
        if reason != mb.RUNNING:
            finish(s, sequence, reason, published + kept)
        store_release(word(w, mb.FED), first - w[mb.START] + kept - 1)
        store_release(word(w, mb.PUBLISHED), published + kept)
        notify(w)
        complete(w, sequence, 1)
    return sequence + 1


@part
def choose(s: Shared, own: Own, column: int, position: int) -> tuple[int, float]:
    """(token, log-probability) that a column's logits give for `position`."""
    w, partials, items = s.words, s.partials[column], s.plan[-2, ITEMS]
    if s.numbers[mb.TEMPERATURE] > 0 and _filtered(s):
        token = choose_filtered(
            s.scores[column], s.shape[VOCAB], partials, items, w[mb.SEED], position, w[mb.TOP_K],
            s.numbers[mb.TOP_P], s.numbers[mb.MIN_P], s.values, s.sorting, s.ids, own.random,
        )  # fmt: skip
    else:
        token = sampling.combine_best(partials, items)
    return token, s.logits[column, token] - sampling.combine_logsumexp(partials, items)


@part
def put(s: Shared, count: int, token: int, logprob: float, moment: int, position: int) -> None:
    """Token number `count`, for `position`, into the ring and the context."""
    s.slots[count, mb.SLOT_ID] = token
    s.slots[count, mb.SLOT_TIME_NS] = moment
    s.logprobs[count, mb.SLOT_LOGPROB] = logprob
    s.context[position] = token
    s.seen[token] = 1


@part
def end_after(s: Shared, token: int, count: int, position: int, more: bool) -> int:
    """Why the reply ends with `token`, its `count`-th, at `position`; RUNNING if it does not.

    `more`: another token of the same pass is certain, so that the stop word is looked at here.
    """
    w = s.words
    if s.stop_flags[token]:
        return mb.EOS
    if count >= w[mb.MAX_TOKENS]:
        return mb.LENGTH
    if position >= w[mb.CAPACITY]:
        return mb.CONTEXT
    if w[mb.DRAFT_TOKENS] > 0 and not more:  # the host drafts: it takes over from here
        return mb.LENGTH
    if more and load_acquire(word(w, mb.STOP)) == w[mb.DOORBELL]:
        return mb.STOPPED
    return mb.RUNNING


@part
def account(s: Shared, drafted: int, kept: int, rejected: bool, guessed: bool) -> None:
    """Count a pass and tell the pace; as `engine.drafted_run.DraftedRun` does.

    `guessed`: the first token was as drafted, whether that had been fed or not.
    """
    w, now = s.words, s.under_way
    w[mb.PASSES] += 1
    w[mb.DRAFTED] += drafted
    w[mb.ACCEPTED] += kept - 1
    pace_took(s.pace, drafted + 1, float(now_ns(w[mb.CLOCK]) - now[BEGAN_NS]))
    if drafted > 0:
        pace_saw(s.pace, kept - 1, rejected)
    elif now[DRAFTED] > 0:
        pace_saw(s.pace, 1 if guessed else 0, not guessed)


@part
def mark_draft(s: Shared, first: int, last: int) -> None:
    """Mark the draft at positions first .. last - 1 as seen by the columns that it is fed to."""
    for position in range(first, last):
        token = s.context[position]
        if s.seen[token] == 0:
            s.seen[token] = 2 + position - first  # 1 and the column: the first draft's is 1


@part
def unmark_draft(s: Shared, first: int, last: int) -> None:
    """Forget the marks of what is left of a draft at positions first .. last - 1: it was wrong."""
    for position in range(first, last):
        token = s.context[position]
        if s.seen[token] > 1:
            s.seen[token] = 0


@part
def finish(s: Shared, sequence: int, reason: int, tokens: int) -> None:
    """End the run of `tokens` tokens: every thread leaves after stage number `sequence`."""
    store_release(word(s.words, mb.END), sequence)
    store_release(word(s.words, mb.FINISH), tokens << 8 | reason)  # as mailbox.pack_finish


@part
def _filtered(s: Shared) -> bool:
    return s.words[mb.TOP_K] > 0 or s.numbers[mb.TOP_P] < 1 or s.numbers[mb.MIN_P] > 0
