import pytest

from ui.board import View
from ui.messages import chat_messages
from ui.words import sentence, waiting


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no weights; run make demo", "No weights; run make demo."),
        ("Already a sentence.", "Already a sentence."),
        ("really?", "Really?"),
        ("  ", ""),
    ],
)
def test_a_fault_becomes_a_sentence(text: str, shown: str) -> None:
    assert sentence(text) == shown


def test_what_was_typed_is_no_markdown() -> None:
    """One line that begins with a block's tag: Markdown takes it as it is, to its end."""
    typed = "*a* <b>\n\n# c & `d`"
    view = View(1, [{"role": "user", "content": typed}], 1, True, "")
    [shown] = chat_messages(view)
    text = "*a* &lt;b&gt;&#10;&#10;# c &amp; `d`"
    assert shown["content"] == f'<div class="typed">{text}</div>'


def test_the_place_in_the_queue_in_words() -> None:
    assert waiting(1, None) == "Waiting: 1 turn is before yours"
    assert waiting(3, 4.4) == "Waiting: 3 turns are before yours, about 4 s"
    assert waiting(2, 0.1) == "Waiting: 2 turns are before yours, about 1 s"
