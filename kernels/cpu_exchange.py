"""The exchange between stages: threads share out a stage's items and wait for the last of them.

A stage is a number in the run's sequence and a count of items. One word, STATE, holds both the
stage that is open and its next item, so a thread takes an item and proves that the stage is still
open in one compare-and-swap. Whoever completes the last item opens the next stage. Nobody waits
for a thread that holds no item: one whose core was taken away delays the rest by at most the item
it was working on, and afterwards skips the stages that went by without it.

Every thread walks through the same stages in the same order, so the code that calls this reads as
one decode step. Which thread computes an item changes no result.
"""

from __future__ import annotations

import numpy as np

from engine import mailbox as mb
from kernels.cpu_atomics import (
    compare_swap,
    fetch_add,
    load_acquire,
    now_ns,
    pause,
    sched_yield,
    store_release,
    usleep,
)
from kernels.cpu_host import kernel
from kernels.cpu_notify import notify

Words = np.ndarray  # engine.mailbox.Mailbox.words
ITEM_BITS = 20
ABORTED = 1 << 62  # as STATE: beyond every stage, so every thread skips to the end
_SPINS_PER_LOOK = 64  # at the clock
_YIELD_AFTER_NS = 50_000  # a stage's items take some 10 us: somebody's core has been taken
_SLEEP_AFTER_NS = 200_000
_SLEEP_US = 50


@kernel
def word(words: Words, index: int) -> int:
    """The address of word `index`."""
    return words.ctypes.data + 8 * index


@kernel
def next_item(words: Words, sequence: int, items: int, stage: int, layer: int) -> int:
    """An item of stage number `sequence` to work on, or -1 when the stage is over.

    Waits for the items that others hold. `stage` and `layer` name the place should that fail.
    """
    state = word(words, mb.STATE)
    while True:
        seen = load_acquire(state)
        if seen >> ITEM_BITS != sequence:
            return -1
        item = seen & ((1 << ITEM_BITS) - 1)
        if item >= items:
            _wait(words, sequence, stage, layer)
            return -1
        if compare_swap(state, seen, seen + 1):
            return item


@kernel
def complete(words: Words, sequence: int, items: int) -> None:
    """Hand in an item; the last one opens the next stage."""
    if fetch_add(word(words, mb.DONE), 1) + 1 == items:
        store_release(word(words, mb.DONE), 0)
        closed = (sequence << ITEM_BITS) + items
        compare_swap(word(words, mb.STATE), closed, (sequence + 1) << ITEM_BITS)


@kernel
def ended(words: Words, sequence: int) -> bool:
    """Whether the run is over for a thread that has passed every stage before `sequence`."""
    end = load_acquire(word(words, mb.END))
    return (end != 0 and sequence > end) or load_acquire(word(words, mb.STATE)) == ABORTED


@kernel
def _wait(words: Words, sequence: int, stage: int, layer: int) -> None:
    state = word(words, mb.STATE)
    spins, start = 0, 0
    while load_acquire(state) >> ITEM_BITS == sequence:
        pause()
        spins += 1
        if spins % _SPINS_PER_LOOK:
            continue
        now = now_ns(words[mb.CLOCK])
        if start == 0:
            start = now
        waited = now - start
        if waited > words[mb.TIMEOUT_NS]:
            _fault(words, stage, layer)
        elif waited > _SLEEP_AFTER_NS:
            usleep(_SLEEP_US)
        elif waited > _YIELD_AFTER_NS:
            sched_yield()


@kernel
def _fault(words: Words, stage: int, layer: int) -> None:
    """End the run everywhere and say where it hung. The first thread to get here speaks."""
    token = load_acquire(word(words, mb.PUBLISHED))
    place = ((token << 16 | layer) << 8) | (stage + 1)  # as engine.mailbox.pack_fault
    if compare_swap(word(words, mb.FAULT), 0, place):
        store_release(word(words, mb.FINISH), token << 8 | mb.FAULTED)  # as mailbox.pack_finish
        store_release(word(words, mb.STATE), ABORTED)
        notify(words)
