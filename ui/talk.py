"""The first tab: the conversation, the voice, the instruments, and again on another engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from engine.reply import MAX_HIDDEN_TOKENS
from ui import lab_panels, lanes, panels
from ui.handling import (
    AT_ONCE,
    NO_CHANGE,
    ONCE,
    QUIET,
    find_session,
    notice,
    open_session,
    progress,
)
from ui.messages import chat_messages
from ui.parts import lanes_view
from ui.session import Session
from ui.verdict import silence_before
from ui.visitors import Visitors

# Between two updates of the conversation. Each costs Gradio some 15 ms of processor time in server
# and browser, however short the news: 20 a second took a tenth of the engine's speed on two cores.
UPDATE_S, MAX_UPDATE_S = 0.2, 1.0
UPDATE_SHARE = 0.05  # of the time, at most, where a long conversation makes them dearer
FOLLOW_S = 1.0  # between two looks at a silent turn

Update = tuple[Any, ...]


class Talk:
    """The components, and what they do."""

    def __init__(self, visitors: Visitors, choices: Sequence[tuple[str, str]]) -> None:
        self._visitors = visitors
        self._labels = {name: label for label, name in choices}
        with gr.Column(elem_id="stage"):
            self.hint = gr.HTML(
                html_template=panels.HINT, js_on_load=panels.hint_script(), elem_id="hint"
            )
            self.conversation = gr.Chatbot(
                elem_id="conversation",
                label="Conversation",
                show_label=False,
                layout="panel",
                placeholder=panels.WELCOME,
                buttons=[],
                feedback_options=None,
                latex_delimiters=[],
                height=None,
            )
            self.duel = lanes_view("duel")
            with gr.Row(elem_id="again"):
                self.again = gr.Button("Again on", elem_id="again-button", size="sm")
                self.again_on = gr.Dropdown(
                    choices,
                    value=_other([name for _, name in choices], choices[0][1]),
                    label="Engine to repeat the last answer on",
                    show_label=False,
                    container=False,
                    elem_id="again-on",
                    interactive=True,
                )
        self._instruments()
        self._composer()

    def _instruments(self) -> None:
        with gr.Column(elem_id="instruments"):
            gr.HTML(
                html_template=panels.READINGS,
                js_on_load=panels.readings_script(),
                elem_id="readings",
                apply_default_css=False,
            )
            with gr.Accordion("Think before speaking", open=False, elem_id="thinking"):
                self.hidden = gr.Slider(
                    0,
                    MAX_HIDDEN_TOKENS,
                    value=0,
                    step=10,
                    precision=0,
                    label="Hidden tokens before the voice starts",
                    elem_id="hidden",
                    interactive=True,
                    buttons=[],
                )
                self.silence = gr.HTML(elem_id="silence")
            self.exports = gr.HTML("", elem_id="exports")

    def _composer(self) -> None:
        with gr.Column(elem_id="composer"):
            self.voice = gr.HTML(
                html_template=panels.VOICE,
                js_on_load=panels.voice_script(),
                elem_id="voice",
                apply_default_css=False,
            )
            self.notice = gr.HTML("", elem_id="notice")
            with gr.Row(elem_id="write"):
                self.prompt = gr.Textbox(
                    elem_id="prompt",
                    label="Message",
                    show_label=False,
                    placeholder="Or type a message",
                    lines=1,
                    max_lines=6,
                    autofocus=False,
                    container=False,
                )
                self.send = gr.Button("Send", elem_id="send", variant="primary", min_width=72)

    def connect(self, session: gr.State) -> None:
        """What happens when something is pressed."""
        shown = [self.conversation, self.prompt, self.notice, self.silence]
        asked = [session, self.prompt]
        self.send.click(self._answer, asked, shown, **AT_ONCE)
        self.prompt.submit(self._answer, asked, shown, **AT_ONCE)
        self.voice.follow_turn(self._follow, session, shown, **AT_ONCE)
        self.voice.stop_turn(self._stop, session, None, **QUIET)
        self.again.click(
            self._again, [session, self.again_on], [self.duel, self.notice, self.silence], **ONCE
        )
        self.hidden.input(
            self._think,
            [session, self.hidden],
            [self.silence, self.notice],
            js=panels.remember("hidden", 0),
            trigger_mode="always_last",
            **QUIET,
        )

    # What they do

    def _answer(self, session_id: str, text: str) -> Iterator[Update]:
        """Answer typed text. When that cannot begin, the text stays in the box."""
        try:
            session = find_session(self._visitors, session_id)
            turn = session.start_text(text)
        except UnpausedError as error:
            yield NO_CHANGE, NO_CHANGE, notice(str(error)), NO_CHANGE
            return
        view = session.view()
        yield chat_messages(view), "", "", NO_CHANGE
        yield from self._updates(session, turn, view.version)

    def _follow(self, session_id: str) -> Iterator[Update]:
        """Show a spoken turn that has begun."""
        session = open_session(self._visitors, session_id)
        yield from self._updates(session, session.view().turn)

    def _stop(self, session_id: str) -> None:
        open_session(self._visitors, session_id).stop()

    def _again(self, session_id: str, engine: str) -> Iterator[Update]:
        """The last answer once more, on `engine`, beside the first."""
        try:
            session = find_session(self._visitors, session_id)
            experiment = session.lab.again(engine)
            for words in progress(experiment):
                yield NO_CHANGE, words, NO_CHANGE
            pair = session.lab.keep(experiment)
        except UnpausedError as error:
            yield NO_CHANGE, notice(str(error)), NO_CHANGE
            return
        yield lanes.compared("again", pair, 0), "", self._silence(session)

    def _think(self, session_id: str, count: float) -> tuple[str, str]:
        """So many hidden tokens before the next answer: (what they cost, fault)."""
        session = open_session(self._visitors, session_id)
        try:
            session.set_hidden_tokens(int(count))
        except UnpausedError as error:
            return self._silence(session), notice(str(error))
        return self._silence(session), ""

    def _silence(self, session: Session) -> str:
        measured = self._visitors.runtime.pace_ms
        tpot_ms = {label: measured.get(name) for name, label in self._labels.items()}
        before = silence_before(session.hidden_tokens, tpot_ms) if session.hidden_tokens else []
        return lab_panels.silence(
            session.hidden_tokens, before, list(session.silences.values()), session.thinks
        )

    def _updates(self, session: Session, turn: int, shown: int = -1) -> Iterator[Update]:
        """Follow `turn` to its end. Whoever stops following has left: then the turn ends too.

        `shown` is the version of the board that the page shows already.
        """
        view = session.view()
        followed = False
        try:
            while True:
                if view.version != shown:
                    shown = view.version
                    restored = view.failed_text or NO_CHANGE
                    began_s = time.perf_counter()
                    yield chat_messages(view), restored, NO_CHANGE, NO_CHANGE
                    pause_s = (time.perf_counter() - began_s) / UPDATE_SHARE
                    session.wait_idle(min(max(UPDATE_S, pause_s), MAX_UPDATE_S))
                if view.turn != turn or not view.running:
                    followed = True
                    break
                view = session.wait(shown, FOLLOW_S)
        finally:
            if not followed:
                session.stop(turn)
        yield NO_CHANGE, NO_CHANGE, NO_CHANGE, self._silence(session)


def _other(names: Sequence[str], name: str) -> str:
    """An engine that is not `name`, where there is one."""
    return next((other for other in names if other != name), name)
