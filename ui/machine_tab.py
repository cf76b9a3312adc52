"""Anatomy and hardware: where a token's time goes, and what this and other devices could do.

Drawn by the benchmark's own plots, from the committed results and, if it was run here, from this
machine's. They are loaded when the tab is first opened.
"""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import gradio as gr

from engine.errors import UnpausedError
from ui import lab_panels
from ui.handling import NO_CHANGE, QUIET, notice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entry = dict[str, Any]


class MachineTab:
    """The components, and what they do."""

    def __init__(self) -> None:
        gr.HTML(lab_panels.MACHINE_INTRO, elem_classes="intro")
        self.choice = gr.Dropdown([], label="Measured on", interactive=True, elem_id="measured-on")
        self.notice = gr.HTML("", elem_classes="notice")
        self.table = gr.Markdown("", elem_id="bench-table")
        self.anatomy = gr.HTML("", elem_id="anatomy", elem_classes="figure")
        self.hardware = gr.HTML("", elem_id="hardware", elem_classes="figure")

    def connect(self, tab: gr.Tab) -> None:
        """What happens when the tab is opened, or another result chosen."""
        shown = [self.notice, self.table, self.anatomy, self.hardware]
        tab.select(self._open, self.choice, [self.choice, *shown], **QUIET)
        self.choice.input(self._show, self.choice, shown, **QUIET)

    def _open(self, chosen: str | None) -> tuple[Any, ...]:
        try:
            names = [name for name, _ in entries()]
        except UnpausedError as error:
            return NO_CHANGE, notice(str(error)), NO_CHANGE, NO_CHANGE, NO_CHANGE
        if not names:
            told = notice("there are no results yet: run the benchmark, and they are shown here")
            return NO_CHANGE, told, NO_CHANGE, NO_CHANGE, NO_CHANGE
        chosen = chosen if chosen in names else names[0]
        return gr.Dropdown(names, value=chosen), *self._show(chosen)

    def _show(self, chosen: str) -> tuple[Any, ...]:
        from benchmarks.plots import anatomy_figure, hardware_figure
        from benchmarks.table import as_markdown

        entry = dict(entries()).get(chosen)
        if entry is None:
            return notice("that result is gone"), NO_CHANGE, NO_CHANGE, NO_CHANGE
        drawn = (
            _picture(anatomy_figure(entry), f"Where a token's time goes on {chosen}"),
            _picture(hardware_figure(entry), f"Batch-1 rooflines of devices, and {chosen}"),
        )
        return "", as_markdown([entry]), *drawn


def _picture(figure: Figure, words: str) -> str:
    """`figure` as an image that needs no other file; the table says the same in numbers."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight")
    return lab_panels.picture(base64.b64encode(drawn.getvalue()).decode(), words)


def entries() -> list[tuple[str, Entry]]:
    """The results there are, as (name for people, entry): this machine's own come first."""
    from benchmarks.results import LOCAL, load_file, load_results
    from benchmarks.table import heading

    local = load_file(LOCAL) if LOCAL.is_file() else []
    named = [(f"Here: {heading(entry)}", entry) for entry in local]
    named += [(heading(entry), entry) for entry in load_results()]
    return [(name, entry) for name, entry in named if entry.get("engines")]
