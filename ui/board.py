"""What the page shows of one conversation, and how it learns that this has changed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

MAX_SHOWN = 400  # messages kept on the page

Message = dict[str, str]  # {"role", "content"}, and "label" where an answer has its figures


@dataclass(frozen=True)
class View:
    """What the page shows at `version`, and how the latest turn is doing.

    `failed_text` is what was typed when the last turn failed before it answered anything.
    """

    version: int
    messages: list[Message]
    turn: int
    running: bool
    failed_text: str


class Board:
    """The messages. Whoever calls anything here holds `changed`, which guards them."""

    def __init__(self, changed: threading.Condition) -> None:
        self.changed = changed
        self.version = 0
        self.messages: list[Message] = []

    def bump(self) -> None:
        """Something the page shows is different."""
        self.version += 1
        self.changed.notify_all()

    def clear(self) -> None:
        """Begin a new list: turns under way go on writing into the old one."""
        self.messages = []
        self.bump()

    def add(self, log: list[Message], role: str, content: str) -> Message:
        """Append to `log`, which may be a list from before `clear`."""
        message = {"role": role, "content": content}
        log.append(message)
        del log[:-MAX_SHOWN]
        self.bump()
        return message

    def copy(self) -> list[Message]:
        return [dict(message) for message in self.messages]
