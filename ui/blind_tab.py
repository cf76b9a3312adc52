"""The blind test: two hidden runs, a choice, and how likely so many right ones are by chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from ui import lab_panels, lanes
from ui.blind import Choice, Trial
from ui.handling import NO_CHANGE, ONCE, find_session, notice, progress
from ui.parts import lanes_view
from ui.race_tab import PROMPT, engine_pair, remember_pair
from ui.visitors import Visitors

CHOICES: tuple[tuple[str, Choice], ...] = (
    ("A was faster", "A"),
    ("B was faster", "B"),
    ("Can't tell", "none"),
)


class BlindTab:
    """The components, and what they do."""

    def __init__(self, visitors: Visitors, choices: Sequence[tuple[str, str]]) -> None:
        self._visitors = visitors
        gr.HTML(lab_panels.BLIND_INTRO, elem_classes="intro")
        with gr.Row(elem_classes="controls"):
            self.prompt = gr.Textbox(PROMPT, label="Prompt", lines=1, max_lines=4, scale=4)
            self.a, self.b = engine_pair(choices)
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button("Start a trial", variant="primary", size="sm")
            self.export = gr.HTML("", elem_id="blind-export")
        self.notice = gr.HTML("", elem_classes="notice")
        self.view = lanes_view("blind-lanes")
        with gr.Row(elem_classes="actions", elem_id="choose"):
            self.buttons = [
                gr.Button(words, size="sm", interactive=False, elem_classes="quiet")
                for words, _ in CHOICES
            ]
        self.standing = gr.HTML(lab_panels.STANDING_EMPTY, elem_id="standing")

    def connect(self, session: gr.State) -> None:
        """What happens when something is pressed."""
        shown = [self.view, self.notice, *self.buttons]
        wanted = [session, self.prompt, self.a, self.b]
        self.start.click(self._run, wanted, shown, **ONCE)
        remember_pair(self.a, self.b)
        for button, (_, choice) in zip(self.buttons, CHOICES, strict=True):
            self._on(button, choice, session, [*shown, self.standing, self.export])

    def _on(self, button: gr.Button, choice: Choice, session: gr.State, shown: list[Any]) -> None:
        def choose(session_id: str) -> tuple[Any, ...]:
            return self._choose(session_id, choice)

        button.click(choose, session, shown, **ONCE)

    def _run(self, session_id: str, text: str, a: str | None, b: str | None) -> Iterator[Any]:
        closed, opened = _buttons(False), _buttons(True)
        try:
            session = find_session(self._visitors, session_id)
            experiment = session.lab.begin_trial(text, [name for name in (a, b) if name])
            for words in progress(experiment):
                yield "", words, *closed
            session.lab.show_trial(experiment)
            pair = experiment.pair()
        except UnpausedError as error:
            yield NO_CHANGE, notice(str(error)), *closed
            return
        yield lanes.hidden_pair(pair), "", *opened

    def _choose(self, session_id: str, choice: Choice) -> tuple[Any, ...]:
        closed = _buttons(False)
        try:
            session = find_session(self._visitors, session_id)
            trial = session.lab.choose(choice)
        except UnpausedError as error:
            return NO_CHANGE, notice(str(error)), *closed, NO_CHANGE, NO_CHANGE
        blind = session.lab.blind
        told = _told(trial)
        return (
            lanes.revealed_pair(trial.runs, told),
            "",
            *closed,
            lab_panels.standing(blind),
            lab_panels.blind_export(session.id),
        )


def _told(trial: Trial) -> str:
    names = {"A": trial.runs[0].label, "B": trial.runs[1].label}
    faster = f"{trial.faster} was faster: {names[trial.faster]}."
    if trial.right is None:
        return faster
    return f"Right. {faster}" if trial.right else f"Wrong. {faster}"


def _buttons(on: bool) -> list[Any]:
    return [gr.Button(interactive=on) for _ in CHOICES]
