"""What one program does to draft n-grams on the device; `seen_ptr`, `drafts_ptr`, `history_ptr` and
`control_ptr` are described in kernels/draft_kernels.py."""

import triton
import triton.language as tl

MOST = tl.constexpr(8)  # columns of the widest pass
_LOOK_BACK = tl.constexpr(8192)  # as engine.speculation.MAX_CONTEXT
_CHUNK = tl.constexpr(2048)
_PLACE = tl.constexpr(2**24 - 1)  # low bits of a match's key; above them its length


@triton.jit
def look_up(history_ptr, length):
    """Where the draft begins after `length` tokens: engine.speculation.look_up; 0 for nowhere.

    One key holds a match's length and place, so that the longest wins, among equals the latest.
    """
    last1 = tl.load(history_ptr + length - 1)
    last2 = tl.load(history_ptr + length - 2, mask=length >= 2, other=-1)
    last3 = tl.load(history_ptr + length - 3, mask=length >= 3, other=-1)
    last4 = tl.load(history_ptr + length - 4, mask=length >= 4, other=-1)
    best = tl.full([], 0, tl.int32)
    start = tl.maximum(length - _LOOK_BACK + 1, 2)
    while start < length:
        at = start + tl.arange(0, _CHUNK)
        inside = at < length
        one = tl.load(history_ptr + at - 1, mask=inside, other=-2)
        two = tl.load(history_ptr + at - 2, mask=inside, other=-2)
        three = tl.load(history_ptr + at - 3, mask=inside & (at >= 3), other=-2)
        four = tl.load(history_ptr + at - 4, mask=inside & (at >= 4), other=-2)
        third = three == last3
        size = 2 + third.to(tl.int32) + (third & (four == last4)).to(tl.int32)
        key = tl.where((one == last1) & (two == last2), size * (_PLACE + 1) + at, 0)
        best = tl.maximum(best, tl.max(key, axis=0))
        start += _CHUNK
    return best & _PLACE


@triton.jit
def mark_drafts(seen_ptr, drafts, count, COLUMNS: tl.constexpr, N: tl.constexpr):
    """Column c sees the drafts 1..c: int32 [MOST] by column, `count` of them."""
    c, j = tl.arange(0, COLUMNS), tl.arange(0, MOST)
    to = seen_ptr + c[:, None] * N + drafts[None, :]
    ahead = (j[None, :] >= 1) & (j[None, :] <= count) & (j[None, :] <= c[:, None])
    tl.store(to, tl.full([COLUMNS, MOST], 1, tl.int8), mask=ahead)


@triton.jit
def draft_ngram(
    history_ptr, length, drafts_ptr, control_ptr, seen_ptr,
    MOST_DRAFTS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Draft MOST_DRAFTS tokens of what followed the same words before, or none."""
    found = look_up(history_ptr, length)
    count = tl.where(found > 0, MOST_DRAFTS, 0)
    j = tl.arange(0, MOST)
    # A draft that reaches the end goes on with itself, as a loop does.
    at = found + tl.maximum(j - 1, 0) % tl.maximum(length - found, 1)
    drafts = tl.load(history_ptr + at, mask=j <= count, other=0)
    tl.store(drafts_ptr + j, drafts)
    tl.store(control_ptr + 3, count.to(tl.int64))
    mark_drafts(seen_ptr, drafts, count, COLUMNS, N)
