"""One reply under way: hidden thinking first where it was asked for, then what is said."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.base import DecodeEngine, DecodeRun, DraftCounts
from engine.errors import UnpausedError
from engine.generate import THINK_CLOSE, TextDelta, stream_text
from engine.metrics import ReplyMetrics
from engine.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.conversation import Conversation

MAX_HIDDEN_TOKENS = 500


@dataclass(frozen=True)
class Request:
    """What a reply answers, and all that decides its tokens: a reply can be asked for again."""

    user_text: str
    prompt_text: str
    prompt_ids: list[int]
    params: SamplingParams  # with the model's own stop ids
    stops: Sequence[str] = ()
    trimmed_turns: int = 0
    hidden_tokens: int = 0
    own_thinking: bool = (
        False  # the prompt lets the model think; else the hidden tokens are a draft
    )
    joins: bool = True  # the conversation goes on from it


class ReplyStream:
    """A reply under way: iterate it once for `TextDelta`s; stop it, read `text` or `metrics`
    from any thread. When the iteration ends, by itself or by `close`, the turn joins the
    conversation; a fault leaves the conversation as it was.

    Hidden tokens come first. A model with thinking of its own thinks for at most so many, and is
    then made to answer (budget forcing: Muennighoff et al., "s1", 2025). Any other model decodes
    exactly so many of a draft, which is forgotten: the answer is the one it would have given at
    once, and only the silence before it differs.
    """

    def __init__(
        self, conversation: Conversation, engine: DecodeEngine, request: Request, held: int
    ) -> None:
        self.request = request
        self.text = ""  # what is to be said, so far; thinking is not part of it
        self.generated_ids: list[int] = []  # of the answer, without the end marker
        self.deltas: list[TextDelta] = []  # all that came, hidden tokens included
        self._conversation, self._engine = conversation, engine
        self._stopped = False
        self._cut = False  # by a stop string
        self._hiding = request.hidden_tokens > 0
        prompt, params = request.prompt_ids, request.params
        hidden = request.hidden_tokens
        if hidden:
            ends = params.stop_ids if request.own_thinking else ()
            params = replace(params, max_tokens=hidden, stop_ids=frozenset(ends) | self._close_ids)
        self._run: DecodeRun = engine.decode(conversation.cache, prompt[held:], params)
        self._runs = [self._run]  # that of the hidden tokens, and that of the answer
        self._metrics = ReplyMetrics(
            engine=engine.name,
            model=conversation.model.name,
            start_ns=self._run.start_ns,
            prompt_tokens=len(prompt),
            cached_tokens=held,
            trimmed_turns=request.trimmed_turns,
            weight_bytes_per_token=engine.weight_bytes_per_token,
            kv_bytes_per_position=conversation.cache.bytes_per_position,
        )
        self._count()
        self._deltas = self._generate()

    @property
    def user_text(self) -> str:
        """What is answered."""
        return self.request.user_text

    @property
    def prompt_text(self) -> str:
        """The whole prompt, as the chat template renders it."""
        return self.request.prompt_text

    @property
    def prompt_ids(self) -> list[int]:
        """The same as token ids."""
        return self.request.prompt_ids

    def __iter__(self) -> Iterator[TextDelta]:
        if self._metrics.finish_reason:
            return  # iterated before
        ended = False
        try:
            for delta in self._deltas:
                self._account(delta)
                yield delta
            ended = True
        except GeneratorExit:
            ended = True
            raise
        finally:
            self._deltas.close()
            self._count()
            # The run may have ended otherwise with the very token that completed a stop string.
            reason = None if self._cut else self._run.finish_reason
            self._metrics.finish_reason = reason or "stopped"
            if ended and self.request.joins:
                self._conversation._commit(self)

    def stop(self) -> None:
        """End the reply within one token."""
        self._stopped = True
        self._run.stop()

    def join(self) -> None:
        """Let the conversation go on from this reply, which was begun not to join it and has
        ended. To be called at most once, before the next reply begins.
        """
        self._conversation._commit(self)

    def metrics(self) -> ReplyMetrics:
        """A snapshot of what the reply has cost so far."""
        metrics = self._metrics
        drafts = replace(metrics.drafts) if metrics.drafts is not None else None
        return replace(metrics, token_times_ns=list(metrics.token_times_ns), drafts=drafts)

    @property
    def _close_ids(self) -> frozenset[int]:
        """The marker that ends thinking, where it is one token of the model."""
        ids = self._conversation.model.tokenizer.encode(THINK_CLOSE)
        return frozenset(ids if self.request.own_thinking and len(ids) == 1 else ())

    def _generate(self) -> Generator[TextDelta]:
        if self._hiding:
            yield from self._think()
            if self._stopped or self._run.finish_reason == "context":
                return
            self._begin_answer()
        request, tokenizer = self.request, self._conversation.model.tokenizer
        ends = frozenset(request.params.stop_ids)
        self._cut = yield from stream_text(self._run, tokenizer, ends, request.stops)

    def _think(self) -> Generator[TextDelta]:
        try:
            for token in self._run:
                yield TextDelta("", token, thinking=True)
        finally:
            self._run.stop()

    def _begin_answer(self) -> None:
        """Go on from the thoughts, or from the prompt when they were but a draft."""
        cache, request = self._conversation.cache, self.request
        if request.own_thinking:
            # The cache holds every token but the last one; what ended the thoughts is said anew.
            last = [delta.token.id for delta in self.deltas[-1:] if delta.token]
            ends = frozenset(request.params.stop_ids) | self._close_ids
            closing = self._conversation.model.tokenizer.encode(f"\n{THINK_CLOSE}\n\n")
            feed = [*(token for token in last if token not in ends), *closing]
        else:
            feed = request.prompt_ids[-1:]
            cache.truncate(len(request.prompt_ids) - 1)
        self._hiding = False
        self._run = self._engine.decode(cache, feed, request.params)
        self._runs.append(self._run)
        if self._stopped:  # it came between the two
            self._run.stop()

    def _account(self, delta: TextDelta) -> None:
        self.deltas.append(delta)
        if not delta.thinking:
            self.text += delta.text
        if delta.token is None:
            return
        self._metrics.token_times_ns.append(delta.token.time_ns)
        self._count()
        if self._hiding:
            self._metrics.hidden_tokens += 1
        elif delta.token.id not in self.request.params.stop_ids:
            self.generated_ids.append(delta.token.id)

    def _count(self) -> None:
        """Bring the sums over the runs up to date."""
        self._metrics.launches = sum(run.launches for run in self._runs)
        drafts = [run.drafts for run in self._runs if run.drafts is not None]
        if drafts:
            self._metrics.drafts = DraftCounts(
                passes=sum(counts.passes for counts in drafts),
                drafted=sum(counts.drafted for counts in drafts),
                accepted=sum(counts.accepted for counts in drafts),
            )


def check_hidden_tokens(count: int) -> None:
    """Raise `UnpausedError` unless so many tokens may be hidden before a reply."""
    if not 0 <= count <= MAX_HIDDEN_TOKENS:
        raise UnpausedError(f"hidden tokens must be 0 to {MAX_HIDDEN_TOKENS}; got {count}")
