"""The other end, for tests: of a session's socket, and of a server that may be busy."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import numpy as np

from ui.session import Session

get, post = partial(httpx.get, timeout=60), partial(httpx.post, timeout=60)
SPEECH = np.ones(16000, np.float32)


class Client:
    """The socket's end of a session."""

    def __init__(self, session: Session, sound: bool = True) -> None:
        self.session = session
        self.events: list[dict[str, Any]] = []
        self.pcm: dict[int, bytes] = {}
        session.attach(self.wake)
        session.set_sound(sound)

    def wake(self) -> None:
        pass

    def receive(self) -> None:
        for message in self.session.outgoing():
            if isinstance(message, bytes):
                turn = int.from_bytes(message[4:8], "little")
                self.pcm[turn] = self.pcm.get(turn, b"") + message[8:]
            else:
                self.events.append(message)

    def of(self, kind: str) -> list[dict[str, Any]]:
        self.receive()
        return [event for event in self.events if event["type"] == kind]


def run(session: Session) -> None:
    assert session.wait_idle(60)


def contents(session: Session) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in session.view().messages]
