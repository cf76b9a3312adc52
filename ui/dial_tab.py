"""The speed dial: the last answer replayed at a published, or any, pace."""

from __future__ import annotations

from typing import Any

import gradio as gr

from engine.errors import UnpausedError
from ui import lab_panels, lanes, panels
from ui.handling import NO_CHANGE, ONCE, QUIET, find_session, notice
from ui.parts import lanes_view
from ui.replay import PUBLISHED, check_speed
from ui.settings import DEFAULT_SPEED
from ui.visitors import Visitors


class DialTab:
    """The components, and what they do."""

    def __init__(self, visitors: Visitors) -> None:
        self._visitors = visitors
        gr.HTML(lab_panels.DIAL_INTRO, elem_classes="intro")
        with gr.Row(elem_classes="controls"):
            self.preset = gr.Radio(
                [(f"{speed.tokens_per_s:,.0f}", speed.tokens_per_s) for speed in PUBLISHED],
                value=DEFAULT_SPEED,
                label="Published, tokens/s",
                scale=3,
                interactive=True,
            )
            self.speed = gr.Number(
                DEFAULT_SPEED, label="Or any, tokens/s", precision=None, scale=1, min_width=140
            )
        with gr.Row(elem_classes="actions"):
            self.play = gr.Button("Replay the last answer", variant="primary", size="sm")
            self.export = gr.HTML("", elem_id="dial-export")
        self.notice = gr.HTML("", elem_classes="notice")
        self.view = lanes_view("dial-lanes")
        gr.HTML(lab_panels.sources(PUBLISHED), elem_id="sources")

    def connect(self, session: gr.State) -> None:
        """What happens when something is pressed."""
        shown = [self.view, self.export, self.notice]
        self.preset.input(lambda speed: speed, self.preset, self.speed, **QUIET)
        self.play.click(self._play, [session, self.speed], shown, **ONCE)
        self.speed.submit(self._play, [session, self.speed], shown, **ONCE)
        self.speed.change(
            self._mark, self.speed, self.preset, js=panels.remember("speed", None), **QUIET
        )

    def _play(self, session_id: str, tokens_per_s: float | None) -> tuple[Any, Any, str]:
        """Replay the session's last answer at that pace."""
        try:
            session = find_session(self._visitors, session_id)
            speed = check_speed(tokens_per_s)
            trace = session.ledger.trace
            if trace is None:
                raise UnpausedError("Ask something first: the dial replays your last answer.")
        except UnpausedError as error:
            return NO_CHANGE, NO_CHANGE, notice(str(error))
        return lanes.dialled(trace, speed), lab_panels.replay_export(session.id, speed), ""

    def _mark(self, tokens_per_s: float | None) -> float | None:
        """The preset that is exactly this speed."""
        return next((s.tokens_per_s for s in PUBLISHED if s.tokens_per_s == tokens_per_s), None)
