"""The host's side of a resident engine's mailbox."""

from __future__ import annotations

import os
import threading

from engine import mailbox as mb
from engine.base import Token


def test_tokens_are_read_once_and_whole() -> None:
    box = mb.Mailbox(4)
    box.slots[0, :2], box.logprobs[0, 2] = (7, 10**18), -0.25
    box.slots[1, :2], box.logprobs[1, 2] = (8, 10**18 + 1), -1.5
    assert list(box.tokens(0)) == []
    box.words[mb.PUBLISHED] = 2
    assert list(box.tokens(0)) == [Token(7, 10**18, -0.25), Token(8, 10**18 + 1, -1.5)]
    assert [token.id for token in box.tokens(1)] == [8]


def test_words_have_places_of_their_own() -> None:
    names = [
        value for name, value in vars(mb).items()
        if name.isupper() and isinstance(value, int) and not name.startswith("_")
    ]  # fmt: skip
    assert max(names) == mb.WORDS
    contended = [mb.PUBLISHED, mb.STATE, mb.DONE, mb.IDLE]
    assert len({word // 8 for word in contended}) == len(contended), "a cache line each"


def test_a_bell_wakes_once_for_what_has_rung() -> None:
    bell = mb.Bell()
    assert not bell.wait(0.0)
    for _ in range(100_000):  # more than a pipe holds: never blocks
        bell.ring()
    while bell.wait(0.0):
        pass
    threading.Timer(0.01, bell.ring).start()
    assert bell.wait(20.0)
    bell.close()
    bell.close()


def test_closing_a_bell_ends_a_blocked_reader() -> None:
    bell = mb.Bell()
    ended = threading.Event()

    def read() -> None:
        if os.read(bell.read_fd, 1) == b"":
            ended.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    os.close(bell.write_fd)
    assert ended.wait(20)
    os.close(bell.read_fd)


def test_an_end_is_told_only_to_who_has_every_token() -> None:
    box = mb.Mailbox(4)
    assert box.ended(0) == mb.RUNNING
    box.words[mb.FINISH] = mb.pack_finish(mb.EOS, 2)
    assert [box.ended(taken) for taken in range(3)] == [mb.RUNNING, mb.RUNNING, mb.EOS]
