"""The page's own HTML parts: the header, the voice controls, the instruments. No build step: the
scripts in `static/` are plain files, joined here and run when their part is mounted."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"

# The browser itself keeps the page from fetching elsewhere, whatever a model writes.
HEAD = """<meta http-equiv="Content-Security-Policy" content="default-src 'self' data: blob:
'unsafe-inline' 'unsafe-eval'; connect-src 'self' data: blob: ws: wss:">"""

# Four even ticks: tokens that do not pause.
MARK = """
<svg viewBox="0 0 24 24" aria-hidden="true"><g stroke="currentColor" stroke-width="2.6"
stroke-linecap="round"><path d="M3.5 7v10M9.2 7v10M14.8 7v10"/><path class="live" d="M20.5 4v16"/>
</g></svg>
"""

HEADER = f'<h1>{MARK}<span>Unpaused</span></h1><p class="model" title="The model">%s</p>'

WELCOME = """<div class="welcome"><p>Hold the dial, or the space bar, and ask something.</p>
<p>Or type. The instruments show what every token cost.</p></div>"""

VOICE = """
<div class="voice" data-part="voice" data-state="off">
  <div class="side">
    <button type="button" role="switch" aria-checked="false" data-part="hands-free">
      <i class="track" aria-hidden="true"></i>Hands-free</button>
    <button type="button" role="switch" aria-checked="true" data-part="sound">
      <i class="track" aria-hidden="true"></i>Sound</button>
  </div>
  <div class="dial">
    <canvas data-part="dial" aria-hidden="true"></canvas>
    <button type="button" data-part="talk" aria-pressed="false" aria-label="Hold to talk">
      <svg viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="currentColor"
        stroke-width="1.7" stroke-linecap="round"><rect x="9" y="3" width="6" height="11" rx="3"/>
        <path d="M5.5 11.5a6.5 6.5 0 0 0 13 0M12 18v3"/></svg></button>
  </div>
  <div class="side end">
    <button type="button" data-part="stop" disabled>
      <svg viewBox="0 0 12 12" aria-hidden="true"><rect x="2" y="2" width="8" height="8" rx="1.5"
        fill="currentColor"/></svg>Stop<kbd>Esc</kbd></button>
  </div>
  <p class="status" data-part="status" role="status"></p>
</div>
"""

READINGS = """
<section class="readings" aria-label="Instruments">
  <dl>
    <div class="lead"><dt><abbr title="Time per output token, the median of the latest reply">TPOT
      p50</abbr></dt><dd><b data-part="tpot-p50">&ndash;</b> ms</dd></div>
    <div><dt><abbr title="Time per output token, the slowest hundredth">TPOT p99</abbr></dt>
      <dd><b data-part="tpot-p99">&ndash;</b> ms</dd></div>
    <div><dt>Tokens/s</dt><dd><b data-part="rate">&ndash;</b></dd></div>
    <div><dt><abbr title="Time to first token">TTFT</abbr></dt>
      <dd><b data-part="ttft">&ndash;</b> ms</dd></div>
  </dl>
  <div class="stages">
    <h2>Last turn</h2>
    <p class="total"><b data-part="total">&ndash;</b> ms
      <span data-part="total-label">to first audio</span></p>
    <button type="button" data-part="more" aria-expanded="false" aria-label="Stages, one by one">
      <i data-part="stack"></i></button>
    <ol data-part="stages"></ol>
    <p class="empty" data-part="stages-empty">From the end of your speech to the first sound
      of the answer.</p>
  </div>
</section>
"""


def header(model_name: str) -> str:
    return HEADER % html.escape(model_name)


def unavailable(reasons: Sequence[tuple[str, str]]) -> str:
    """Engines, as (label, why not), that this machine cannot run; empty when there are none."""
    items = "".join(
        f"<li><s>{html.escape(label)}</s> {html.escape(reason)}</li>" for label, reason in reasons
    )
    if not items:
        return ""
    return f"<details><summary>{len(reasons)} not available</summary><ul>{items}</ul></details>"


def voice_script() -> str:
    """Runs when the voice controls are mounted. Its value is the session's id."""
    parts = ("resample", "frames", "worker", "ring", "playback", "capture")
    sources = {name: _source(name) for name in parts}
    return "\n".join(
        [
            *(_source(name) for name in ("status", "dial", "audio", "voice")),
            f"const sources = {json.dumps(sources)};",
            "const voice = new Voice(element, sources, () => trigger('follow_turn'),",
            "  () => trigger('stop_turn'));",
            "voice.connect(props.value);",
            "watch('value', () => voice.connect(props.value));",
            "window.unpaused = voice;",
        ]
    )


def readings_script() -> str:
    return f"{_source('readings')}\nnew Readings(element);"


@cache
def _source(name: str) -> str:
    return (STATIC / f"{name}.js").read_text(encoding="utf-8")
