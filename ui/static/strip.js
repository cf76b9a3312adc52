// A strip chart of token latencies: every token counts, however many there are. Plain script.

const STRIP_HZ = 25;
const STRIP_CAPACITY = 1 << 15; // tokens; past it the oldest go
const STRIP_FLOOR_MS = 0.01;
const STRIP_STEP = 4; // pixels of a column while there is room
const STRIP_LABELS = 46; // pixels on the left

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
    this.low = Infinity; // of all that came
    this.high = 0;
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
    if (value > this.high) this.high = value;
    // 0 is of a token that came with another: the scale need not reach down to it.
    if (value > 0 && value < this.low) this.low = Math.max(STRIP_FLOOR_MS, value);
  }

  // The median of the last few: what a token takes now.
  get now() {
    if (this.count < 2) return null;
    const last = Array.from(this.values.subarray(Math.max(1, this.count - 9), this.count));
    return last.sort((a, b) => a - b)[last.length >> 1];
  }

  // What `size` neighbours from the `from`-th on have in common: {mean, high, hidden}.
  column(from, size) {
    const to = Math.min(this.count, from + size);
    let sum = 0;
    let high = 0;
    for (let index = from; index < to; index++) {
      sum += this.values[index];
      if (this.values[index] > high) high = this.values[index];
    }
    return { mean: sum / (to - from), high, hidden: from + this.dropped < this.hidden };
  }
}

// How `count` tokens go into `width` pixels: {step, size}, the pixels and the tokens of a column.
// Either changes only when twice as many have come: until then a token is drawn once.
function layOutStrip(count, width) {
  let [step, size] = [STRIP_STEP, 1];
  while (count > size * Math.max(1, Math.floor(width / step))) {
    if (step > 1) step /= 2;
    else size *= 2;
  }
  return { step, size };
}

// Whole decades of ms around what there is to show: {low, high}, at least one decade.
function decades(latencies) {
  let low = Infinity;
  let high = STRIP_FLOOR_MS;
  for (const reply of latencies) {
    low = Math.min(low, reply.low);
    high = Math.max(high, reply.high);
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
    this.palette = new Palette(canvas);
    this.data = new Latencies();
    this.scaleOf = scaleOf || (() => [this.data]);
    this.shape = null; // of what is drawn; anything else is drawn anew
    this.drawn = 0; // tokens
    this.width = this.height = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    // Asked of the observer, for asking the canvas would make the browser lay out the page.
    new ResizeObserver(([{ contentRect: box }]) => {
      [this.width, this.height] = [box.width, box.height];
      this.schedule();
    }).observe(canvas);
  }

  clear() {
    this.data.clear();
    this.shape = null;
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
    const { canvas, data, width, height } = this;
    if (!width || !height) return;
    const ratio = devicePixelRatio;
    const scale = decades(this.scaleOf());
    const { step, size } = layOutStrip(data.count, width - STRIP_LABELS);
    if (this.palette.refresh()) this.shape = null;
    const shape = [width, height, ratio, scale.low, scale.high, step, size, data.dropped].join();
    if (shape !== this.shape) this.begin(scale, ratio);
    this.shape = shape;
    // The last column may have been drawn with fewer tokens than it has now.
    for (let from = this.drawn - (this.drawn % size); from < data.count; from += size) {
      this.column(data.column(from, size), STRIP_LABELS + (from / size) * step, step, scale);
    }
    this.drawn = data.count;
    canvas.dataset.tokens = data.dropped + data.count;
  }

  // An empty strip with its scale.
  begin(scale, ratio) {
    const { canvas, context, width, height } = this;
    canvas.width = Math.round(width * ratio); // which also clears it
    canvas.height = Math.round(height * ratio);
    context.scale(ratio, ratio);
    context.font = `10.5px ${this.palette.style.fontFamily}`;
    context.textBaseline = "middle";
    context.fillStyle = this.palette.of("ink-faint");
    for (const { value, y } of this.lines(scale)) {
      context.fillText(`${Number(value.toPrecision(1))} ms`, 0, Math.min(height - 6, y));
    }
    this.rule(scale, STRIP_LABELS, width - STRIP_LABELS);
    this.drawn = 0;
  }

  lines({ low, high }) {
    const lines = [];
    for (let value = low; value <= high * 1.01; value *= 10) {
      const place = Math.log10(value / low) / Math.log10(high / low);
      lines.push({ value, y: this.height - Math.max(1, place * (this.height - 8)) });
    }
    return lines;
  }

  rule(scale, left, length) {
    this.context.fillStyle = this.palette.of("line");
    for (const { y } of this.lines(scale)) this.context.fillRect(left, y, length, 1);
  }

  column({ mean, high, hidden }, x, step, scale) {
    const { context, height } = this;
    const bar = step > 2 ? step - 1 : step;
    context.clearRect(x, 0, step, height);
    this.rule(scale, x, step);
    const draw = (value, name) => {
      const tall = stripHeight(value, scale) * (height - 8);
      context.fillStyle = this.palette.of(name);
      context.fillRect(x, height - tall, bar, tall);
    };
    if (high > mean) draw(high, "tick");
    draw(mean, hidden ? "voice" : "it");
  }
}

const STRIP_PARTS = { Latencies, decades, layOutStrip, stripHeight, STRIP_CAPACITY };
if (typeof module !== "undefined") module.exports = STRIP_PARTS;
