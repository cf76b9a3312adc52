"""Speculative decoding: several tokens verified by one pass over the weights, the text unchanged.

A *draft* is what the next tokens might be. One pass feeds the last token and the draft, and the
one sampler (`engine.sampling`) draws the token of every position from that position's own logits
and noise. Draws that equal the draft are as good as decoded one by one; the first that differs is
itself the right token, and what follows it is thrown away (Leviathan et al., "Fast inference from
transformers via speculative decoding", 2023; Chen et al., 2023).

Because the noise is a function of seed, position and token alone, the accepted text is the very
text that decoding without a draft gives, greedy or sampled: the coupling is the drafter-invariant
one of Daliri et al., "Coupling without communication and drafter-invariant speculative decoding",
2025. For a draft that is certain of its token (an n-gram) it accepts as often as the rejection
rule does; for one that samples from q it accepts with probability at least (1 - d) / (1 + d)
where the rejection rule has 1 - d, d being the total variation distance of the two models.

Terms: *width* is the tokens fed by a pass, the known one included: 1 is decoding without a draft.
*Acceptance* is drafted tokens accepted / drafted tokens fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from engine.errors import UnpausedError

if TYPE_CHECKING:
    from engine.models.base import Model

Method = Literal["ngram", "draft"]

MAX_WIDTH = 8  # the columns of one tensor-core instruction: what a pass can verify at once
LONGEST_MATCH, SHORTEST_MATCH = 4, 2  # tokens of a repeated n-gram; one alone repeats by chance
MAX_CONTEXT = 8192  # tokens that a look-up goes back

FIRST_ACCEPTANCE = 0.5
RATE = 0.125  # of the moving averages: some eight observations
FIRST_COST_OF_A_COLUMN = 0.1  # of a pass, until passes of that width have been timed
WORTH_IT = 1.02  # expected gain below which no draft is fed: timing noise would eat it


@dataclass(frozen=True)
class Speculation:
    """How an engine drafts. `width`: the widest pass it may make, 2 to `MAX_WIDTH`.

    `draft_model`: for "draft", a smaller model of the same vocabulary on the same device.
    Raises `UnpausedError` when made of what does not fit together.
    """

    method: Method
    width: int = MAX_WIDTH
    draft_model: Model | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.width <= MAX_WIDTH:
            raise UnpausedError(f"a pass verifies 2 to {MAX_WIDTH} tokens, not {self.width}")
        if (self.method == "draft") != (self.draft_model is not None):
            raise UnpausedError("drafting with a model needs a model, drafting n-grams needs none")

    def check(self, model: Model) -> None:
        """Raise `UnpausedError` unless the draft model speaks `model`'s tokens."""
        draft = self.draft_model
        if draft is not None:
            check_vocabulary(draft.name, draft.config.vocab, model.name, model.config.vocab)


def check_vocabulary(draft: str, draft_vocab: int, target: str, vocab: int) -> None:
    """Raise `UnpausedError` unless both have as many tokens."""
    if draft_vocab != vocab:
        raise UnpausedError(
            f"{draft} cannot draft for {target}: its vocabulary has "
            f"{draft_vocab:,} tokens, not {vocab:,}"
        )


def read_choice(text: str) -> tuple[Method | None, str]:
    """What `--speculate` says: (method or None for off, the draft model's name or "")."""
    if text in ("off", "ngram"):
        return (None if text == "off" else "ngram"), ""
    method, _, name = text.partition(":")
    if method == "draft" and name.strip():
        return "draft", name.strip()
    raise UnpausedError(f"--speculate is off, ngram or draft:MODEL, not {text!r}")


def look_up(context: Sequence[int], count: int) -> list[int]:
    """Up to `count` tokens that followed the latest earlier occurrence of how `context` ends.

    The longest match of `SHORTEST_MATCH` to `LONGEST_MATCH` tokens wins, among equals the latest
    (Saxena, "Prompt lookup decoding", 2023). Empty when nothing matches. A draft that
    reaches the end of `context` goes on with itself, as a loop does.
    """
    end, best, found = len(context), SHORTEST_MATCH - 1, 0
    for at in range(end - 1, max(SHORTEST_MATCH - 1, end - MAX_CONTEXT), -1):
        if context[at - 1] != context[end - 1] or context[at - 2] != context[end - 2]:
            continue
        size = 2
        while (
            size < LONGEST_MATCH and size < at and context[at - 1 - size] == context[end - 1 - size]
        ):
            size += 1
        if size > best:
            best, found = size, at
            if size == LONGEST_MATCH:
                break
    draft: list[int] = []
    for at in range(found, found + count) if found else ():
        draft.append(context[at] if at < end else draft[at - end])
    return draft


class Pace:
    """Chooses each pass's width: the one that promises most tokens per second.

    It keeps moving averages of how often a drafted token was right and of how long passes of each
    width took, so it needs to know nothing of the machine. Where drafts fail it feeds none, and
    goes on comparing what it would have drafted with what came, which costs nothing.
    """

    def __init__(self, widest: int) -> None:
        self._acceptance = FIRST_ACCEPTANCE
        self._cost = [0.0] * (widest + 1)  # of a pass by width, any unit; 0 is not known yet

    def new_reply(self) -> None:
        """Another text: nothing is known of how well it can be drafted.

        Widths become a little cheaper than they were found to be, where the narrower ones say so:
        whoever was held up when it was tried is tried again some day.
        """
        self._acceptance = FIRST_ACCEPTANCE
        for width, cost in enumerate(self._cost):
            guess = self._guess(width)
            if 0 < guess < cost:
                self._cost[width] += RATE * (guess - cost)

    def width(self, drafted: int) -> int:
        """How wide the next pass should be when `drafted` tokens are at hand."""
        best, most = 1, WORTH_IT / self._cost_of(1)
        expected, right = 1.0, 1.0
        for width in range(2, min(drafted + 1, len(self._cost) - 1) + 1):
            right *= self._acceptance
            expected += right
            rate = expected / self._cost_of(width)
            if rate > most:
                best, most = width, rate
        return best

    def saw(self, accepted: int, rejected: bool) -> None:
        """`accepted` drafted tokens were right, and then one was wrong or none was left."""
        for _ in range(accepted):
            self._acceptance += RATE * (1 - self._acceptance)
        if rejected:
            self._acceptance -= RATE * self._acceptance

    def took(self, width: int, cost: float) -> None:
        """A pass of `width` took `cost`. One that was held up counts at most double."""
        known = self._cost[width]
        expected = known or self._guess(width)
        cost = min(cost, 2 * expected) if expected else cost
        self._cost[width] = known + RATE * (cost - known) if known else cost

    def _cost_of(self, width: int) -> float:
        first = 1 + FIRST_COST_OF_A_COLUMN * (width - 1)
        return self._cost[width] or self._guess(width) or first

    def _guess(self, width: int) -> float:
        """What it might cost, from the nearest narrower width that is known; 0 without any."""
        for nearest in range(width - 1, 0, -1):
            if self._cost[nearest]:
                return self._cost[nearest] * (1 + FIRST_COST_OF_A_COLUMN * (width - nearest))
        return 0.0
