"""How the page words what the parts report."""

from __future__ import annotations


def sentence(text: str) -> str:
    """A one-line fault, as commands print it, as a sentence."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", "…")) else ".")


def left_out(turns: int) -> str:
    """That the context is full, and what was forgotten for the reply above."""
    what = "the oldest turn was" if turns == 1 else f"the oldest {turns} turns were"
    return f"*The context is full: {what} left out.*"
