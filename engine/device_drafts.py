"""Speculative decoding of the engines `triton` and `graph`: no host between draft and verdict.

A pass draws every column's token, counts the drafts that were right and looks up the next ones on
the device, so the next pass needs no answer from the host and is launched while this one runs; the
host reads one ring entry a pass. Steered from the host instead, each pass would wait for the entry
to cross the bus, for Python to wake from its poll (about 0.1 ms), look back over the text (up to
half a millisecond for 8,192 tokens) and launch: as long as the pass itself on a small model.

What launching ahead costs: a pass's width is chosen before its draft is known. So a column for
which nothing was drafted counts as one drafted wrong, and where drafts are rare the passes become
narrow again. Widths are powers of two and the widest asked for: a pass of three columns costs
what one of four does.

A draft model takes its steps on the device too, in the same graph as the pass that judges them.
After passes that drafted nothing its cache lacks their tokens, which it is given as a prompt: then
alone the host waits for what is under way.

The kernels are tested interpreted, and on a GPU by tests/engine/test_gpu_speculation.py.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.base import DraftCounts, Token
from engine.device_run import TIMEOUT_S, DeviceRun
from engine.gpu import wait_for_word
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.resident_gpu import PromptEngine
from engine.sampling import SamplingParams
from engine.speculation import Pace, Speculation

if TYPE_CHECKING:
    from engine.triton_engine import TritonEngine
    from kernels.column_ops import ColumnKernels
    from kernels.filters import Filters

_AHEAD = 2  # passes launched but not read: one runs while the host reads the one before
_LOOK_AGAIN = 16  # passes after which a model that drafted badly is asked once more
_WORDS_BEFORE_IDS, _WORDS_BEFORE_LOGPROBS = 8, 16  # of a ring entry, see kernels.draft_kernels


class DraftModel:
    """A smaller model on the same device: its kernels and a cache of its own."""

    def __init__(self, model: Model, kernels: ColumnKernels, threads: int | None) -> None:
        self.kernels = kernels
        self.cache = model.new_cache()
        self._prompts = PromptEngine(model, threads)

    def catch_up(self, context: Sequence[int], params: SamplingParams) -> None:
        """Fill the cache with all of `context` but its last token, which drafting begins from."""
        held = min(self.cache.common_prefix(context), len(context) - 1)
        self.cache.truncate(held)
        if held < len(context) - 1:
            self._prompts.prefill(self.cache, context[held:-1])
        self.kernels.bind(self.cache, context[-1], params)


class Passes:
    """Chooses and launches the passes of one engine; `kernels` and `draft` are its own."""

    def __init__(
        self,
        engine: TritonEngine,
        kernels: ColumnKernels,
        speculation: Speculation,
        draft: DraftModel | None,
    ) -> None:
        self.kernels, self.draft = kernels, draft
        self.widest = speculation.width
        self.widths = [*(w for w in (1, 2, 4) if w < self.widest), self.widest]
        self.pace = Pace(self.widest)
        self._engine = engine

    def width(self, most: int) -> int:
        """How wide the next pass should be where at most `most` tokens are wanted."""
        wanted = self.pace.width(max(0, min(most, self.widest) - 1))
        return next(width for width in self.widths if width >= wanted)

    def launch(self, cache: KVCache, width: int, filters: Filters) -> tuple[int, bool]:
        """Launch a pass of `width`, its draft model's steps first; (its number, whether making
        it ready held it up)."""
        work = functools.partial(self.launch_kernels, width, filters)
        held_up = self._engine.play((width, filters), cache.k, work)
        return self._engine.count_step(), held_up

    def warm_up(self, scratch: KVCache, every: Sequence[Filters]) -> None:
        """Compile every kernel: all filters once with one column and once with several."""
        for filters in every:
            for width in self.widths if filters == every[0] else self.widths[:2]:
                self.kernels.begin(scratch, 0, SamplingParams())
                if self.draft is not None:
                    self.draft.catch_up([0], SamplingParams())
                work = functools.partial(self.launch_kernels, width, filters)
                self._engine.count((width, filters), work)
                self._engine.count_step()

    def launch_kernels(self, width: int, filters: Filters) -> None:
        """The kernels of one pass; what a graph captures."""
        if width > 1 and self.draft is not None:
            self.kernels.draft_with(self.draft.kernels, width, filters)
        self.kernels.verify(width, filters)


class DraftedDeviceRun(DeviceRun):
    """One reply, several tokens a pass where drafts hold; see `engine.base.DecodeRun`.

    Tokens of one pass share its moment: they became known together. The first pass, which feeds
    the prompt's last token, drafts nothing.
    """

    def __init__(
        self,
        engine: TritonEngine,
        passes: Passes,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams,
    ) -> None:
        super().__init__(engine, cache, token_ids, params)
        self.drafts = DraftCounts()
        self._passes = passes
        self._widths: deque[int] = deque()  # of the passes under way
        self._held_up: deque[bool] = deque()  # those whose time says nothing of their width
        self._caught_up = False  # whether the draft model's cache holds what the target's does
        self._unasked = 0  # passes since the draft model was asked
        self._filters = engine.filters(params)
        self._before_ns: int | None = None  # the moment of the pass before
        self._tokens_left = params.max_tokens
        passes.pace.new_reply()

    def _bind(self) -> None:
        self._passes.kernels.begin(self._cache, self._pending, self._params)
        self._caught_up, self._before_ns = False, None

    def _launch_ahead(self, tokens_left: int) -> None:
        """Up to `_AHEAD` passes, as long as each can still bring a token that is wanted."""
        self._tokens_left = tokens_left
        wanted = min(tokens_left, self._cache.free) - len(self._read)
        if any(token.id in self._params.stop_ids for token in self._read):
            return
        while len(self._under_way) < min(_AHEAD, wanted):
            width = self._choose(wanted - len(self._under_way))
            if width > 1 and self._passes.draft is not None and not self._caught_up:
                if self._under_way or self._read:
                    return  # what is under way has to be known first
                context = [*self._cache.token_ids, self._pending]
                self._passes.draft.catch_up(context, self._params)
                self._caught_up, self._before_ns = True, None
            self._caught_up = self._caught_up and width > 1
            self._unasked = 0 if width > 1 else self._unasked + 1
            sequence, held_up = self._passes.launch(self._cache, width, self._filters)
            self._under_way.append(sequence)
            self._widths.append(width)
            self._held_up.append(held_up)

    def _choose(self, most: int) -> int:
        """The next pass's width; now and then a draft model that did not pay is tried again."""
        passes, draft = self._passes, self._passes.draft
        if self.prefill_end_ns is None and not self._under_way:
            return 1
        if draft is None:
            return passes.width(most)
        reach = self._cache.length + 1 + len(self._read) + sum(self._widths)
        if reach + passes.widest >= draft.cache.max_positions:
            return 1
        again = self._unasked >= _LOOK_AGAIN and most > 1
        return max(passes.width(most), passes.widths[1] if again else 1)

    def _next(self) -> Token:
        """The next token; having read a pass, let the device go on before its tokens are used."""
        if not self._read:
            self._read_step(self._under_way.popleft())
            self._launch_ahead(self._tokens_left)
        return self._read.popleft()

    def _read_step(self, sequence: int) -> None:
        ring = self._passes.kernels.passes
        entry = ring[(sequence - 1) % len(ring)]
        wait_for_word(entry[:1], sequence, TIMEOUT_S, f"pass {sequence} of this engine")
        _, time_ns, count, fed, shadow = entry[:5].tolist()
        ids = entry[_WORDS_BEFORE_IDS:].tolist()[:count]
        logprobs = entry.view(torch.float64)[_WORDS_BEFORE_LOGPROBS:].tolist()
        time_ns = self._engine.moment_ns(time_ns)
        for token_id, logprob in zip(ids, logprobs, strict=False):
            self._read.append(Token(token_id, time_ns, logprob))
        width = self._widths.popleft()
        self.launches += self._engine.launches_of((width, self._filters))
        self._account(width, fed, count - 1, shadow, time_ns)

    def _account(self, width: int, fed: int, accepted: int, shadow: int, time_ns: int) -> None:
        """What one pass did; of a last pass, only tokens that the reply has room for count."""
        counts, pace = self.drafts, self._passes.pace
        unread, held_up = len(self._read) - accepted - 1, self._held_up.popleft()
        room = max(0, min(self._tokens_left, self._cache.free) - unread - 1)
        if self.prefill_end_ns is None:  # the prompt's own pass
            self._before_ns = time_ns
            return
        assert counts is not None
        counts.passes += 1
        counts.drafted += min(fed, room)
        counts.accepted += min(accepted, room)
        if self._before_ns is not None and not held_up:
            pace.took(width, time_ns - self._before_ns)
        self._before_ns = time_ns
        if width > 1:  # a column that nothing was drafted for counts as drafted wrong
            pace.saw(accepted, rejected=accepted < width - 1)
        elif self._passes.draft is None:
            pace.saw(int(shadow == 2), rejected=shadow != 2)
