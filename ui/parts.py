"""Components of our own that more than one tab has. Imports Gradio."""

from __future__ import annotations

import gradio as gr

from ui import panels


def lanes_view(elem_id: str) -> gr.HTML:
    """Replies side by side; its value is made by `ui/lanes.py`, "" hides it."""
    return gr.HTML(
        "",
        html_template=panels.LANES,
        js_on_load=panels.lanes_script(),
        elem_id=elem_id,
        elem_classes="lanes-view",
        apply_default_css=False,
    )
