"""Two engines of one model take turns in a reply: one drafts, where drafts hold, one does not.

What verifies eight tokens at once is slower at a single one: more code, less room for the ring of
weights, a look-up in every pass. Where drafts are rare that is all that is left of them. So a reply
begins on the engine without drafts while the host, which reads the tokens anyway, watches whether
what a look-up would have drafted came true; where it does, the other engine goes on from the last
token, and back.

Who decodes which token is decided by the text alone and not by a clock, so the same seed gives the
same text again: the two engines round differently, and where two tokens are nearly tied may choose
differently.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.base import DecodeRun, DraftCounts, FinishReason, Token
from engine.kv_cache import KVCache
from engine.sampling import SamplingParams
from engine.speculation import LONGEST_MATCH, MAX_CONTEXT, RATE

Decode = Callable[[KVCache, Sequence[int], SamplingParams], DecodeRun]

BEGIN, END = 0.6, 0.25  # of tokens that a look-up foretells: drafting begins above, and ends below
WORTH_A_TURN = 16  # tokens that a reply must still have room for: a change costs some
_TRIED = 32  # places of a repeated pair of tokens that are looked at, the latest


class Foretold:
    """How much of a text a look-up would have drafted right: a moving average, from 0 on.

    The look-up is that of `engine.speculation.look_up` for one token, by an index that grows with
    the text. A token for which nothing is found counts as drafted wrong.
    """

    def __init__(self, context: Sequence[int]) -> None:
        self.share = 0.0
        self._text: list[int] = []
        self._ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for token in context[-MAX_CONTEXT:]:
            self._append(token)
        self._guess = self._look_up()

    def saw(self, token: int) -> None:
        """The next token of the text."""
        self.share += RATE * ((token == self._guess) - self.share)
        self._append(token)
        self._guess = self._look_up()

    def _append(self, token: int) -> None:
        """What ends before `token` may be found from now on."""
        text = self._text
        if len(text) >= 2:
            self._ends[text[-2], text[-1]].append(len(text))
        text.append(token)

    def _look_up(self) -> int | None:
        text, best, found = self._text, 0, None
        if len(text) < 2:
            return None
        for at in reversed(self._ends.get((text[-2], text[-1]), [])[-_TRIED:]):
            size = 2
            while (
                size < min(LONGEST_MATCH, at, len(text)) and text[at - 1 - size] == text[-1 - size]
            ):
                size += 1
            if size > best:
                best, found = size, text[at]
            if size == LONGEST_MATCH:
                break
        return found


class TurnTakingRun:
    """One reply; see `engine.base.DecodeRun`. `alone` and `drafting` decode from where the other
    has left the cache. `drafts` counts a token of `alone` as a pass; where a turn ends, drafts
    that were right and are decoded anew may be counted twice.
    """

    def __init__(
        self,
        alone: Decode,
        drafting: Decode,
        cache: KVCache,
        token_ids: Sequence[int],
        params: SamplingParams,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.drafts: DraftCounts | None = DraftCounts()
        self.launches = 0
        self.turns = 1
        self._decode = (alone, drafting)
        self._cache, self._params = cache, params
        self._text: Foretold | None = None
        self._count = 0  # tokens
        self._before = DraftCounts()  # of earlier turns
        self._launches_before, self._of_turn = 0, 0
        self._changes_at: Token | None = None  # the last token of a turn that is to end
        self._stopped = threading.Event()
        self._begin(alone(cache, token_ids, params))
        self.start_ns = self._run.start_ns
        self.prefill_end_ns: int | None = None

    def stop(self) -> None:
        self._stopped.set()
        self._run.stop()

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        try:
            last, self._changes_at = self._changes_at, None  # a change that fails is the end
            if last is not None and not self._stopped.is_set():
                self._change(last)
            token = next(self._tokens)
        except BaseException:
            self.finish_reason = self._run.finish_reason
            raise
        if self._count == 0:
            self.prefill_end_ns = self._run.prefill_end_ns
        self._count, self._of_turn = self._count + 1, self._of_turn + 1
        self.launches = self._launches_before + self._run.launches
        self.drafts = self._drafts_so_far()
        self.finish_reason = self._run.finish_reason
        self._changes_at = token if self.finish_reason is None and self._watch(token) else None
        return token

    def _begin(self, run: DecodeRun) -> None:
        self._run, self._tokens, self._of_turn = run, iter(run), 0

    def _watch(self, token: Token) -> bool:
        """Whether the other one is to go on: the text has become foreseeable, or is no longer."""
        if self._text is None:
            self._text = Foretold([*self._cache.token_ids, token.id])
            return False
        self._text.saw(token.id)
        if min(self._params.max_tokens - self._count, self._cache.free) < WORTH_A_TURN:
            return False
        drafting = self.turns % 2 == 0
        return self._text.share < END if drafting else self._text.share > BEGIN

    def _change(self, token: Token) -> None:
        """End this turn at `token`; what has been decoded beyond it is as if it had not been."""
        self._run.stop()
        for _ in self._tokens:  # none: whoever has been stopped yields no more
            pass
        self._before, self._launches_before = self._drafts_so_far(), self.launches
        left = replace(self._params, max_tokens=self._params.max_tokens - self._count)
        self._begin(self._decode[self.turns % 2](self._cache, [token.id], left))
        self.turns += 1
        if self._stopped.is_set():  # it came in between
            self._run.stop()

    def _drafts_so_far(self) -> DraftCounts:
        before, this = self._before, self._run.drafts
        first = 1 if self.turns > 1 and self._of_turn else 0  # a pass that is no prompt's
        if this is None:
            passes = max(0, self._of_turn - (self.turns == 1))
            return replace(before, passes=before.passes + passes)
        return DraftCounts(
            before.passes + this.passes + first,
            before.drafted + this.drafted,
            before.accepted + this.accepted,
        )
