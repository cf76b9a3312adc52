"""The race: one prompt on two engines, run one after the other, shown together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from ui import lab_panels, lanes, panels
from ui.handling import NO_CHANGE, ONCE, QUIET, find_session, notice, open_session, progress
from ui.parts import lanes_view
from ui.visitors import Visitors

PROMPT = "Explain in three sentences why the sky is blue."


class RaceTab:
    """The components, and what they do."""

    def __init__(self, visitors: Visitors, choices: Sequence[tuple[str, str]]) -> None:
        self._visitors = visitors
        gr.HTML(lab_panels.RACE_INTRO, elem_classes="intro")
        with gr.Row(elem_classes="controls"):
            self.prompt = gr.Textbox(PROMPT, label="Prompt", lines=1, max_lines=4, scale=4)
            self.a, self.b = engine_pair(choices)
        with gr.Row(elem_classes="actions"):
            self.start = gr.Button("Start the race", variant="primary", size="sm")
            self.stop = gr.Button("Stop", size="sm", elem_classes="quiet")
        self.notice = gr.HTML("", elem_classes="notice")
        self.view = lanes_view("race-lanes")

    def connect(self, session: gr.State) -> None:
        """What happens when something is pressed."""
        wanted = [session, self.prompt, self.a, self.b]
        self.start.click(self._run, wanted, [self.view, self.notice], **ONCE)
        self.prompt.submit(self._run, wanted, [self.view, self.notice], **ONCE)
        self.stop.click(self._stop, session, None, **QUIET)
        remember_pair(self.a, self.b)

    def _run(self, session_id: str, text: str, a: str | None, b: str | None) -> Iterator[Any]:
        try:
            session = find_session(self._visitors, session_id)
            experiment = session.lab.race(text, [name for name in (a, b) if name])
            for words in progress(experiment):
                yield NO_CHANGE, words
            pair = session.lab.keep(experiment)
        except UnpausedError as error:
            yield NO_CHANGE, notice(str(error))
            return
        yield lanes.compared("race", pair, experiment.runs.order[0]), ""

    def _stop(self, session_id: str) -> None:
        open_session(self._visitors, session_id).stop()


def engine_pair(choices: Sequence[tuple[str, str]]) -> tuple[gr.Dropdown, gr.Dropdown]:
    """Two selectors, set to the first two engines there are."""
    names = [name for _, name in choices]
    first, second = (
        gr.Dropdown(
            choices,
            value=names[min(place, len(names) - 1)],
            label=f"Engine {place + 1}",
            scale=1,
            min_width=210,
            interactive=True,
        )
        for place in range(2)
    )
    return first, second


def remember_pair(a: gr.Dropdown, b: gr.Dropdown) -> None:
    """Their choice goes into the page's address."""
    for name, selector in (("a", a), ("b", b)):
        selector.input(None, selector, None, js=panels.remember(name, None), **QUIET)
