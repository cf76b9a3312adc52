"""What is done for one reply, in order, beside the dialogue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from audio.events import TurnFailed
from audio.rounds import Parts, Request, Round
from engine.errors import UnpausedError

logger = logging.getLogger(__name__)

OpenTurn = Callable[[Request], AbstractContextManager["Parts | None"]]

DEFECT = "something went wrong inside; the log has the details"
STOP_WAIT_S = 10.0  # a stopped reply ends within a token; past this something is wedged
ENDED = object()  # the last thing that is delivered


def reply_work(
    round_: Round,
    before: Round | None,
    open_turn: OpenTurn,
    lock: AbstractContextManager[object],
) -> Iterator[object]:
    """The round's `Parts`, its turn's events, `ENDED`. Never raises: faults are `TurnFailed`.

    It waits for the work of the round before, and for what `open_turn` waits for. `lock` is the
    dialogue's.
    """
    try:
        _await(before, lock)
        with open_turn(round_.request) as parts:
            if parts is not None and _adopt(round_, parts, lock):
                yield parts
                assert round_.turn is not None
                yield from round_.turn
    except UnpausedError as error:
        yield TurnFailed(str(error))
    except Exception:
        logger.exception("a reply failed")
        yield TurnFailed(DEFECT)
    finally:
        round_.ended.set()
    yield ENDED


def _await(before: Round | None, lock: AbstractContextManager[object]) -> None:
    """The conversation knows all of the round before, once its work has ended."""
    if before is None:
        return
    if not before.ended.wait(STOP_WAIT_S):
        raise UnpausedError("the turn before this one did not stop; please try again")
    with lock:
        if before.begun:
            before.settle()


def _adopt(round_: Round, parts: Parts, lock: AbstractContextManager[object]) -> bool:
    """Begin the turn, unless it was stopped meanwhile."""
    with lock:
        if round_.request.stopped:
            return False
        round_.parts = parts
        round_.turn = parts.begin(round_.text or "")
        return True
