// The instruments: figures of the latest reply, every token's latency, and where the time to its
// first audio went. Plain script in the page; fed by the "unpaused" events that voice.js sends.

const STAGE_NAMES = {
  endpointing: ["Endpointing", "you"],
  transcription: ["Transcription", "you"],
  queue: ["Queue", "you"],
  prefill: ["Prefill", "it"],
  thinking: ["Hidden tokens", "it"],
  first_clause: ["First clause", "it"],
  synthesis: ["Synthesis", "voice"],
  held: ["Held back", "voice"],
  transport: ["Network", "voice"],
  playback: ["Playback", "voice"],
};
const FIGURES_MS = 100; // between two changes of the figures
const ENGINE_SIDE = "it"; // the stages in which the engine is waited for

// Milliseconds with three significant figures at most: "0.61", "12.3", "412".
function formatMs(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100) return String(Math.round(value));
  return value.toFixed(value >= 10 ? 1 : 2);
}

function formatRate(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(value >= 100 ? 0 : 1);
}

// What drafts did, in words; null where the engine does not draft and every pass gives one token.
function describeDrafts(speculation) {
  if (!speculation) return null;
  const { acceptance, tokens_per_pass: tokens } = speculation;
  return {
    acceptance: acceptance === null ? "–" : String(Math.round(100 * acceptance)),
    perPass: formatRate(tokens),
  };
}

// Where each stage's bar begins and how long it is, in percent of the whole.
function layOutStages(stages) {
  const total = stages.reduce((sum, stage) => sum + stage.ms, 0);
  let start = 0;
  const bars = stages.map(({ name, ms }) => {
    const [label, side] = STAGE_NAMES[name] || [name, "voice"];
    const bar = { label, side, ms, engine: side === ENGINE_SIDE };
    bar.from = total ? (100 * start) / total : 0;
    bar.length = total ? (100 * ms) / total : 0;
    start += ms;
    return bar;
  });
  return { bars, total };
}

class Readings {
  constructor(element) {
    this.find = (name) => element.querySelector(`[data-part="${name}"]`);
    this.strip = new Strip(this.find("strip"));
    this.clear();
    // Where there is little room the stages are one bar, which opens into the list.
    const more = this.find("more");
    more.addEventListener("click", () => {
      const open = more.getAttribute("aria-expanded") !== "true";
      more.setAttribute("aria-expanded", String(open));
    });
    document.addEventListener("unpaused", ({ detail }) => this.receive(detail));
  }

  receive(event) {
    if (event.type === "metrics") this.showMetrics(event);
    if (event.type === "done" || event.type === "measured") this.showStages(event);
    if (event.type === "cleared") this.clear();
  }

  clear() {
    this.turn = null;
    this.strip.clear();
    this.showFigures({ tpot_ms: {} });
    this.find("stages").replaceChildren();
    this.find("stack").replaceChildren();
    this.say("total", "–");
    this.say("turn-of", "Last turn");
    this.say("verdict", "");
    this.find("stages-empty").hidden = false;
  }

  say(part, text) {
    const element = this.find(part);
    if (element.textContent !== text) element.textContent = text;
  }

  showMetrics(event) {
    if (event.turn !== this.turn || event.engine !== this.engine) this.strip.clear();
    if (event.turn !== this.turn) this.figuresAt = -Infinity;
    this.turn = event.turn;
    this.engine = event.engine;
    this.strip.data.hidden = event.hidden_tokens;
    this.strip.push(event.latencies.from, event.latencies.ms);
    const now = performance.now(); // a figure that changes more often cannot be read
    if (event.running && now - this.figuresAt < FIGURES_MS) return;
    this.figuresAt = now;
    this.showFigures(event);
  }

  // They name the engine that they are of: another one may have been chosen since.
  showFigures(event) {
    const share = event.bandwidth_share;
    this.say("engine-name", event.engine_label || "No answer yet");
    this.say("tpot-p50", formatMs(event.tpot_ms.p50));
    this.say("tpot-p99", formatMs(event.tpot_ms.p99));
    this.say("ttft", formatMs(event.ttft_ms));
    this.say("rate", formatRate(event.tokens_per_s));
    this.say("tpot-now", formatMs(this.strip.data.now));
    this.say("share", share === null || share === undefined ? "–" : formatMs(100 * share));
    this.say("launches", formatRate(event.launches_per_token));
    this.showDrafts(event.speculation);
    this.find("strip").dataset.running = String(Boolean(event.running));
  }

  showDrafts(speculation) {
    const shown = describeDrafts(speculation);
    for (const part of ["drafts", "passes"]) this.find(part).hidden = !shown;
    if (!shown) return;
    this.say("acceptance", shown.acceptance);
    this.say("per-pass", shown.perPass);
  }

  showStages({ stages, verdict, engine_label: engine }) {
    if (!stages.length) return;
    this.say("turn-of", engine ? `Last turn, on ${engine}` : "Last turn");
    const { bars, total } = layOutStages(stages);
    const spoken = bars.some((bar) => bar.side === "voice");
    this.find("stages-empty").hidden = true;
    this.say("total", formatMs(total));
    this.say("total-label", spoken ? "to first audio" : "to first clause");
    this.say("verdict", verdict || "");
    this.find("stages").replaceChildren(...bars.map((bar) => this.row(bar)));
    this.find("stack").replaceChildren(...bars.map((bar) => this.bar(bar)));
  }

  row(stage) {
    const row = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = stage.label;
    if (stage.engine) {
      const mark = document.createElement("em");
      mark.textContent = "engine";
      name.append(" ", mark);
    }
    const value = document.createElement("span");
    value.textContent = formatMs(stage.ms);
    value.className = "value";
    row.append(name, value, this.bar(stage));
    return row;
  }

  bar({ side, from, length }) {
    const bar = document.createElement("span");
    bar.className = "bar";
    bar.dataset.side = side;
    bar.style.setProperty("--from", `${from}%`);
    bar.style.setProperty("--length", `${length}%`);
    return bar;
  }
}

if (typeof module !== "undefined") module.exports = { describeDrafts, formatMs, formatRate, layOutStages };
