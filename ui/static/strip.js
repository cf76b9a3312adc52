// A strip chart of token latencies: every token counts, however many there are. Plain script.

const STRIP_HZ = 25;
const STRIP_CAPACITY = 1 << 15; // tokens; past it the oldest go
const STRIP_FLOOR_MS = 0.01;

// The latencies of one reply, in the order of its tokens. `hidden` of them come before the answer.
class Latencies {
  constructor() {
    this.clear();
  }

  clear() {
    this.values = new Float32Array(256);
    this.count = 0;
    this.dropped = 0;
    this.hidden = 0;
  }

  // `values` in ms, the first of which is token number `from`; what is already here is skipped.
  push(from, values) {
    const known = this.dropped + this.count - from;
    for (let index = Math.max(0, known); index < values.length; index++) this.add(values[index]);
  }

  add(value) {
    if (this.count === STRIP_CAPACITY) {
      const half = STRIP_CAPACITY / 2;
      this.values.copyWithin(0, half);
      this.count -= half;
      this.dropped += half;
    }
    if (this.count === this.values.length) {
      const grown = new Float32Array(2 * this.values.length);
      grown.set(this.values);
      this.values = grown;
    }
    this.values[this.count++] = value;
  }

  // The median of the last few: what a token takes now.
  get now() {
    if (this.count < 2) return null;
    const last = Array.from(this.values.subarray(Math.max(1, this.count - 9), this.count));
    return last.sort((a, b) => a - b)[last.length >> 1];
  }

  // At most `columns` of {mean, high, hidden}: neighbours share a column where there are more.
  bins(columns) {
    const size = Math.max(1, Math.ceil(this.count / columns));
    const bins = [];
    for (let from = 0; from < this.count; from += size) {
      const to = Math.min(this.count, from + size);
      let sum = 0;
      let high = 0;
      for (let index = from; index < to; index++) {
        sum += this.values[index];
        if (this.values[index] > high) high = this.values[index];
      }
      bins.push({ mean: sum / (to - from), high, hidden: from + this.dropped < this.hidden });
    }
    return bins;
  }
}

// Whole decades of ms around what there is to show: {low, high}, at least one decade.
function decades(latencies) {
  let low = Infinity;
  let high = STRIP_FLOOR_MS;
  for (const { values, count } of latencies) {
    for (let index = 0; index < count; index++) {
      const value = Math.max(STRIP_FLOOR_MS, values[index]);
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low === Infinity) return { low: 1, high: 10 };
  const from = Math.floor(Math.log10(low) + 1e-6);
  const to = Math.max(from + 1, Math.ceil(Math.log10(high) - 1e-6));
  return { low: 10 ** from, high: 10 ** to };
}

// How high a latency stands between the decades, 0 to 1.
function stripHeight(value, { low, high }) {
  const place = Math.log10(Math.max(value, STRIP_FLOOR_MS) / low) / Math.log10(high / low);
  return Math.max(0.02, Math.min(1, place));
}

class Strip {
  // `scaleOf()` gives the latencies whose decades are shown: strips side by side share them.
  constructor(canvas, scaleOf = null) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.data = new Latencies();
    this.scaleOf = scaleOf || (() => [this.data]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    new ResizeObserver(() => this.schedule()).observe(canvas);
  }

  clear() {
    this.data.clear();
    this.schedule();
  }

  push(from, values) {
    this.data.push(from, values);
    this.schedule();
  }

  schedule() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      requestAnimationFrame(() => this.draw());
    }, 1000 / STRIP_HZ);
  }

  draw() {
    const { canvas, context, data } = this;
    const ratio = devicePixelRatio;
    const [width, height] = [canvas.clientWidth * ratio, canvas.clientHeight * ratio];
    if (!width || !height) return;
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    context.clearRect(0, 0, width, height);
    const scale = decades(this.scaleOf());
    const left = 46 * ratio; // for the labels
    this.grid(scale, left, width, height, ratio, colour);
    const bins = data.bins(Math.floor((width - left) / ratio));
    const step = Math.min(5 * ratio, (width - left) / Math.max(1, bins.length));
    const bar = Math.max(1, step - (step > 3 * ratio ? ratio : 0));
    bins.forEach(({ mean, high, hidden }, index) => {
      const x = left + index * step;
      const draw = (value, name, alpha) => {
        const tall = stripHeight(value, scale) * (height - 8 * ratio);
        context.globalAlpha = alpha;
        context.fillStyle = colour(name);
        context.fillRect(x, height - tall, bar, tall);
      };
      if (high > mean) draw(high, "tick", 1);
      draw(mean, hidden ? "voice" : "it", 1);
    });
    context.globalAlpha = 1;
    canvas.dataset.tokens = data.dropped + data.count;
  }

  grid({ low, high }, left, width, height, ratio, colour) {
    const { context } = this;
    context.font = `${10.5 * ratio}px ${getComputedStyle(this.canvas).fontFamily}`;
    context.textBaseline = "middle";
    for (let value = low; value <= high * 1.01; value *= 10) {
      const place = Math.log10(value / low) / Math.log10(high / low);
      const y = height - Math.max(ratio, place * (height - 8 * ratio));
      context.fillStyle = colour("line");
      context.fillRect(left, y, width - left, ratio);
      context.fillStyle = colour("ink-faint");
      context.fillText(`${Number(value.toPrecision(1))} ms`, 0, Math.min(height - 6 * ratio, y));
    }
  }
}

if (typeof module !== "undefined") module.exports = { Latencies, decades, stripHeight, STRIP_CAPACITY };
