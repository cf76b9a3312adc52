"""Where the resident CPU threads spend a token, seen from outside: one word says it all.

STATE holds the stage that is open and its next item, DONE how many items are finished
(kernels/cpu_exchange.py). Looking at both some thousand times gives each stage's share of the time
and how many threads were waiting in it, without one instruction added to the kernels.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine import mailbox as mb
from engine.anatomy import StageProfile, StageTime
from engine.errors import UnpausedError
from kernels import cpu_state as state
from kernels import stages

if TYPE_CHECKING:
    from engine.base import Token
    from engine.cpu_threads import ResidentThreads

_LOOK_EVERY_S = 100e-6
METHOD = (
    "the exchange's words, looked at every 0.1 to 0.2 ms from another thread, whose looking takes "
    "a core for some 2 % of the time"
)


@dataclass(frozen=True)
class Step:
    """One decode step as a sequence of (stage, items), in order; it repeats token by token."""

    order: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, shared: state.Shared) -> Step:
        """The step of one token, as kernels/cpu.py walks through it."""
        shape, plan = shared.shape, shared.plan
        heads, kv_heads = int(shape[state.HEADS]), int(shape[state.KV_HEADS])
        order = [(stages.EMBED, 1)]
        for layer in range(int(shape[state.LAYERS])):
            items = plan[layer * state.LAYER_MATRICES :, state.ITEMS]
            order += [
                (stages.QKV, int(items[state.M_QKV])),
                (stages.ROPE, kv_heads),
                (stages.ATTENTION, heads),
                (stages.OUTPUT, int(items[state.M_OUTPUT])),
                (stages.GATE_UP, int(items[state.M_GATE])),
                (stages.DOWN, int(items[state.M_DOWN])),
            ]
        return cls([*order, (stages.HEAD, int(plan[-2, state.ITEMS])), (stages.SAMPLE, 1)])

    def waiting(self, sequence: int, item: int, done: int, threads: int) -> tuple[int, int]:
        """(stage, threads that wait in it) when `item` items are handed out and `done` finished.

        While there are items left nobody waits. `sequence` counts stages from 1.
        """
        stage, items = self.order[(sequence - 1) % len(self.order)]
        if item < items:
            return stage, 0
        return stage, threads - min(threads, max(items - done, 0))


class Watcher:
    """Looks at the words until told to stop; a thread of its own."""

    def __init__(self, resident: ResidentThreads, item_bits: int) -> None:
        self._words, self._threads = resident.words, resident.count
        self._step, self._bits = Step.of(resident.shared), item_bits
        self._stop = threading.Event()
        self.looks = Counter[int]()
        self.waits = Counter[int]()  # threads found waiting, summed over looks
        self._thread = threading.Thread(target=self._watch, name="stages", daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def _watch(self) -> None:
        words, mask = self._words, (1 << self._bits) - 1
        while not self._stop.is_set():
            time.sleep(_LOOK_EVERY_S)
            before, done, after = int(words[mb.STATE]), int(words[mb.DONE]), int(words[mb.STATE])
            running = words[mb.FINISH] == mb.RUNNING and words[mb.PUBLISHED] > 0
            if not running or before >> self._bits != after >> self._bits:
                continue  # a stage that ended between two reads would count with wrong items
            stage, waiting = self._step.waiting(
                before >> self._bits, before & mask, done, self._threads
            )
            self.looks[stage] += 1
            self.waits[stage] += waiting

    def profile(self, tokens: Sequence[Token]) -> StageProfile:
        """What was seen while `tokens` were decoded, from the first of them on.

        Raises `UnpausedError` when the reply was too short to see anything.
        """
        times = np.array([token.time_ns for token in tokens], dtype=np.int64)
        token_us = float(np.diff(times).mean()) / 1e3
        looks = sum(self.looks.values())
        if not looks:
            raise UnpausedError("the reply was over before a stage was seen: ask for more tokens")
        found = []
        for stage, count in sorted(self.looks.items()):
            whole_us = token_us * count / looks
            wait_us = whole_us * self.waits[stage] / (count * self._threads)
            found.append(StageTime(stages.STAGES[stage], whole_us - wait_us, wait_us))
        return StageProfile(len(tokens) - 1, token_us, found, f"{METHOD}; {looks} looks")
