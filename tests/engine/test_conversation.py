"""Conversations: what the next turn may keep, what is trimmed, what a fault leaves behind."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.conversation import Conversation, ReplyStream
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer
from tests.engine import tiny
from tests.engine.conftest import TinyFactory
from tests.engine.scripted import ScriptedEngine
from tests.engine.tiny import IM_END, random_ids

SHORT = SamplingParams(max_tokens=6)


def finish(stream: ReplyStream) -> ReplyStream:
    for _ in stream:
        pass
    return stream


def rendered(chat: Conversation, user_text: str) -> list[int]:
    """The prompt of the next turn, encoded from nothing."""
    tokenizer = chat.model.tokenizer
    messages = [*chat.messages, {"role": "user", "content": user_text}]
    return tokenizer.encode(tokenizer.render(messages))


# --- reuse ---


def test_twenty_turns_each_prefill_only_themselves(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    held = 0
    for turn in range(20):
        stream = finish(chat.reply(engine, f"question {turn} about the weather", SHORT))
        metrics = stream.metrics().as_dict()
        assert metrics["tokens"] == 6 and metrics["finish_reason"] == "length"
        assert metrics["cached_tokens"] == held
        # The last token of the reply before was never fed, and comes with the new turn.
        assert metrics["prefill_tokens"] == metrics["prompt_tokens"] - held < 60
        assert stream.prompt_ids == chat.cache.token_ids[: len(stream.prompt_ids)]
        held = metrics["prompt_tokens"] + metrics["tokens"] - 1
        assert chat.cache.length == held
    assert held > 400 and len(chat.messages) == 40
    again = [t.id for t in engine.decode(long_llama.new_cache(), stream.prompt_ids, SHORT)]
    assert again == stream.generated_ids  # as if nothing had been reused


def test_reuse_survives_tokens_that_encoding_would_cut_otherwise(smollm2: Model) -> None:
    """Replies of single bytes, spaces before digits, emoji: ids stay as they were fed."""
    tokenizer = smollm2.tokenizer
    end = tokenizer.encode(IM_END)
    words = ["  12   345 ", "tick-tock", "日本 👩‍👧", "a\n\n b"]
    replies = [[i for char in word for i in tokenizer.encode(char)] + end for word in words]
    assert any(reply[:-1] != tokenizer.encode(w) for reply, w in zip(replies, words, strict=True))
    engine, chat = ScriptedEngine(smollm2, replies), Conversation(smollm2, 1024)
    held = 0
    for turn, word in enumerate(words):
        stream = finish(chat.reply(engine, f"What is {turn}?", SamplingParams(max_tokens=100)))
        assert stream.text == word == chat.messages[-1]["content"]
        assert stream.metrics().cached_tokens == held
        held = chat.cache.length
        assert held == len(stream.prompt_ids) + len(stream.generated_ids)
        assert tokenizer.decode(stream.prompt_ids) == tokenizer.decode(
            tokenizer.encode(stream.prompt_text)
        )


def test_what_was_fed_is_what_the_template_says(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    for turn in range(4):
        expected = chat.model.tokenizer.decode(rendered(chat, f"and {turn}"))
        stream = finish(chat.reply(engine, f"and {turn}", SHORT))
        assert chat.model.tokenizer.decode(stream.prompt_ids) == expected
        assert stream.prompt_text.endswith("<|im_start|>assistant\n")
    assert stream.prompt_text.startswith("<|im_start|>system\nYou are tiny.<|im_end|>")


def test_system_message_and_template_options(long_llama: Model) -> None:
    chat = Conversation(long_llama, system="Speak in rhymes.", unknown_option=True)
    stream = finish(chat.reply(EagerEngine(long_llama), "hello", SHORT))
    assert stream.prompt_text.startswith("<|im_start|>system\nSpeak in rhymes.<|im_end|>")
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


def test_warming_leaves_only_the_message_to_the_first_turn(long_llama: Model) -> None:
    engine = EagerEngine(long_llama)
    cold, warm = Conversation(long_llama), Conversation(long_llama)
    warm.warm(engine)
    assert 0 < warm.cache.length < 30
    held = list(warm.cache.token_ids)
    replies = [finish(chat.reply(engine, "hello there", SHORT)) for chat in (cold, warm)]
    assert replies[0].generated_ids == replies[1].generated_ids
    assert [r.metrics().cached_tokens for r in replies] == [0, len(held)]
    warm.warm(engine)  # once there is something, it changes nothing
    assert warm.cache.token_ids[: len(held)] == held
    assert warm.cache.length == cold.cache.length


def test_clearing_keeps_the_start_of_the_prompt(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    first = finish(chat.reply(engine, "hello", SHORT))
    chat.clear()
    again = finish(chat.reply(engine, "hello", SHORT))
    assert again.prompt_ids == first.prompt_ids and again.text == first.text
    assert again.metrics().cached_tokens == len(first.prompt_ids) - 1  # the last must be fed


def test_a_base_model_without_a_chat_template_reuses_too(tiny_of: TinyFactory) -> None:
    inner = tiny.tokenizer()
    inner.chat_template = None
    llama = tiny_of("llama").model
    model = Model("base", llama.config, llama.weights, Tokenizer(inner))
    reply = [*model.tokenizer.encode(" it is fine"), *model.tokenizer.encode(tiny.EOS)]
    engine, chat = ScriptedEngine(model, [reply] * 3), Conversation(model)
    for turn in range(3):
        held = chat.cache.length
        stream = finish(chat.reply(engine, f"question {turn}", SHORT))
        assert stream.metrics().cached_tokens == held
    assert stream.prompt_text.startswith(
        "User: question 0\nAssistant: it is fine\nUser: question 1"
    )


# --- what was heard ---


def test_only_what_was_heard_stays(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    finish(chat.reply(engine, "hello", SHORT))
    stream = finish(chat.reply(engine, "go on", SamplingParams(max_tokens=12)))
    heard = stream.text[: len(stream.text) // 2]
    chat.keep_heard(heard)
    assert chat.messages[-1] == {"role": "assistant", "content": heard}
    expected = rendered(chat, "why")
    after = finish(chat.reply(engine, "why", SHORT))
    assert f"assistant\n{heard}<|im_end|>" in after.prompt_text
    assert chat.model.tokenizer.decode(after.prompt_ids) == chat.model.tokenizer.decode(expected)
    assert len(stream.prompt_ids) <= after.metrics().cached_tokens < len(after.prompt_ids)


def test_an_interruption_keeps_the_cache_of_earlier_turns(smollm2: Model) -> None:
    """Also where an earlier reply would be encoded otherwise than it was fed."""
    tokenizer = smollm2.tokenizer
    end = tokenizer.encode(IM_END)
    spelled = [i for char in "a clock ticks" for i in tokenizer.encode(char)]
    replies = [spelled + end, tokenizer.encode("It strikes twelve") + end, end]
    engine, chat = ScriptedEngine(smollm2, replies), Conversation(smollm2, 1024)
    finish(chat.reply(engine, "one", SHORT))
    second = finish(chat.reply(engine, "two", SHORT))
    chat.keep_heard("It strikes")
    third = finish(chat.reply(engine, "three", SHORT))
    assert third.metrics().cached_tokens == len(second.prompt_ids) + 2


def test_nothing_heard_and_nothing_said(long_llama: Model) -> None:
    chat = Conversation(long_llama)
    chat.keep_heard("nothing yet")
    assert chat.messages == []
    finish(chat.reply(EagerEngine(long_llama), "hello", SHORT))
    chat.keep_heard("")
    assert chat.messages[-1]["content"] == ""
    assert finish(chat.reply(EagerEngine(long_llama), "hello?", SHORT)).metrics().tokens == 6


def test_stopping_keeps_what_was_said_so_far(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    stream = chat.reply(engine, "hello", SamplingParams(max_tokens=100))
    for delta in stream:
        if delta.token and len(stream.generated_ids) == 3:
            stream.stop()
    assert stream.metrics().finish_reason == "stopped"
    assert 3 <= stream.metrics().tokens <= 4
    assert chat.messages[-1]["content"] == stream.text
    following = finish(chat.reply(engine, "go on", SHORT))
    assert following.metrics().cached_tokens >= len(stream.prompt_ids) + 2


def test_leaving_the_loop_ends_the_reply(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    stream = chat.reply(engine, "hello", SamplingParams(max_tokens=100))
    deltas = iter(stream)
    first = next(deltas)
    deltas.close()  # type: ignore[attr-defined]
    assert chat.messages[-1]["content"] == first.text == stream.text
    assert stream.metrics().finish_reason == "stopped" and stream.metrics().tokens == 1
    assert list(stream) == [] and len(chat.messages) == 2  # over: a second loop adds nothing


def test_stop_text_and_metrics_from_another_thread(long_llama: Model) -> None:
    chat = Conversation(long_llama)
    stream = chat.reply(EagerEngine(long_llama), "hello", SamplingParams(max_tokens=1500))
    some = threading.Event()
    seen: list[int] = []

    def watch() -> None:
        assert some.wait(60)
        before = stream.metrics()
        seen.append(before.tokens)
        assert before.as_dict()["tokens"] == before.tokens
        assert stream.text
        stream.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in stream:
        if len(stream.generated_ids) >= 5:
            some.set()
    watcher.join(60)
    assert seen and 5 <= seen[0] <= stream.metrics().tokens < 1500
    assert stream.metrics().finish_reason == "stopped"


# --- thinking and stop strings ---


def test_thinking_is_no_part_of_the_message(long_llama: Model) -> None:
    tokenizer = long_llama.tokenizer
    reply = tokenizer.encode("<think>the weather</think>fine") + tokenizer.encode(IM_END)
    engine, chat = ScriptedEngine(long_llama, [reply, reply]), Conversation(long_llama)
    stream = finish(chat.reply(engine, "hello", SHORT))
    assert stream.text == chat.messages[-1]["content"] == "fine"
    assert stream.metrics().tokens == len(reply)
    second = finish(chat.reply(engine, "and now", SHORT))
    assert "weather" not in second.prompt_text
    assert second.metrics().cached_tokens == len(stream.prompt_ids)


def test_a_stop_string_is_no_part_of_the_message(long_llama: Model) -> None:
    tokenizer = long_llama.tokenizer
    reply = tokenizer.encode("fine today\nuser: and") + tokenizer.encode(IM_END)
    engine, chat = ScriptedEngine(long_llama, [reply, reply]), Conversation(long_llama)
    stream = finish(chat.reply(engine, "hello", SHORT, stops=["\nuser:"]))
    assert stream.text == chat.messages[-1]["content"] == "fine today"
    second = finish(chat.reply(engine, "and now", SHORT))
    assert second.prompt_text.count("user:") == 0
    assert second.metrics().cached_tokens >= len(stream.prompt_ids)


# --- the context's limit ---


def test_a_full_context_trims_the_oldest_turns_and_says_so(long_llama: Model) -> None:
    engine = EagerEngine(long_llama)
    chat = Conversation(long_llama, context=256, system="Never forget this.")
    trims, kept = [], 0
    for turn in range(30):
        stream = finish(chat.reply(engine, f"question {turn} about the weather", SHORT))
        metrics = stream.metrics().as_dict()
        trims.append(metrics["trimmed_turns"])
        kept += 1 - trims[-1]
        assert len(chat.messages) == 2 * kept
        assert metrics["prompt_tokens"] + metrics["tokens"] <= 256
        assert "Never forget this." in stream.prompt_text
        assert stream.prompt_text.count("<|im_start|>user") == kept
        if not trims[-1] and turn:  # the turn after a trim is cheap again
            assert metrics["prefill_tokens"] < 60
    assert sum(trims) > 10
    # Each trim costs a prefill of all that is left, so few trims must do.
    assert sum(trim > 0 for trim in trims) <= sum(trims) / 2


def test_a_message_too_long_for_the_context(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, context=256)
    finish(chat.reply(engine, "hello", SHORT))
    messages, held = list(chat.messages), list(chat.cache.token_ids)
    with pytest.raises(UnpausedError, match=r"takes \d+ tokens and the context has room for 250"):
        chat.reply(engine, "very " * 300 + "long", SHORT)
    assert chat.messages == messages and chat.cache.token_ids == held
    assert finish(chat.reply(engine, "short", SHORT)).metrics().trimmed_turns == 0


def test_a_long_message_is_answered_alone_rather_than_refused(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, context=256)
    for turn in range(4):
        finish(chat.reply(engine, f"question {turn}", SHORT))
    room = 250 - len(rendered(Conversation(long_llama), ""))
    stream = finish(chat.reply(engine, "!" * (room - 5), SHORT))
    assert stream.metrics().trimmed_turns == 4 and stream.metrics().tokens == 6
    assert len(chat.messages) == 2


def test_a_reply_that_fills_the_context(long_llama: Model) -> None:
    chat = Conversation(long_llama, context=64)
    stream = finish(chat.reply(EagerEngine(long_llama), "hello", SamplingParams(max_tokens=500)))
    assert stream.metrics().finish_reason == "context" and chat.cache.free == 0
    following = finish(chat.reply(EagerEngine(long_llama), "hello", SHORT))
    assert following.metrics().trimmed_turns == 1 and following.metrics().tokens == 6


# --- refusals and faults ---


def test_refusals(tiny_of: TinyFactory, long_llama: Model) -> None:
    chat = Conversation(long_llama)
    with pytest.raises(UnpausedError, match=r"engine eager runs qwen2, but this .* long_llama"):
        chat.reply(EagerEngine(tiny_of("qwen2").model), "hello", SHORT)
    for text in ("", "  \n"):
        with pytest.raises(UnpausedError, match="nothing to answer"):
            chat.reply(EagerEngine(long_llama), text, SHORT)
    with pytest.raises(UnpausedError, match="2 positions or more; got 1"):
        Conversation(long_llama, context=1)
    assert chat.messages == [] and chat.cache.length == 0


class FaultyEngine(EagerEngine):
    """Fails at the third forward pass of a reply."""

    passes = 0

    def step(self, cache: Any, token_ids: Any) -> torch.Tensor:
        self.passes += 1
        if self.passes == 3:
            raise RuntimeError("the device fell over")
        return super().step(cache, token_ids)


@pytest.mark.parametrize("context", [1024, 200])
def test_a_fault_leaves_the_conversation_as_it_was(long_llama: Model, context: int) -> None:
    """Also when the failed turn would have trimmed older ones."""
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, context)
    while not chat.cache.length > 120:
        finish(chat.reply(engine, "a question about the weather", SHORT))
    messages = list(chat.messages)
    stream = chat.reply(FaultyEngine(long_llama), "and the next of them " * 8, SHORT)
    with pytest.raises(RuntimeError, match="fell over"):
        finish(stream)
    assert (stream.metrics().trimmed_turns > 0) == (context == 200)
    assert chat.messages == messages
    expected = rendered(chat, "go on")
    again = finish(chat.reply(engine, "go on", SHORT))
    fresh = engine.decode(long_llama.new_cache(), again.prompt_ids, SHORT)
    assert [token.id for token in fresh] == again.generated_ids
    if not again.metrics().trimmed_turns:
        tokenizer = chat.model.tokenizer
        assert tokenizer.decode(again.prompt_ids) == tokenizer.decode(expected)


# --- memory ---


def live_tensor_bytes() -> int:
    gc.collect()
    return sum(t.nbytes for t in gc.get_objects() if type(t) is torch.Tensor)


def test_fifty_turns_take_no_more_memory_than_five(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, context=512)
    params = SamplingParams(max_tokens=3)
    places = (chat.cache.k.data_ptr(), chat.cache.v.data_ptr())
    after = {}
    for turn in range(1, 51):
        finish(chat.reply(engine, f"question {turn}", params))
        assert (chat.cache.k.data_ptr(), chat.cache.v.data_ptr()) == places
        if turn in (5, 50):
            after[turn] = live_tensor_bytes()
    assert after[50] == after[5]
    assert len(chat.messages) < 60 and len(chat._known_text) < 5000  # the text is bounded too


class LargestOutput(TorchDispatchMode):
    """Notes the largest tensor that any operation makes anew."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and not func._schema.name.endswith("_"):
            made = result if isinstance(result, tuple | list) else (result,)
            sizes = [t.nbytes for t in made if isinstance(t, torch.Tensor)]
            self.nbytes = max([self.nbytes, *sizes])
        return result


def test_decoding_a_token_copies_no_keys_or_values(long_llama: Model) -> None:
    engine, cache = EagerEngine(long_llama), long_llama.new_cache()
    engine.prefill(cache, random_ids(2000))
    with LargestOutput() as largest:
        engine.step(cache, [1])
    held_bytes = cache.k[0, :, : cache.length].nbytes  # one layer's keys
    assert largest.nbytes * 10 < held_bytes
