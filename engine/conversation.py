"""One conversation: its messages, and the KV cache that lets the next turn prefill only itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from engine.base import DecodeEngine
from engine.errors import PromptTooLong, UnpausedError
from engine.generate import THINK_OPEN
from engine.models.base import Model
from engine.reply import ReplyStream, Request, check_hidden_tokens
from engine.sampling import SamplingParams
from engine.tokenizer import Message

__all__ = ["Conversation", "ReplyStream", "check_context", "check_text"]

DEFAULT_CONTEXT = 2048  # positions; a spoken conversation rarely needs more
_REPLY_SHARE = 4  # at most 1/4 of the context is kept free for the reply


class Conversation:
    """Messages of one chat with one model. One reply at a time; any engine of that model.

    `context`: positions in the KV cache. `system`: a system message instead of the chat
    template's own. `template_options` go to the chat template (`enable_thinking=False`).
    `hidden_tokens` may be set between replies: so many tokens are decoded before each reply
    and never said (see `ReplyStream`). `last` is the reply that joined the conversation last.
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
        self.hidden_tokens = 0
        self.last: ReplyStream | None = None
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
        joins: bool = True,
        trims: bool = True,
    ) -> ReplyStream:
        """Answer `user_text`: iterate the result. Raises `UnpausedError` before any work.

        The user's message joins the conversation when the reply ends, together with it; with
        `joins` False neither does. Where the context is too small the oldest turns are left out,
        or with `trims` False the reply is refused.
        """
        self._check_engine(engine)
        check_text(user_text)
        check_hidden_tokens(self.hidden_tokens)
        text, ids, trimmed = self._prompt(user_text, params.max_tokens, trims)
        params = replace(params, stop_ids=self.model.tokenizer.stop_ids | set(params.stop_ids))
        own = self.hidden_tokens > 0 and self.thinks
        request = Request(
            user_text, text, ids, params, stops, trimmed, self.hidden_tokens, own, joins
        )
        return self._start(engine, request, len(ids) - 1)

    def again(self, engine: DecodeEngine, reply: ReplyStream) -> ReplyStream:
        """`reply` once more on any engine: the same prompt and seed, and no more of it taken from
        the cache than the first time. It stays out of the conversation.
        """
        self._check_engine(engine)
        request = replace(reply.request, joins=False)
        return self._start(engine, request, reply.metrics().cached_tokens)

    @cached_property
    def thinks(self) -> bool:
        """Whether the model's chat template lets it think before it speaks."""
        with_it, without = (
            self.model.tokenizer.render(
                [_user("a")], **{**self._template_options, "enable_thinking": on}
            )
            for on in (True, False)
        )
        return with_it != without or with_it.rstrip().endswith(THINK_OPEN)

    def keep_heard(self, text: str) -> None:
        """Replace the last reply by the part of it that was heard, after an interruption."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages[-1] = {"role": "assistant", "content": text}
            self._known_text, self._known_ids = self._prompt_text, self._prompt_ids

    def retract(self) -> None:
        """Forget the last turn, question and reply: it is asked again in other words."""
        del self.messages[-2:]
        self._known_text, self._known_ids = "", []
        self.last = None

    def clear(self) -> None:
        """Begin anew; the start of the prompt stays in the cache."""
        self.messages.clear()
        self.last = None

    def _check_engine(self, engine: DecodeEngine) -> None:
        if engine.model is not self.model:
            raise UnpausedError(
                f"engine {engine.name} runs {engine.model.name}, "
                f"but this conversation is with {self.model.name}"
            )

    def _start(self, engine: DecodeEngine, request: Request, most: int) -> ReplyStream:
        """A reply that takes at most `most` tokens of its prompt from the cache."""
        held = min(self.cache.common_prefix(request.prompt_ids), most)
        self.cache.truncate(held)
        return ReplyStream(self, engine, request, held)

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

    def _prompt(self, user_text: str, max_tokens: int, trims: bool) -> tuple[str, list[int], int]:
        """(prompt text, its ids, oldest turns left out so that it fits)."""
        capacity, hidden = self.cache.max_positions, self.hidden_tokens
        share = capacity // (_REPLY_SHARE // 2 if hidden else _REPLY_SHARE)
        room = limit = capacity - min(max_tokens + hidden, share)
        options = dict(self._template_options)
        if hidden and self.thinks:
            options["enable_thinking"] = True
        turns = len(self.messages) // 2 if trims else 0
        for trimmed in range(turns + 1):
            messages = [*self._head(), *self.messages[2 * trimmed :], _user(user_text)]
            text = self.model.tokenizer.render(messages, **options)
            ids = self._tokenise(text)
            if len(ids) <= (limit if trimmed < turns else room):
                return text, ids, trimmed
            limit = room // 2  # trimming costs a prefill of what is left: cut deep, but seldom
        raise PromptTooLong(
            f"the message takes {len(ids)} tokens and the context has room for {room}: "
            "shorten it or start with a larger --context"
        )

    def _commit(self, reply: ReplyStream) -> None:
        self.last = reply
        del self.messages[: 2 * reply.request.trimmed_turns]
        self.messages += [_user(reply.user_text), {"role": "assistant", "content": reply.text}]
        self._prompt_text, self._prompt_ids = reply.prompt_text, reply.prompt_ids
        self._known_text, self._known_ids = reply.prompt_text, reply.prompt_ids
        # Only a reply whose ids decode to the very text in the messages can be continued by ids.
        if self.model.tokenizer.decode(reply.generated_ids) == reply.text:
            self._known_text = reply.prompt_text + reply.text
            self._known_ids = [*reply.prompt_ids, *reply.generated_ids]


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
