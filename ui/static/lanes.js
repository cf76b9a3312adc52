// Recorded replies side by side, shown as they came: for again, the race, the speed dial and the
// blind test. ui/lanes.py makes the value. Plain script; strip.js is prepended.

const LANES_HZ = 30;

// How many of the times (ascending, ms) are not after `now`.
function arrived(times, now) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= now) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Where each piece of text ends in the whole: arrived(n) tokens show the first ends[n - 1] letters.
function pieceEnds(pieces) {
  let length = 0;
  return pieces.map((piece) => (length += piece.length));
}

function latenciesOf(times) {
  return times.map((time, index) => time - (index ? times[index - 1] : 0));
}

class Lane {
  constructor(lane, scaleOf) {
    Object.assign(this, lane); // {title, about, figures, pieces, at_ms, hidden, strip, end}
    this.text = this.pieces.join("");
    this.ends = pieceEnds(this.pieces);
    this.shown = -1;
    this.element = document.createElement("article");
    this.element.className = "lane";
    this.element.append(this.heading(), this.list());
    if (this.strip) this.addStrip(scaleOf);
    this.words = document.createTextNode("");
    const said = document.createElement("p");
    said.className = "said";
    said.append(this.words);
    this.element.append(said);
  }

  heading() {
    const heading = document.createElement("h3");
    heading.textContent = this.title;
    if (this.about) {
      const about = document.createElement("span");
      about.textContent = this.about;
      heading.append(about);
    }
    return heading;
  }

  list() {
    const list = document.createElement("dl");
    for (const [name, value] of this.figures) {
      const [term, figure] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      figure.textContent = value;
      list.append(term, figure);
    }
    return list;
  }

  addStrip(scaleOf) {
    const canvas = document.createElement("canvas");
    canvas.className = "strip";
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Latency of every token: ${this.title}`);
    this.element.append(canvas);
    this.chart = new Strip(canvas, scaleOf);
    this.chart.data.hidden = this.hidden;
    this.latencies = latenciesOf(this.at_ms);
    this.whole = new Latencies(); // the decades do not move while it plays
    this.whole.push(0, this.latencies);
  }

  // Everything that had come by `now` ms; gives whether that is all.
  show(now) {
    const count = arrived(this.at_ms, now);
    if (count !== this.shown) {
      this.words.data = count ? this.text.slice(0, this.ends[count - 1]) : "";
      if (count < this.shown) this.chart?.clear();
      if (this.chart) this.chart.data.hidden = this.hidden;
      const from = Math.min(count, Math.max(0, this.shown));
      this.chart?.push(from, this.latencies.slice(from, count));
      this.shown = count;
    }
    return count === this.at_ms.length;
  }
}

class Lanes {
  constructor(element, closed = () => {}) {
    this.find = (name) => element.querySelector(`[data-part="${name}"]`);
    this.root = this.find("lanes");
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.find("play").addEventListener("click", () => this.play());
    this.find("close").addEventListener("click", () => {
      this.set("");
      closed();
    });
  }

  // `value`: JSON as ui/lanes.py makes it, or "" for nothing.
  set(value) {
    cancelAnimationFrame(this.frame);
    this.root.hidden = !value;
    if (!value) return;
    const { replay, heading, note, badge, outcome, lanes, closable } = JSON.parse(value);
    const scaleOf = () => this.lanes.map((lane) => lane.whole).filter(Boolean);
    this.lanes = lanes.map((lane) => new Lane(lane, scaleOf));
    this.find("list").replaceChildren(...this.lanes.map((lane) => lane.element));
    this.find("mark").hidden = !replay;
    this.find("heading").textContent = heading;
    this.find("note").textContent = note;
    this.find("close").hidden = !closable;
    const mark = this.find("badge");
    mark.hidden = !badge;
    mark.textContent = badge ? badge.text : "";
    mark.dataset.same = String(Boolean(badge?.same));
    this.outcome = outcome;
    this.play(this.calm.matches);
  }

  play(atOnce = false) {
    cancelAnimationFrame(this.frame);
    this.find("outcome").textContent = "";
    this.root.dataset.playing = "true";
    const start = performance.now();
    let last = -Infinity;
    const step = (stamp) => {
      if (stamp - last >= 1000 / LANES_HZ - 2) {
        last = stamp;
        const now = atOnce ? Infinity : Math.max(0, stamp - start);
        const done = this.lanes.map((lane) => lane.show(now)).every(Boolean);
        const end = Math.max(...this.lanes.map((lane) => lane.at_ms.at(-1) || 0));
        this.find("clock").textContent = `${(Math.min(now, end) / 1000).toFixed(2)} s`;
        if (done) return this.finish();
      }
      this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  finish() {
    this.root.dataset.playing = "false";
    this.find("outcome").textContent = this.outcome;
  }
}

if (typeof module !== "undefined") module.exports = { arrived, pieceEnds, latenciesOf };
