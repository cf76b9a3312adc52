"""One conversation: its messages, and the KV cache that lets the next turn prefill only itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.base import DecodeEngine, DecodeRun
from engine.errors import UnpausedError
from engine.generate import TextDelta, stream_text
from engine.metrics import ReplyMetrics
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.tokenizer import Message

DEFAULT_CONTEXT = 2048  # positions; a spoken conversation rarely needs more
_REPLY_SHARE = 4  # at most 1/4 of the context is kept free for the reply


class Conversation:
    """Messages of one chat with one model. One reply at a time; any engine of that model.

    `context`: positions in the KV cache. `system`: a system message instead of the chat
    template's own. `template_options` go to the chat template (`enable_thinking=False`).
    """

    def __init__(
        self,
        model: Model,
        context: int = DEFAULT_CONTEXT,
        system: str | None = None,
        **template_options: object,
    ) -> None:
        check_context(context)
        self.model = model
        self.cache = model.new_cache(context)
        self.messages: list[Message] = []
        self._system = system
        self._template_options = template_options
        self._prompt_text, self._prompt_ids = "", list[int]()  # the last turn's
        self._known_text, self._known_ids = "", list[int]()  # the same, with the reply if possible

    def warm(self, engine: DecodeEngine) -> None:
        """Prefill what every prompt begins with, so that the first turn need not."""
        prompts = [self._encode([*self._head(), _user(text)]) for text in ("a", "b")]
        shared = 0
        while shared < min(map(len, prompts)) and prompts[0][shared] == prompts[1][shared]:
            shared += 1
        if self.cache.length == 0 and 0 < shared <= self.cache.max_positions:
            engine.prefill(self.cache, prompts[0][:shared])

    def reply(
        self,
        engine: DecodeEngine,
        user_text: str,
        params: SamplingParams,
        stops: Sequence[str] = (),
    ) -> ReplyStream:
        """Answer `user_text`: iterate the result. Raises `UnpausedError` before any work.

        The user's message joins the conversation when the reply ends, together with it.
        """
        if engine.model is not self.model:
            raise UnpausedError(
                f"engine {engine.name} runs {engine.model.name}, "
                f"but this conversation is with {self.model.name}"
            )
        check_text(user_text)
        text, ids, trimmed = self._prompt(user_text, params.max_tokens)
        held = min(self.cache.common_prefix(ids), len(ids) - 1)
        self.cache.truncate(held)
        params = replace(params, stop_ids=self.model.tokenizer.stop_ids | set(params.stop_ids))
        run = engine.decode(self.cache, ids[held:], params)
        metrics = ReplyMetrics(
            engine=engine.name,
            model=self.model.name,
            start_ns=run.start_ns,
            prompt_tokens=len(ids),
            cached_tokens=held,
            trimmed_turns=trimmed,
            weight_bytes_per_token=engine.weight_bytes_per_token,
            kv_bytes_per_position=self.cache.bytes_per_position,
        )
        stop_ids = frozenset(params.stop_ids)
        return ReplyStream(self, run, metrics, user_text, text, ids, stop_ids, stops)

    def keep_heard(self, text: str) -> None:
        """Replace the last reply by the part of it that was heard, after an interruption."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages[-1] = {"role": "assistant", "content": text}
            self._known_text, self._known_ids = self._prompt_text, self._prompt_ids

    def clear(self) -> None:
        """Begin anew; the start of the prompt stays in the cache."""
        self.messages.clear()

    def _head(self) -> list[Message]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self._tokenise(self.model.tokenizer.render(messages, **self._template_options))

    def _tokenise(self, text: str) -> list[int]:
        # Ids already fed stay as they are: encoding a reply's text again may cut it otherwise,
        # and the cache would be lost from there on. A known prefix ends at a turn's end marker,
        # where cutting the text changes no token.
        tokenizer = self.model.tokenizer
        if self._known_text and text.startswith(self._known_text):
            return [*self._known_ids, *tokenizer.encode(text[len(self._known_text) :])]
        return tokenizer.encode(text) if tokenizer.has_chat_template else (
            tokenizer.encode_prompt(text)
        )  # fmt: skip

    def _prompt(self, user_text: str, max_tokens: int) -> tuple[str, list[int], int]:
        """(prompt text, its ids, oldest turns left out so that it fits)."""
        capacity = self.cache.max_positions
        room = limit = capacity - min(max_tokens, capacity // _REPLY_SHARE)
        turns = len(self.messages) // 2
        for trimmed in range(turns + 1):
            messages = [*self._head(), *self.messages[2 * trimmed :], _user(user_text)]
            text = self.model.tokenizer.render(messages, **self._template_options)
            ids = self._tokenise(text)
            if len(ids) <= (limit if trimmed < turns else room):
                return text, ids, trimmed
            limit = room // 2  # trimming costs a prefill of what is left: cut deep, but seldom
        raise UnpausedError(
            f"the message takes {len(ids)} tokens and the context has room for {room}: "
            "shorten it or start with a larger --context"
        )

    def _commit(self, reply: ReplyStream) -> None:
        del self.messages[: 2 * reply.metrics().trimmed_turns]
        self.messages += [_user(reply.user_text), {"role": "assistant", "content": reply.text}]
        self._prompt_text, self._prompt_ids = reply.prompt_text, reply.prompt_ids
        self._known_text, self._known_ids = reply.prompt_text, reply.prompt_ids
        # Only a reply whose ids decode to the very text in the messages can be continued by ids.
        if self.model.tokenizer.decode(reply.generated_ids) == reply.text:
            self._known_text = reply.prompt_text + reply.text
            self._known_ids = [*reply.prompt_ids, *reply.generated_ids]


class ReplyStream:
    """A reply under way: iterate it once for `TextDelta`s; stop it, read `text` or `metrics`
    from any thread. When the iteration ends, by itself or by `close`, the turn joins the
    conversation; a fault leaves the conversation as it was.
    """

    def __init__(
        self,
        conversation: Conversation,
        run: DecodeRun,
        metrics: ReplyMetrics,
        user_text: str,
        prompt_text: str,
        prompt_ids: list[int],
        stop_ids: frozenset[int],
        stops: Sequence[str],
    ) -> None:
        self.user_text, self.prompt_text, self.prompt_ids = user_text, prompt_text, prompt_ids
        self.text = ""  # what is to be said, so far; thinking is not part of it
        self.generated_ids: list[int] = []  # without the end marker
        self._conversation, self._run, self._metrics = conversation, run, metrics
        self._stop_ids = stop_ids
        self._deltas = stream_text(run, conversation.model.tokenizer, stop_ids, stops)

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
            self._metrics.finish_reason = self._run.finish_reason or "stopped"
            if ended:
                self._conversation._commit(self)

    def stop(self) -> None:
        """End the reply within one token."""
        self._run.stop()

    def metrics(self) -> ReplyMetrics:
        """A snapshot of what the reply has cost so far."""
        return replace(self._metrics, token_times_ns=list(self._metrics.token_times_ns))

    def _account(self, delta: TextDelta) -> None:
        if not delta.thinking:
            self.text += delta.text
        if delta.token is None:
            return
        self._metrics.token_times_ns.append(delta.token.time_ns)
        self._metrics.launches = self._run.launches
        if delta.token.id not in self._stop_ids:
            self.generated_ids.append(delta.token.id)


def check_context(context: int) -> None:
    """Raise `UnpausedError` unless `context` positions can hold a prompt and a token."""
    if context < 2:
        raise UnpausedError(f"context must be 2 positions or more; got {context}")


def check_text(text: str) -> None:
    """Raise `UnpausedError` unless there is something to answer, in whole characters."""
    if not text.strip():
        raise UnpausedError("there is nothing to answer: the text is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnpausedError("the text is not valid Unicode: type or encode it again") from None


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
