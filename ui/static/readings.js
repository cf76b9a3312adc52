// The instruments: figures of the latest reply, and where the time to its first audio went.
// Plain script in the page; fed by the "unpaused" events that voice.js sends.

const STAGE_NAMES = {
  endpointing: ["Endpointing", "you"],
  transcription: ["Transcription", "you"],
  prefill: ["Prefill", "it"],
  first_clause: ["First clause", "it"],
  synthesis: ["Synthesis", "voice"],
};

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

// Where each stage's bar begins and how long it is, in percent of the whole.
function layOutStages(stages) {
  const total = stages.reduce((sum, stage) => sum + stage.ms, 0);
  let start = 0;
  const bars = stages.map(({ name, ms }) => {
    const [label, side] = STAGE_NAMES[name] || [name, "it"];
    const bar = { label, side, ms, from: total ? (100 * start) / total : 0 };
    bar.length = total ? (100 * ms) / total : 0;
    start += ms;
    return bar;
  });
  return { bars, total };
}

class Readings {
  constructor(element) {
    this.find = (name) => element.querySelector(`[data-part="${name}"]`);
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
    if (event.type === "done" && event.stages.length) this.showStages(event.stages);
    if (event.type === "cleared") this.clear();
  }

  clear() {
    this.showMetrics({ tpot_ms: {}, ttft_ms: null, tokens_per_s: null });
    this.find("stages").replaceChildren();
    this.find("stack").replaceChildren();
    this.find("total").textContent = "–";
    this.find("stages-empty").hidden = false;
  }

  showMetrics({ tpot_ms: tpot, ttft_ms: ttft, tokens_per_s: rate }) {
    this.find("tpot-p50").textContent = formatMs(tpot.p50);
    this.find("tpot-p99").textContent = formatMs(tpot.p99);
    this.find("ttft").textContent = formatMs(ttft);
    this.find("rate").textContent = formatRate(rate);
  }

  showStages(stages) {
    const { bars, total } = layOutStages(stages);
    const spoken = bars.some((bar) => bar.side === "voice");
    this.find("stages-empty").hidden = true;
    this.find("total").textContent = formatMs(total);
    this.find("total-label").textContent = spoken ? "to first audio" : "to first clause";
    this.find("stages").replaceChildren(...bars.map((bar) => this.row(bar)));
    this.find("stack").replaceChildren(...bars.map((bar) => this.bar(bar)));
  }

  row(stage) {
    const row = document.createElement("li");
    const name = document.createElement("span");
    name.textContent = stage.label;
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

if (typeof module !== "undefined") module.exports = { formatMs, formatRate, layOutStages };
