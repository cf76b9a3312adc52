import threading

import pytest

from engine.errors import UnpausedError
from ui.gate import Gate


def test_the_first_comer_holds_the_gate_and_the_others_follow_in_order() -> None:
    gate = Gate()
    first, second, third = gate.enter(), gate.enter(), gate.enter()
    assert [ticket.wait() for ticket in (first, second, third)] == [0, 1, 2]
    first.leave()
    assert (second.wait(1), third.wait(2)) == (0, 1)
    second.leave()
    assert third.wait(1) == 0


def test_whoever_leaves_the_queue_makes_room() -> None:
    gate = Gate()
    first, second, third = gate.enter(), gate.enter(), gate.enter()
    second.cancel()
    assert second.wait() is None
    first.leave()
    assert third.wait(2) == 0


def test_cancelling_does_not_give_up_the_gate_itself() -> None:
    gate = Gate()
    first, second = gate.enter(), gate.enter()
    first.cancel()
    assert (first.wait(), second.wait()) == (0, 1)


def test_a_full_queue_refuses_in_words() -> None:
    gate = Gate(max_waiting=1)
    gate.enter()
    gate.enter()
    with pytest.raises(UnpausedError, match="1 visitors are already waiting"):
        gate.enter()


def test_never_two_at_once() -> None:
    gate = Gate(max_waiting=50)
    inside, most, order = 0, 0, []
    tickets = [gate.enter() for _ in range(20)]

    def work(number: int) -> None:
        nonlocal inside, most
        position: int | None = -1
        while position != 0:
            position = tickets[number].wait(position)
        inside += 1
        most = max(most, inside)
        order.append(number)
        inside -= 1
        tickets[number].leave()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1
    assert order == list(range(20))
