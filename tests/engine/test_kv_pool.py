"""The bound on KV caches: who gives way, and that what is passed on is empty."""

from __future__ import annotations

import gc

import pytest

from engine.conversation import Conversation
from engine.eager import EagerEngine
from engine.errors import PromptTooLong
from engine.kv_pool import KVPool
from engine.models.base import Model
from engine.sampling import SamplingParams

SHORT = SamplingParams(max_tokens=6)


def say(pool: KVPool, engine: EagerEngine, chat: Conversation, text: str) -> tuple[str, int]:
    """(the reply, prompt tokens that were found in the cache)."""
    pool.use(chat)
    stream = chat.reply(engine, text, SHORT)
    for _ in stream:
        pass
    return stream.text, stream.metrics().cached_tokens


def test_the_longest_unused_gives_way_and_answers_the_same_when_it_comes_back(
    long_llama: Model,
) -> None:
    engine, pool = EagerEngine(long_llama), KVPool(limit=2)
    alone = Conversation(long_llama, 256)
    wanted = [say(KVPool(), engine, alone, f"question {turn}") for turn in range(2)]
    assert wanted[1][1] > 0
    chats = [Conversation(long_llama, 256) for _ in range(3)]
    for number, chat in enumerate(chats):
        assert say(pool, engine, chat, "question 0") == (wanted[0][0], 0), number
    assert (pool.held, pool.evictions) == (2, 1)
    assert [chat.cache.max_positions for chat in chats] == [1, 256, 256]
    text, cached = say(pool, engine, chats[0], "question 1")
    assert (text, cached) == (wanted[1][0], 0)  # recomputed, not lost
    assert [chat.cache.max_positions for chat in chats] == [256, 1, 256]
    assert say(pool, engine, chats[2], "question 1") == wanted[1]  # its cache was kept


def test_a_cache_that_is_passed_on_is_empty_and_the_same_memory(long_llama: Model) -> None:
    engine, pool = EagerEngine(long_llama), KVPool(limit=1)
    first, second = Conversation(long_llama, 128), Conversation(long_llama, 128)
    say(pool, engine, first, "hello")
    say(pool, engine, second, "hello")
    memory = second.cache.k.data_ptr()
    pool.use(first)
    assert first.cache.k.data_ptr() == memory and first.cache.length == 0
    assert second.cache.max_positions == 1


def test_caches_of_other_sizes_are_not_mixed_up(long_llama: Model) -> None:
    engine, pool = EagerEngine(long_llama), KVPool(limit=1)
    small, large = Conversation(long_llama, 128), Conversation(long_llama, 300)
    for chat in (small, large, small, large):
        say(pool, engine, chat, "hello")
    assert (small.cache.max_positions, large.cache.max_positions) == (1, 300)


def test_a_dropped_conversation_takes_its_cache_along(long_llama: Model) -> None:
    pool = KVPool(limit=2)
    chats = [Conversation(long_llama, 64) for _ in range(2)]
    for chat in chats:
        pool.use(chat)
    del chat
    chats.pop()
    gc.collect()
    assert pool.held == 1
    pool.use(Conversation(long_llama, 64))
    assert pool.evictions == 0


def test_who_gives_its_cache_up_may_come_back(long_llama: Model) -> None:
    engine, pool = EagerEngine(long_llama), KVPool()
    chat = Conversation(long_llama, 128)
    first = say(pool, engine, chat, "hello")
    pool.release(chat)
    assert (pool.held, chat.cache.max_positions) == (0, 1)
    pool.release(chat)
    chat.clear()
    assert say(pool, engine, chat, "hello") == first
    assert (pool.held, pool.evictions) == (1, 0)


def test_a_reply_may_refuse_to_leave_turns_out(long_llama: Model) -> None:
    engine, chat = EagerEngine(long_llama), Conversation(long_llama, 128)
    chat.messages += [
        {"role": role, "content": "one two three " * 20} for role in ("user", "assistant")
    ] * 3
    with pytest.raises(PromptTooLong, match="the context has room for"):
        chat.reply(engine, "and?", SHORT, trims=False)
    assert chat.reply(engine, "and?", SHORT).metrics().trimmed_turns > 0
