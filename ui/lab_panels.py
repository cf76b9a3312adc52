"""The words and small HTML parts of the tabs: introductions, sources, standings, exports."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ui.replay import NOTE, PublishedSpeed

if TYPE_CHECKING:
    from ui.blind import BlindTest

RACE_INTRO = """<h2>Race</h2><p>One prompt on two engines: the same cache, the same seed. They share
the device, so they run one after the other, in an order drawn by lot; then both are shown together
at the pace that was measured.</p>"""

DIAL_INTRO = f"""<h2>Speed dial</h2><p>Your last answer, token by token, at the speeds of the public
debate. <strong>{NOTE}</strong></p>"""

BLIND_INTRO = """<h2>Blind test</h2><p>Two hidden runs, shown as A and B by lot. Say which wrote
faster, or that you cannot tell. Whoever guesses is right half of the time: the p-value says how
often guessing would do as well. Nothing is kept about you: the counts go when the page
closes.</p>"""

MACHINE_INTRO = """<h2>Anatomy</h2><p>Where the time of a token goes on each engine, and how fast
devices could be if reading memory were all. From the results that come with the project and, once
you have run <code>app.py bench</code> here, from this machine.</p>"""

STANDING_EMPTY = '<p class="standing">No trials yet.</p>'


def standing(blind: BlindTest) -> str:
    """The counts so far, in words."""
    return f'<p class="standing" role="status">{html.escape(blind.verdict())}</p>'


def sources(speeds: Sequence[PublishedSpeed]) -> str:
    """What each speed stands for, how it is known, and who says so."""
    rows = "".join(
        f"<tr><th scope=row>{speed.tokens_per_s:,.0f}</th><td>{html.escape(speed.system)}</td>"
        f"<td>{html.escape(speed.kind)}</td><td>{_link(speed.url, speed.source)}</td></tr>"
        for speed in speeds
    )
    return (
        '<div class="table" tabindex="0" role="region" aria-label="Published speeds"><table>'
        "<caption>What the speeds stand for</caption><thead><tr><th scope=col>tokens/s</th>"
        "<th scope=col>System</th><th scope=col>How it is known</th><th scope=col>Source</th>"
        f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def silence(
    hidden: int, before: Sequence[tuple[str, str]], after: Sequence[str], thinks: bool | None
) -> str:
    """What hidden tokens will cost on each engine, and what they did."""
    items = "".join(
        f"<dt>{html.escape(label)}</dt><dd>{html.escape(words)}</dd>" for label, words in before
    )
    text = f"<p>Silence before the first word, at {hidden} tokens:</p><dl>{items}</dl>"
    if not hidden:
        text = "<p>Tokens that are decoded and not said. Here speed becomes audible.</p>"
    text += "".join(f"<p class=after>{html.escape(words)}</p>" for words in after)
    if thinks is False and hidden:
        text += (
            "<p>This model has no thinking of its own: it decodes a draft and forgets it, so the "
            "answer stays the same and only the silence changes.</p>"
        )
    elif thinks and hidden:
        text += "<p>The model's own thinking, cut off at that many tokens.</p>"
    return text


def exports(session_id: str) -> str:
    """Links to what was measured in this session."""
    if not session_id:
        return ""
    links = (
        ("turn.json", "turn, JSON"),
        ("turn.wav", "turn, WAV", "in stereo, you on the left, the answer on the right"),
        ("session.json", "session, JSON"),
        ("session.wav", "session, WAV"),
    )
    return _exports(session_id, links)


def replay_export(session_id: str, tokens_per_s: float) -> str:
    """A link to the replay, which says that it is one."""
    name = f"replay.json?tokens_per_s={tokens_per_s:g}"
    return _exports(session_id, [(name, "this replay, JSON")])


def blind_export(session_id: str) -> str:
    """A link to the trials."""
    return _exports(session_id, [("blind.json", "the trials, JSON")])


def picture(svg: str, words: str) -> str:
    """A figure as an image, which needs words for those who do not see it."""
    return f'<img alt="{html.escape(words)}" src="data:image/svg+xml;base64,{svg}">'


def _exports(session_id: str, links: Sequence[tuple[str, ...]]) -> str:
    """Links, as (name, words) or (name, words, what more a screen reader and a pointer tell)."""
    items = "".join(
        f'<li><a href="export/{html.escape(session_id)}/{html.escape(name)}" download'
        f"{_told(words, *more)}>{html.escape(words)}</a></li>"
        for name, words, *more in links
    )
    return f"<p>Export</p><ul>{items}</ul>"


def _told(words: str, more: str = "") -> str:
    if not more:
        return ""
    return f' title="{html.escape(more)}" aria-label="{html.escape(f"{words}: {more}")}"'


def _link(url: str, words: str) -> str:
    return f'<a href="{html.escape(url)}" target="_blank" rel="noreferrer">{html.escape(words)}</a>'
