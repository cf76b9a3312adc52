"""The instruments in terminals of all kinds, and the lines where there is none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from engine.metrics import ReplyMetrics
from ui.listen_screen import News, View
from ui.listen_view import Lines, Terminal, choose_view, meter

KEYS = "space talk · q quit"
VIEW = View(
    status="speaking",
    reply="Short waves are scattered more.",
    engine="eager",
    answering="eager",
    model="tiny",
    hidden_tokens=50,
    metrics=ReplyMetrics("eager", "tiny", 1, [n * 5_000_000 for n in range(1, 40)]),
    stages=[{"name": "endpointing", "ms": 200.0}, {"name": "prefill", "ms": 100.0}],
    total_ms=300.0,
)


class Screen(io.StringIO):
    """A terminal of an encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


def drawn(width: int = 80, encoding: str = "utf-8", colours: bool = True) -> str:
    screen = Screen(encoding)
    console = Console(
        file=screen,
        width=width,
        height=40,
        force_terminal=True,
        no_color=not colours,
        highlight=False,
        _environ={"TERM": "xterm-256color"},
    )
    with Terminal(KEYS, console) as terminal:
        terminal.tell(News("you", "Why is the sky blue?"))
        terminal.tell(News("reply", "Short waves [are] scattered.", "eager"))
        terminal.tell(News("figures", "eager · 39 tokens\nendpointing 200 ms + …"))
        terminal.tell(News("notice", "The microphone stopped."))
        terminal.draw(VIEW, 0.1, "USB → HDMI")
    return screen.getvalue()


def test_everything_is_on_the_screen() -> None:
    text = drawn()
    for words in (
        "You: ", "Why is the sky blue?", "Unpaused (eager): ", "Short waves [are] scattered.",
        "eager · 39 tokens", "The microphone stopped.", "speaking", "USB → HDMI", "TPOT now 5.0 ms",
        "p99 5.0 ms", "200.0 tokens/s", "thinking 50 tokens", "endpointing", "█████",
        "300.0 ms to first audio", "The engine was 100 of 300 ms", KEYS,
    ):  # fmt: skip
        assert words in text, words
    assert "endpointing 200 ms + …" not in text  # drawn as bars instead


@pytest.mark.parametrize("width", [20, 40, 200])
def test_no_width_breaks_it(width: int) -> None:
    assert "speaking" in drawn(width)


def test_without_colours_there_are_none() -> None:
    import re

    coloured = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert coloured.search(drawn())
    assert not coloured.search(drawn(colours=False))


def test_a_terminal_without_unicode_gets_ascii_instruments() -> None:
    text = drawn(encoding="ascii").replace(KEYS, "").replace("USB → HDMI", "")
    assert "####" in text and "█" not in text and "─" not in text and "▅" not in text


def test_a_meter_is_a_scale_of_decibels() -> None:
    assert meter(1.0) == "█" * 12 and meter(0.0) == "░" * 12
    assert meter(0.0316, plain=True) == "######......"
    assert meter(99.0).count("█") == 12


def test_lines_go_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines() as lines:
        lines.tell(News("you", "Hello"))
        lines.tell(News("reply", "Hi.", "eager"))
        lines.tell(News("figures", "39 tokens\nand stages"))
        lines.tell(News("notice", "Watch out."))
        lines.draw(VIEW, 0.0, "")
    captured = capsys.readouterr()
    assert captured.out == "You: Hello\nUnpaused (eager): Hi.\n"
    assert captured.err == "39 tokens\nand stages\nWatch out.\n"


def test_quiet_lines_are_notices_alone(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(quiet=True)
    for who in ("you", "reply", "figures", "notice"):
        lines.tell(News(who, who))
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "notice\n"


@pytest.mark.parametrize("terminal", ["pipe", "dumb", "closed", "json"])
def test_lines_are_chosen_where_instruments_cannot_be(
    terminal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb" if terminal == "dumb" else "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", None if terminal == "closed" else
                        io.StringIO() if terminal == "pipe" else Screen())  # fmt: skip
    assert isinstance(choose_view(terminal == "json", KEYS), Lines)


def test_instruments_are_chosen_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", Screen())
    assert isinstance(choose_view(False, KEYS), Terminal)
