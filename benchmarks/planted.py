"""Texts planted so that an engine's own n-gram look-up is right where it is to be right.

Random weights say nothing that repeats, so nothing can be drafted for them; and where a pass shall
be as wide as can be, every draft has to be right. In both cases the reply is decoded once, and its
tokens are then planted in the list of tokens that lies before it. An engine looks drafts up in that
list, while attention reads keys and values, which are noise of that length: the reply stays as it
was, and only what is drafted for it changes. It needs nothing of the engine but its contract.

A *trace* says of each token of a recorded reply what one look-up did: r right, w wrong, n nothing
found. What is planted makes the look-up find the same in another text (a wrong token may cost the
one after it its draft, so the acceptance of the replay is measured and not assumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from benchmarks.growth import noise_cache
from benchmarks.timing import Reply, timed
from engine.base import DecodeEngine
from engine.kv_cache import KVCache
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.speculation import MAX_WIDTH, SHORTEST_MATCH, look_up

CONTEXT = 600  # positions before a reply
_FIRST = 0  # the token that is fed first
_TRIES = 4  # a pass of several tokens may round otherwise and so choose another text, which is then
# planted in its turn

RIGHT, WRONG, NOTHING = "r", "w", "n"


def trace(prompt: Sequence[int], reply: Sequence[int]) -> str:
    """What looking up one token ahead did for each token of `reply`; nothing for the first."""
    found = [NOTHING]
    for at in range(1, len(reply)):
        draft = look_up([*prompt, *reply[:at]], 1)
        found.append(NOTHING if not draft else RIGHT if draft[0] == reply[at] else WRONG)
    return "".join(found)


def planted(reply: Sequence[int], recorded: str, size: int, vocab: int) -> list[int]:
    """`size` tokens among which looking up for `reply` does what `recorded` says.

    The rest are tokens that are not in `reply`. What does not fit is left out, the end first.
    """
    strangers = cycle(sorted(set(range(vocab)) - set(reply) - {_FIRST}))
    pieces: list[int] = []
    text = [_FIRST, *reply]  # text[at + 1] is reply[at]
    at = SHORTEST_MATCH - 1
    while at < min(len(reply), len(recorded)):
        if recorded[at] == NOTHING:
            at += 1
            continue
        end = at
        while end < min(len(reply), len(recorded)) and recorded[end] == RIGHT:
            end += 1
        piece = [*text[at + 1 - SHORTEST_MATCH : end + 1], *islice(strangers, MAX_WIDTH)]
        if len(pieces) + len(piece) > size:
            break
        pieces += piece
        at = max(end, at + 1)
    return [*islice(strangers, size - len(pieces)), *pieces]


@dataclass
class Stage:
    """A cache of noise on which replies begin, all sides' alike."""

    model: Model
    tokens: int  # of a reply

    def __post_init__(self) -> None:
        room = min(CONTEXT + self.tokens, self.model.config.max_positions)
        self.cache: KVCache = noise_cache(self.model, room)
        self.before = room - self.tokens - 1

    def reply(self, engine: DecodeEngine, before: Sequence[int], params: SamplingParams) -> Reply:
        """A reply after `before`, which stands for `self.before` tokens."""
        self.cache.token_ids = list(before)
        return timed(engine, self.cache, _FIRST, params)

    def nothing(self) -> list[int]:
        """Tokens before a reply in which nothing is found."""
        return planted([], "", self.before, self.model.config.vocab)

    def plant(
        self, engine: DecodeEngine, plain: Sequence[int], recorded: str, params: SamplingParams
    ) -> list[int]:
        """What to put before `engine`'s reply so that its drafts are as recorded.

        `plain`: the reply without drafts.
        """
        text = list(plain)
        for _ in range(_TRIES):
            before = planted(text, recorded, self.before, self.model.config.vocab)
            again = self.reply(engine, before, params).tokens
            if again == text:
                break
            text = again
        return before
