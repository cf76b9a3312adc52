"""What the handlers of all tabs share: finding the session, following a run, wording faults."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from engine.errors import UnpausedError
from ui.words import sentence

if TYPE_CHECKING:
    from ui.lab import Experiment
    from ui.session import Session
    from ui.visitors import Visitors

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
AT_ONCE: dict[str, Any] = {"trigger_mode": "multiple", **QUIET}
ONCE: dict[str, Any] = {"trigger_mode": "once", **QUIET}
NO_CHANGE = gr.skip()

GONE = "This page was left alone for too long. Please reload it."


def find_session(visitors: Visitors, session_id: str) -> Session:
    """Raises `UnpausedError` when it is gone."""
    session = visitors.get(session_id)
    if session is None:
        raise UnpausedError(GONE)
    return session


def open_session(visitors: Visitors, session_id: str) -> Session:
    """The same for handlers without a place of their own for a fault: Gradio shows it."""
    try:
        return find_session(visitors, session_id)
    except UnpausedError as error:
        raise gr.Error(sentence(str(error)), print_exception=False) from None


def notice(text: str) -> str:
    """A fault, where it happened."""
    return f'<p role="alert">{html.escape(sentence(text))}</p>' if text else ""


def remark(text: str) -> str:
    """A sentence that is no fault."""
    return f'<p class="about" role="status">{html.escape(text)}</p>' if text else ""


def progress(experiment: Experiment) -> Iterator[str]:
    """What an experiment is doing, whenever that changes, until it has ended.

    Whoever stops following has left: then it ends, too.
    """
    ended = False
    try:
        shown = ""
        while not experiment.ended():
            if (words := experiment.progress()) != shown:
                shown = words
                yield remark(words)
        ended = True
    finally:
        if not ended:
            experiment.runs.stop()
            experiment.worker.stop()
