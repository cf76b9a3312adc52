"""What `listen` shows: live instruments under a growing transcript, or plain lines."""

from __future__ import annotations

import math
import sys
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ui.figures import drafts, number, strip, waterfall
from ui.listen_screen import News, View
from ui.verdict import sentence as verdict
from ui.verdict import with_thinking

FRAMES_PER_S = 8  # enough for a meter, and little to draw on a machine that decodes
_QUIETEST_DB = -60.0
_METER = 12  # characters
_BAR = 44
_REPLY_LINES = 4  # of the reply under way; all of it joins the transcript
_STYLES = {"listening": "green", "hearing you": "bold green", "speaking": "bold cyan"}
_ENGINE_STAGES = {"prefill", "thinking", "first_clause"}


class Lines:
    """For pipes, logs and terminals that cannot move: what is said on standard output, figures
    and notices on standard error; with `quiet` notices alone."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def tell(self, news: News) -> None:
        if news.who == "notice":
            print(news.text, file=sys.stderr, flush=True)
        elif self._quiet:
            return
        elif news.who == "figures":
            print(news.text, file=sys.stderr, flush=True)
        else:
            print(f"{_speaker(news)}: {news.text}", flush=True)

    def draw(self, view: View, level: float, status: str) -> None:
        """Nothing to draw: there are only lines."""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Terminal:
    """The transcript scrolls as any output does; under it stand the instruments."""

    def __init__(self, keys: str, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._keys = keys
        self._plain = not self._console.encoding.lower().startswith("utf")
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def tell(self, news: News) -> None:
        if news.who == "notice":
            self._console.print(Text(news.text, "yellow"))
        elif news.who == "figures":
            # The sum is drawn below, as a waterfall.
            self._console.print(Text(news.text.partition("\n")[0], "dim"))
        else:
            style = "bold green" if news.who == "you" else "bold cyan"
            self._console.print(Text.assemble((f"{_speaker(news)}: ", style), news.text))

    def draw(self, view: View, level: float, status: str) -> None:
        """Show `view` with the microphone's `level`, 0 to 1, and the devices' `status`."""
        self._live.update(self._render(view, level, status), refresh=True)

    def __enter__(self) -> Terminal:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self, view: View, level: float, status: str) -> RenderableType:
        width = self._console.width
        parts: list[RenderableType] = [
            Text(("-" if self._plain else "─") * width, "dim"),
            self._head(view, level, status),
        ]
        for who, text in (("You", view.hearing), (f"Unpaused ({view.answering})", view.reply)):
            if text:
                room = _REPLY_LINES * width - len(who) - 2
                parts.append(Text(f"{who}: {text.strip()[-room:]}", "italic"))
        parts += [_readings(view), Text(self._strip(view, width), "cyan", no_wrap=True)]
        if view.stages:
            parts += [*self._waterfall(view)]
        parts.append(Text(self._keys, "dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _head(self, view: View, level: float, status: str) -> Text:
        return Text.assemble(
            (f"{view.status:<12}", _STYLES.get(view.status, "yellow")),
            (meter(level, self._plain), "green"),
            (f"  {status}", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _strip(self, view: View, width: int) -> str:
        return strip(list(view.metrics.itl_ms()), width, self._plain)

    def _waterfall(self, view: View) -> list[RenderableType]:
        stages = with_thinking(view.stages, view.metrics.hidden_ms)
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        for name, figure, bar in waterfall(stages, _BAR):
            style = "cyan" if name in _ENGINE_STAGES else "blue"
            block = bar if self._plain else bar.replace("#", "█")
            table.add_row(name, figure, Text(block, style))
        total = number(view.total_ms, "ms")
        return [table, Text(f"{total} to first audio. {verdict(stages)}")]


def choose_view(quiet: bool, keys: str) -> Lines | Terminal:
    """Instruments where standard output is a terminal that can show them, lines elsewhere."""
    console = Console(highlight=False)
    if quiet or sys.stdout is None or not console.is_terminal or console.is_dumb_terminal:
        return Lines(quiet)
    return Terminal(keys, console)


def meter(level: float, plain: bool = False) -> str:
    """A level of 0 to 1 on a scale of decibels."""
    db = 20 * math.log10(max(level, 1e-9))
    lit = round(min(1.0, max(0.0, 1 - db / _QUIETEST_DB)) * _METER)
    on, off = ("#", ".") if plain else ("█", "░")
    return on * lit + off * (_METER - lit)


def _readings(view: View) -> Text:
    metrics = view.metrics
    tpot, last = metrics.tpot_ms(), metrics.itl_ms()[-1:]
    figures: list[tuple[str, Any, str]] = [
        ("TPOT now", float(last[0]) if len(last) else None, "ms"),
        ("p50", tpot["p50"], "ms"),
        ("p99", tpot["p99"], "ms"),
        ("", metrics.tokens_per_s, "tokens/s"),
        ("TTFT", metrics.ttft_ms if metrics.start_ns else None, "ms"),
    ]
    text = "   ".join(f"{name} {number(value, unit)}".strip() for name, value, unit in figures)
    thinking = f"   thinking {view.hidden_tokens} tokens" if view.hidden_tokens else ""
    speculation = metrics.as_dict()["speculation"]
    drafted = f"   {drafts(speculation)}" if speculation else ""
    return Text(f"{view.engine}   {text}{drafted}{thinking}")


def _speaker(news: News) -> str:
    if news.who == "you":
        return "You"
    return f"Unpaused ({news.label})" if news.label else "Unpaused"
