"""The contract every decode engine keeps. Engines see token ids and nothing of text.

An engine is bound to one model. A conversation owns a `KVCache` in the one layout all engines
share, so it can go on with another engine of the same model without a new prefill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from engine.errors import UnpausedError

if TYPE_CHECKING:
    from engine.kv_cache import KVCache
    from engine.models.base import Model
    from engine.sampling import SamplingParams

FinishReason = Literal["eos", "length", "context", "stopped"]


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token.

    `time_ns` is the engine's own monotonic clock at the moment the token was known, in
    nanoseconds: only differences within one run mean anything. `logprob` is the natural
    logarithm of the token's probability under the unmodified logits.
    """

    id: int
    time_ns: int
    logprob: float


@dataclass(slots=True)
class DraftCounts:
    """What speculative decoding did in one reply; see engine.speculation."""

    passes: int = 0  # over the weights, after the prompt's
    drafted: int = 0  # tokens fed before they were known
    accepted: int = 0  # of those, the right ones


@runtime_checkable
class DecodeRun(Protocol):
    """One reply being decoded: iterate it for tokens, stop it from any thread."""

    finish_reason: FinishReason | None  # None until the run has ended
    start_ns: int  # the engine's clock when it took up the prompt
    prefill_end_ns: int | None  # the engine's clock when the prompt was in the cache
    launches: int  # kernels (or framework operations) dispatched for decode steps, counted
    drafts: DraftCounts | None  # None where each token takes a pass of its own

    def __iter__(self) -> Iterator[Token]: ...

    def stop(self) -> None:
        """Ask the run to end; takes effect within one token. Safe from any thread, any time."""
        ...


@runtime_checkable
class DecodeEngine(Protocol):
    """A batch-1 decoder of one model.

    A class that can draft (engine/speculation.py) lists its methods as `speculates` and takes
    `speculation` when made.
    """

    name: str
    model: Model
    weight_bytes_per_token: int  # read to decode one token, in the format the engine keeps

    def prefill(self, cache: KVCache, token_ids: Sequence[int]) -> None:
        """Append the keys and values of `token_ids` to `cache`, sampling nothing.

        Raises `UnpausedError` when they do not fit, before any work.
        """
        ...

    def decode(self, cache: KVCache, token_ids: Sequence[int], params: SamplingParams) -> DecodeRun:
        """Append `token_ids` (at least one) to `cache` and decode from the last of them.

        Yields tokens until one of `params.stop_ids` (yielded, then the run ends with "eos"),
        `params.max_tokens` ("length"), a full cache ("context") or `stop()` ("stopped").
        Afterwards the cache holds every token that was fed: all but the last one yielded.
        Arguments are checked before any work; faults are `UnpausedError`.
        """
        ...

    def close(self) -> None:
        """Release what the engine holds. Idempotent; bounded in time."""
        ...


def check_prompt(model: Model, cache: KVCache, token_ids: Sequence[int]) -> None:
    """Refuse a prompt that `decode` cannot take, before any work."""
    if not token_ids:
        raise UnpausedError("the prompt is empty: nothing to decode from")
    if not all(0 <= token_id < model.config.vocab for token_id in token_ids):
        raise UnpausedError(f"a token id is outside the vocabulary of {model.config.vocab}")
    cache.require(len(token_ids))


def finish_reason(
    token_id: int, count: int, cache: KVCache, params: SamplingParams
) -> FinishReason | None:
    """Whether the reply ends with this token, and why; the one rule of every engine."""
    if token_id in params.stop_ids:
        return "eos"
    if count >= params.max_tokens:
        return "length"
    return "context" if cache.free == 0 else None
