from __future__ import annotations

import threading

import pytest

from audio.mailbox import Mailbox

WAIT_S = 10.0


def run(*works: object) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for work in works]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_in_order_to_the_end() -> None:
    mailbox: Mailbox[int] = Mailbox(4)

    def write() -> None:
        for item in range(1000):
            mailbox.put(item)
        mailbox.finish()

    threads = run(write)
    found = []
    while (item := mailbox.get()) is not None:
        found.append(item)
        assert len(mailbox._items) <= 4
    join(threads)
    assert found == list(range(1000))
    assert mailbox.get() is None


def test_it_ends_with_the_last_of_its_writers() -> None:
    mailbox: Mailbox[int] = Mailbox(4, writers=2)
    mailbox.finish()
    mailbox.put(1)
    mailbox.finish()
    assert [mailbox.get(), mailbox.get()] == [1, None]


@pytest.mark.parametrize("writers", [1, 3])
def test_hurry_frees_writers_and_keeps_the_bound(writers: int) -> None:
    mailbox: Mailbox[int] = Mailbox(4, writers)

    def write() -> None:
        for item in range(100):
            mailbox.put(item)
        mailbox.finish()

    threads = run(*[write] * writers)
    mailbox.hurry()
    join(threads)
    found = []
    while (item := mailbox.get()) is not None:
        found.append(item)
    assert 4 < len(found) <= 8 and found[0] == 0
