"""The conversation for Gradio's chatbot. It renders HTML, which what people write is not."""

from __future__ import annotations

import html

from ui.board import View


def chat_messages(view: View) -> list[dict[str, str]]:
    """Every message, and below an answer a line with the engine it came from and its figures."""
    shown: list[dict[str, str]] = []
    for message in view.messages:
        role, content = message["role"], message["content"]
        if role == "user":
            content = html.escape(content, quote=False)
        shown.append({"role": role, "content": content})
        if "label" in message:
            label = f'<span class="figures">{html.escape(message["label"])}</span>'
            shown.append({"role": role, "content": label})
    return shown
