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

OPEN_TO_ALL = """<p role="note">Shared by a public link without a password: whoever has the link
can talk here. Say nothing that is private.</p>"""

WELCOME = """<div class="welcome"><p>Hold the dial<span class="keys">, or the space bar,</span> and
ask something.</p><p>Or type. The instruments show what every token cost.</p></div>"""

HINT = """<div class="hint" data-part="hint" role="note" hidden>
<p>Ask something, then press <b>Again on</b>: same prompt, same seed, another engine.</p>
<p>Do not take our word for it: race them, or test yourself blind, in the tabs above.</p>
<button type="button">Got it</button></div>"""

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
  <p class="engine-name"><span data-part="engine-name">No answer yet</span></p>
  <dl>
    <div class="lead"><dt><abbr title="Time per output token, the median of the reply">TPOT
      p50</abbr></dt><dd><b data-part="tpot-p50">&ndash;</b> ms</dd></div>
    <div><dt><abbr title="Time per output token, the slowest hundredth">TPOT p99</abbr></dt>
      <dd><b data-part="tpot-p99">&ndash;</b> ms</dd></div>
    <div><dt>Tokens/s</dt><dd><b data-part="rate">&ndash;</b></dd></div>
    <div><dt><abbr title="Time to first token">TTFT</abbr></dt>
      <dd><b data-part="ttft">&ndash;</b> ms</dd></div>
    <div class="more"><dt><abbr title="Time per output token, of the last few">TPOT now</abbr></dt>
      <dd><b data-part="tpot-now">&ndash;</b> ms</dd></div>
    <div class="more"><dt><abbr title="Bytes that a token must read, as a share of what this
      device was measured to read in that time">Of ceiling</abbr></dt>
      <dd><b data-part="share">&ndash;</b> %</dd></div>
    <div class="more"><dt><abbr title="Kernels, or framework operations, launched for a token">
      Launches</abbr></dt><dd><b data-part="launches">&ndash;</b> /token</dd></div>
    <div class="more" data-part="drafts" hidden><dt><abbr title="Drafted tokens that were right">
      Drafts right</abbr></dt><dd><b data-part="acceptance">&ndash;</b> %</dd></div>
    <div class="more" data-part="passes" hidden><dt><abbr title="Tokens made certain by one pass
      over the weights">Tokens</abbr></dt><dd><b data-part="per-pass">&ndash;</b> /pass</dd></div>
  </dl>
  <canvas class="strip" data-part="strip" role="img"
    aria-label="Latency of every token of the reply"></canvas>
  <div class="stages">
    <h2 data-part="turn-of">Last turn</h2>
    <p class="total"><b data-part="total">&ndash;</b> ms
      <span data-part="total-label">to first audio</span></p>
    <button type="button" data-part="more" aria-expanded="false" aria-label="Stages, one by one">
      <i data-part="stack"></i></button>
    <p class="verdict" data-part="verdict"></p>
    <ol data-part="stages"></ol>
    <p class="empty" data-part="stages-empty">From the end of your speech to the first sound
      of the answer.</p>
  </div>
</section>
"""

LANES = """
<section class="lanes" data-part="lanes" hidden>
  <header>
    <h2 data-part="heading"></h2>
    <span class="replay" data-part="mark">Replay</span>
    <span class="same" data-part="badge" role="status"></span>
    <span class="clock" data-part="clock"></span>
    <button type="button" data-part="play">Play again</button>
    <button type="button" data-part="close" aria-label="Close the comparison">Close</button>
  </header>
  <p class="outcome" data-part="outcome" role="status"></p>
  <div class="list" data-part="list"></div>
  <p class="note" data-part="note"></p>
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
            *(_source(name) for name in ("palette", "status", "dial", "audio", "voice")),
            f"const sources = {json.dumps(sources)};",
            "const voice = new Voice(element, sources, () => trigger('follow_turn'),",
            "  () => trigger('stop_turn'));",
            "voice.connect(props.value);",
            "watch('value', () => voice.connect(props.value));",
            "window.unpaused = voice;",
            _source("link"),
            "window.rememberSettings = remember;",
            "keepReachable('#conversation .panel-wrap');",
        ]
    )


def readings_script() -> str:
    """Runs when the instruments are mounted."""
    sources = "\n".join(_source(name) for name in ("palette", "strip", "readings"))
    return f"{sources}\nnew Readings(element);"


def lanes_script() -> str:
    """Runs when a side-by-side view is mounted. Its value is made by `ui/lanes.py`."""
    sources = "\n".join(_source(name) for name in ("palette", "strip", "lanes"))
    return f"""{sources}
const lanes = new Lanes(element);
lanes.set(props.value);
watch('value', () => lanes.set(props.value));"""


def hint_script() -> str:
    """Runs when the first visit's hint is mounted."""
    return f"{_source('link')}\nfirstVisit(element);"


def remember(name: str, default: str | float | None) -> str:
    """A listener's script: its last input goes into the page's address, unless it is `default`."""
    return f"""(...inputs) => {{
  const value = inputs[inputs.length - 1];
  const same = String(value) === {json.dumps(None if default is None else str(default))};
  window.rememberSettings({{ {json.dumps(name)}: same ? null : value }});
  return inputs;
}}"""


def remember_view(view: str) -> str:
    """The same for a tab: it was opened."""
    value = None if view == "talk" else view
    return f"() => window.rememberSettings({{ view: {json.dumps(value)} }})"


@cache
def _source(name: str) -> str:
    return (STATIC / f"{name}.js").read_text(encoding="utf-8")
