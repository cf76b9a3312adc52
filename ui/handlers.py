"""What the page's controls do. Imports Gradio, so the page imports this late."""

from __future__ import annotations

import html
import time
from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from ui.session import Session, View
from ui.visitors import Visitors
from ui.words import sentence

UPDATE_S = 0.05  # between two updates of the conversation; more would reach the screen later
FOLLOW_S = 1.0  # between two looks at a silent turn

Update = tuple[Any, Any, Any]  # of conversation, prompt, notice
NO_CHANGE = gr.skip()


class Handlers:
    """Every handler finds its session by the id in Gradio's state and shows faults as notices."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        self._by_tab: dict[str | None, str] = {}  # Gradio's name of a tab to the session's id

    def open(self, request: gr.Request) -> Update:
        """The page was loaded: (session id, the voice controls' value, notice)."""
        self.unload(request)
        try:
            session = self._visitors.open()
        except UnpausedError as error:
            return "", "", _notice(str(error))
        self._by_tab[request.session_hash] = session.id
        return session.id, session.id, ""

    def unload(self, request: gr.Request) -> None:
        """The tab was closed or reloaded: its turn ends."""
        session_id = self._by_tab.pop(request.session_hash, None)
        if session_id is not None:
            self._visitors.close(session_id)

    def answer(self, session_id: str, text: str) -> Iterator[Update]:
        """Answer typed text. When that cannot begin, the text stays in the box."""
        try:
            session = self._session(session_id)
            turn = session.start_text(text)
        except UnpausedError as error:
            yield NO_CHANGE, NO_CHANGE, _notice(str(error))
            return
        yield _messages(session.view()), "", ""
        yield from self._updates(session, turn)

    def follow(self, session_id: str) -> Iterator[Update]:
        """Show a spoken turn that has begun."""
        session = self._open_session(session_id)
        yield from self._updates(session, session.view().turn)

    def stop(self, session_id: str) -> None:
        self._open_session(session_id).stop()

    def choose_engine(self, session_id: str, name: str) -> tuple[Any, str]:
        """The engine of the next turn: (selector, what it is or why not)."""
        session = self._open_session(session_id)
        try:
            session.set_engine(name)
        except UnpausedError as error:
            return session.engine_name, _notice(str(error))
        entries = self._visitors.runtime.services.engines
        entry = next(entry for entry in entries if entry.name == name)
        return NO_CHANGE, f'<p class="about">{html.escape(f"{entry.label}: {entry.summary}.")}</p>'

    def begin_anew(self, session_id: str) -> tuple[list[dict[str, str]], str]:
        self._open_session(session_id).new_conversation()
        return [], ""

    def _session(self, session_id: str) -> Session:
        session = self._visitors.get(session_id)
        if session is None:
            raise UnpausedError("This page was left alone for too long. Please reload it.")
        return session

    def _open_session(self, session_id: str) -> Session:
        try:
            return self._session(session_id)
        except UnpausedError as error:
            raise gr.Error(sentence(str(error)), print_exception=False) from None

    def _updates(self, session: Session, turn: int) -> Iterator[Update]:
        """Follow `turn` to its end. Whoever stops following has left: then the turn ends too."""
        view, shown = session.view(), -1
        followed = False
        try:
            while True:
                if view.version != shown:
                    shown = view.version
                    restored = view.failed_text or NO_CHANGE
                    yield _messages(view), restored, NO_CHANGE
                    time.sleep(UPDATE_S)
                if view.turn != turn or not view.running:
                    followed = True
                    return
                view = session.wait(shown, FOLLOW_S)
        finally:
            if not followed:
                session.stop(turn)


def _messages(view: View) -> list[dict[str, str]]:
    """As the chatbot wants them. It renders HTML, which what a person wrote is not."""
    return [
        {**message, "content": html.escape(message["content"], quote=False)}
        if message["role"] == "user"
        else message
        for message in view.messages
    ]


def _notice(text: str) -> str:
    return f'<p role="alert">{html.escape(sentence(text))}</p>'
