"""The conversation for Gradio's chatbot, which renders Markdown: what people write is none."""

from __future__ import annotations

import html

from ui.board import View


def chat_messages(view: View) -> list[dict[str, str]]:
    """Every message, and below an answer a line with the engine it came from and its figures."""
    shown: list[dict[str, str]] = []
    for message in view.messages:
        role, content = message["role"], message["content"]
        if role == "user":
            content = as_typed(content)
        shown.append({"role": role, "content": content})
        if "label" in message:
            label = f'<span class="figures">{html.escape(message["label"])}</span>'
            shown.append({"role": role, "content": label})
    return shown


def as_typed(text: str) -> str:
    """`text` as HTML that Markdown leaves alone: one line, which begins with a block's tag."""
    lines = html.escape(text, quote=False).splitlines()
    return f'<div class="typed">{"&#10;".join(lines)}</div>'
