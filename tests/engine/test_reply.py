"""Hidden tokens before a reply, and a reply asked for again."""

from __future__ import annotations

import pytest

from engine.conversation import Conversation, ReplyStream
from engine.eager import EagerEngine
from engine.errors import UnpausedError
from engine.models.base import Model
from engine.reply import MAX_HIDDEN_TOKENS
from engine.sampling import SamplingParams
from engine.tokenizer import Tokenizer
from tests.engine import tiny
from tests.engine.scripted import ScriptedEngine

SHORT = SamplingParams(max_tokens=6)
# As Qwen3's: without thinking, the prompt already holds an empty thought.
THINKING = tiny.CHAT_TEMPLATE + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)


def finish(stream: ReplyStream) -> ReplyStream:
    for _ in stream:
        pass
    return stream


@pytest.fixture
def thinker(long_llama: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    inner = tiny.tokenizer()
    inner.chat_template = THINKING
    made = Tokenizer(inner)
    monkeypatch.setattr(Model, "tokenizer", property(lambda self: made))
    return long_llama


# --- a model without thinking of its own ---


def test_a_hidden_draft_costs_tokens_and_changes_no_word(long_llama: Model) -> None:
    engine = EagerEngine(long_llama)
    at_once, later = Conversation(long_llama), Conversation(long_llama)
    assert not later.thinks
    later.hidden_tokens = 20
    for question in ("hello there", "and you?"):
        plain = finish(at_once.reply(engine, question, SHORT))
        thought = finish(later.reply(engine, question, SHORT))
        assert thought.generated_ids == plain.generated_ids and thought.text == plain.text
        figures = thought.metrics()
        assert figures.tokens == 26 and figures.hidden_tokens == 20
        times = figures.token_times_ns
        assert figures.hidden_ms == (times[20] - times[0]) / 1e6 > 0
        assert plain.metrics().hidden_ms == 0 == plain.metrics().hidden_tokens
        assert figures.launches > plain.metrics().launches
        assert figures.cached_tokens == plain.metrics().cached_tokens  # the draft left no trace
        assert [delta.thinking for delta in thought.deltas if delta.token] == [True] * 20 + [
            False
        ] * 6


def test_a_draft_goes_on_past_an_end_marker(long_llama: Model) -> None:
    end = long_llama.tokenizer.encode(tiny.IM_END)
    draft, answer = end * 4, [*long_llama.tokenizer.encode("yes"), *end]
    engine, chat = ScriptedEngine(long_llama, [draft, answer]), Conversation(long_llama)
    chat.hidden_tokens = 4
    stream = finish(chat.reply(engine, "hello", SHORT))
    assert stream.text == "yes" and stream.metrics().hidden_tokens == 4
    assert engine.fed[1] == stream.prompt_ids[-1:]


def test_stopped_while_it_thinks_it_says_nothing(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    chat.hidden_tokens = 400
    stream = chat.reply(engine, "hello", SHORT)
    for delta in stream:
        assert delta.thinking
        stream.stop()
    assert stream.text == "" and stream.metrics().finish_reason == "stopped"
    assert stream.metrics().hidden_ms >= 0
    chat.hidden_tokens = 0
    assert finish(chat.reply(engine, "hello again", SHORT)).metrics().tokens == 6


def test_a_stop_string_that_the_last_token_completes_is_what_ended_the_reply(
    long_llama: Model,
) -> None:
    ids = long_llama.tokenizer.encode("one two")
    chat = Conversation(long_llama)
    for stops, reason, text in ((["two"], "stopped", "one "), (["three"], "length", "one two")):
        engine = ScriptedEngine(long_llama, [ids])
        stream = finish(chat.reply(engine, "hello", SHORT, stops))
        assert stream.metrics().finish_reason == reason and stream.text == text


@pytest.mark.parametrize("count", [-1, MAX_HIDDEN_TOKENS + 1])
def test_more_than_the_limit_is_refused_before_any_work(long_llama: Model, count: int) -> None:
    chat = Conversation(long_llama)
    chat.hidden_tokens = count
    with pytest.raises(UnpausedError, match="hidden tokens"):
        chat.reply(EagerEngine(long_llama), "hello", SHORT)
    assert chat.cache.length == 0


def test_room_is_kept_for_the_hidden_tokens(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, 256)
    chat.hidden_tokens = 100
    for _ in range(6):
        stream = finish(chat.reply(engine, "what will the weather be tomorrow?", SHORT))
        assert stream.metrics().finish_reason == "length"
        assert len(stream.prompt_ids) + 100 <= 256


# --- a model with thinking of its own ---


def test_a_model_that_thinks_uses_its_own_thinking_and_is_made_to_answer(thinker: Model) -> None:
    encode = thinker.tokenizer.encode
    thoughts = [*encode("<think>"), *encode("well, let me see")][:5]
    answer = [*encode("yes"), *encode(tiny.IM_END)]
    engine = ScriptedEngine(thinker, [thoughts, answer])
    chat = Conversation(thinker, enable_thinking=False)
    chat.hidden_tokens = 5
    stream = finish(chat.reply(engine, "hello", SHORT))
    assert chat.thinks and stream.prompt_text.endswith("assistant\n")
    assert engine.fed[1] == [thoughts[-1], *encode("\n</think>\n\n")]
    assert stream.text == "yes" == chat.messages[-1]["content"]
    assert stream.metrics().hidden_tokens == 5


def test_thoughts_that_end_by_themselves_are_counted_as_they_are(thinker: Model) -> None:
    encode = thinker.tokenizer.encode
    thoughts = [*encode("<think>"), *encode("hm"), *encode("</think>")]
    engine = ScriptedEngine(thinker, [thoughts, encode("yes")])
    chat = Conversation(thinker, enable_thinking=False)
    chat.hidden_tokens = 300
    stream = finish(chat.reply(engine, "hello", SHORT))
    assert engine.fed[1] == encode("\n</think>\n\n")  # the marker itself was never fed
    assert stream.text == "yes" and stream.metrics().hidden_tokens == len(thoughts)


def test_without_hidden_tokens_nothing_of_the_prompt_changes(thinker: Model) -> None:
    chat = Conversation(thinker, enable_thinking=False)
    stream = finish(chat.reply(EagerEngine(thinker), "hello", SHORT))
    assert stream.prompt_text.endswith("<think>\n\n</think>\n\n")


# --- again ---


def test_again_is_the_same_prompt_seed_and_cache_and_stays_outside(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    other = EagerEngine(long_llama)
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=8)
    finish(chat.reply(engine, "hello", params))
    second = finish(chat.reply(engine, "and you?", params))
    assert chat.last is second
    messages = [dict(message) for message in chat.messages]
    for _ in range(2):
        again = finish(chat.again(other, second))
        assert again.generated_ids == second.generated_ids and again.text == second.text
        assert again.metrics().cached_tokens == second.metrics().cached_tokens
        assert again.prompt_ids == second.prompt_ids
        assert chat.messages == messages and chat.last is second
    third = finish(chat.reply(engine, "go on", params))
    fresh = [t.id for t in engine.decode(long_llama.new_cache(), third.prompt_ids, params)]
    assert third.generated_ids == fresh


def test_a_question_aside_leaves_the_conversation_alone(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    first = finish(chat.reply(engine, "hello", SHORT))
    aside = finish(chat.reply(engine, "what do you see?", SHORT, joins=False))
    assert aside.text and len(chat.messages) == 2 and chat.last is first
    once_more = finish(chat.again(engine, aside))
    assert once_more.generated_ids == aside.generated_ids
    assert once_more.metrics().cached_tokens == aside.metrics().cached_tokens


def test_again_hides_as_many_tokens(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama)
    chat.hidden_tokens = 12
    first = finish(chat.reply(engine, "hello", SHORT))
    chat.hidden_tokens = 0
    again = finish(chat.again(engine, first))
    assert again.metrics().hidden_tokens == 12 and again.generated_ids == first.generated_ids


def test_clearing_forgets_what_could_be_asked_again(long_llama: Model) -> None:
    chat = Conversation(long_llama)
    finish(chat.reply(EagerEngine(long_llama), "hello", SHORT))
    chat.clear()
    assert chat.last is None
