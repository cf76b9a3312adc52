"""The page's look: one palette, given to Gradio's components and to the page's own parts alike."""

from __future__ import annotations

import gradio as gr

from ui.panels import STATIC

TEXT_FONTS = ["ui-sans-serif", "system-ui", "Segoe UI", "Helvetica Neue", "Arial", "sans-serif"]
MONO_FONTS = ["ui-monospace", "SF Mono", "Cascadia Code", "DejaVu Sans Mono", "monospace"]


# Light, dark. `page.css` reads them as --paper, --ink and so on. Orange is the person, green the
# machine, violet its voice. Every text colour has a contrast of 4.5 or more on paper and panel.
PALETTE = {
    "paper": ("#eff2f1", "#0f1514"),
    "panel": ("#fbfcfc", "#171f1d"),
    "line": ("#d3dad8", "#2b3633"),
    "ink": ("#13201c", "#e8eeec"),
    "ink-soft": ("#43534d", "#b3c0bb"),
    "ink-faint": ("#5d6b66", "#8c9a95"),
    "you": ("#b23c0c", "#ff8f61"),
    "it": ("#086353", "#4fd0b3"),
    "voice": ("#5a4a9c", "#b3a5f2"),
    "tick": ("#a9b5b1", "#47544f"),
    "fault": ("#a11d33", "#ff8d9b"),
    "focus": ("#1552c4", "#8fb8ff"),
}

# Gradio's names for the same.
_GRADIO = {
    "body_background_fill": "paper",
    "body_text_color": "ink",
    "body_text_color_subdued": "ink-faint",
    "background_fill_primary": "panel",
    "background_fill_secondary": "paper",
    "border_color_primary": "line",
    "block_background_fill": "paper",
    "block_border_color": "line",
    "block_label_text_color": "ink-soft",
    "block_title_text_color": "ink-soft",
    "input_background_fill": "panel",
    "input_background_fill_hover": "panel",
    "input_border_color": "line",
    "input_border_color_hover": "ink-faint",
    "input_border_color_focus": "focus",
    "input_placeholder_color": "ink-faint",
    "button_primary_background_fill": "ink",
    "button_primary_background_fill_hover": "it",
    "button_primary_text_color": "paper",
    "button_primary_border_color": "ink",
    "button_secondary_background_fill": "paper",
    "button_secondary_background_fill_hover": "panel",
    "button_secondary_text_color": "ink-soft",
    "button_secondary_border_color": "line",
    "link_text_color": "it",
    "link_text_color_hover": "it",
    "link_text_color_active": "it",
    "link_text_color_visited": "it",
    "color_accent_soft": "paper",
}


def theme() -> gr.themes.Base:
    """Gradio's plain theme in our palette and the system's fonts: nothing is fetched."""
    colours: dict[str, str] = {}
    for name, ours in _GRADIO.items():
        colours[name], colours[f"{name}_dark"] = PALETTE[ours]
    return gr.themes.Base(font=TEXT_FONTS, font_mono=MONO_FONTS).set(
        **colours, block_border_width="0px", block_shadow="none", input_shadow="none",
        input_shadow_focus="none", button_transform_active="none", block_padding="0px",
    )  # fmt: skip


def palette_css() -> str:
    """The palette as CSS variables, for light and for Gradio's dark class."""
    rules = []
    for selector, which in ((":root", 0), (".dark", 1)):
        variables = "".join(f"--{name}:{pair[which]};" for name, pair in PALETTE.items())
        rules.append(f"{selector}{{{variables}}}")
    return "\n".join(rules)


def style() -> str:
    """All CSS of the page."""
    sheets = [(STATIC / name).read_text(encoding="utf-8") for name in ("page.css", "lab.css")]
    return "\n".join([palette_css(), *sheets])
