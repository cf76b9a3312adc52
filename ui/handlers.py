"""What happens when the page is opened or closed, and in its header. Imports Gradio."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from engine.registry import PERSISTENT
from ui.handling import NO_CHANGE, notice, open_session
from ui.lab_panels import exports
from ui.settings import Settings, read_settings, rivals
from ui.visitors import Visitors

Update = tuple[Any, ...]


class Handlers:
    """Every handler finds its session by the id in Gradio's state and shows faults as notices."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        self._by_tab: dict[str | None, str] = {}  # Gradio's name of a tab to the session's id
        services = visitors.runtime.services
        self._engines = [entry.name for entry in services.engines if entry.unavailable() is None]
        here = PERSISTENT.unavailable() is None
        self._aliases = {PERSISTENT.name: PERSISTENT.choose()} if here else {}

    def open(self, request: gr.Request) -> Update:
        """The page was loaded, with settings in its address.

        Gives (session id, voice, notice, exports, engine, engine to repeat on, hidden tokens, tab,
        speed, the engines of the race and of the blind test).
        """
        self.unload(request)
        settings = read_settings(dict(request.query_params), self._engines, self._aliases)
        try:
            session = self._visitors.open()
        except UnpausedError as error:
            return "", "", notice(str(error)), *[NO_CHANGE] * 10
        self._forget_lost_tabs()
        self._by_tab[request.session_hash] = session.id
        if settings.engine:
            session.set_engine(settings.engine)
        session.set_hidden_tokens(settings.hidden)
        told = notice("in the address, " + "; ".join(settings.ignored)) if settings.ignored else ""
        return session.id, session.id, told, exports(session.id), *self._set(settings)

    def _set(self, settings: Settings) -> Update:
        a, b = rivals(self._engines, settings)
        chosen = settings.engine or self._visitors.runtime.services.default_engine
        other = next((name for name in self._engines if name != chosen), chosen)
        tab = gr.Tabs(selected=settings.view)
        return chosen, other, settings.hidden, tab, settings.speed, a, b, a, b

    def _forget_lost_tabs(self) -> None:
        """Of tabs that were closed before they were connected nobody hears again."""
        for tab, session_id in list(self._by_tab.items()):
            if self._visitors.get(session_id) is None:
                self._by_tab.pop(tab, None)

    def unload(self, request: gr.Request) -> None:
        """The tab was closed or reloaded: its turn ends."""
        session_id = self._by_tab.pop(request.session_hash, None)
        if session_id is not None:
            self._visitors.close(session_id)

    def choose_engine(self, session_id: str, name: str) -> Update:
        """The engine of the next turn: (selector, what it is or why not, engine to repeat on)."""
        session = open_session(self._visitors, session_id)
        before = session.engine_name
        try:
            session.set_engine(name)
        except UnpausedError as error:
            return session.engine_name, notice(str(error)), NO_CHANGE
        entries = self._visitors.runtime.services.engines
        entry = next(entry for entry in entries if entry.name == name)
        about = f'<p class="about">{html.escape(f"{entry.label}: {entry.summary}.")}</p>'
        return NO_CHANGE, about, before if before != name else NO_CHANGE

    def begin_anew(self, session_id: str) -> Update:
        """An empty conversation: (conversation, notice, comparison)."""
        open_session(self._visitors, session_id).new_conversation()
        return [], "", ""
