import pytest

from ui.words import sentence


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
