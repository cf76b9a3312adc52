// The ring of ticks around the microphone: a circular strip chart of sound, or of tokens.
// Plain script in the page.

const DIAL_TICKS = 60;
const DIAL_FPS = 25;

class Dial {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.palette = new Palette(canvas);
    this.size = 0;
    this.levels = new Float32Array(DIAL_TICKS);
    this.colours = new Array(DIAL_TICKS).fill("tick");
    this.head = 0;
    this.name = "idle";
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
    new ResizeObserver(([{ contentRect: box }]) => {
      this.size = box.width;
      this.draw();
    }).observe(canvas);
  }

  // One more reading, 0 to 1, in the colour of whoever made it: "you" or "it".
  push(level, colour) {
    this.levels[this.head] = Math.max(0, Math.min(1, level));
    this.colours[this.head] = colour;
    this.head = (this.head + 1) % DIAL_TICKS;
    this.schedule();
  }

  setState(name) {
    if (name === this.name) return;
    this.name = name;
    this.since = performance.now();
    this.schedule();
  }

  get busy() {
    return this.name === "thinking" || this.name === "waiting";
  }

  schedule() {
    if (this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      requestAnimationFrame(() => this.draw());
    }, 1000 / DIAL_FPS);
  }

  draw() {
    const { canvas, context } = this;
    const size = Math.round(this.size * devicePixelRatio);
    if (!size) return;
    if (canvas.width !== size) canvas.width = canvas.height = size;
    this.palette.refresh();
    context.clearRect(0, 0, size, size);
    context.lineWidth = Math.max(1.5, size / 90);
    context.lineCap = "round";
    const lines = new Map(); // by colour: one stroke each
    let alive = false;
    for (let index = 0; index < DIAL_TICKS; index++) {
      const { length, name } = this.tick(index);
      alive ||= this.levels[index] > 0.02;
      const angle = (2 * Math.PI * index) / DIAL_TICKS - Math.PI / 2;
      const [inner, outer] = [size * 0.4, size * (0.428 + 0.062 * length)];
      const [x, y] = [Math.cos(angle), Math.sin(angle)];
      if (!lines.has(name)) lines.set(name, new Path2D());
      lines.get(name).moveTo(size / 2 + inner * x, size / 2 + inner * y);
      lines.get(name).lineTo(size / 2 + outer * x, size / 2 + outer * y);
    }
    for (const [name, path] of lines) {
      context.strokeStyle = this.palette.of(name);
      context.stroke(path);
    }
    if (alive) this.fade();
    if (alive || (this.busy && !this.calm.matches)) this.schedule();
  }

  tick(index) {
    if (!this.busy) {
      const level = this.levels[index];
      return { length: level, name: level > 0.02 ? this.colours[index] : "tick" };
    }
    // Nothing to measure yet: three hands go round, or stand still for those who prefer it.
    const turned = this.calm.matches ? 0 : (performance.now() - this.since) / 40;
    const behind = (((turned - index) % 20) + 20) % 20;
    const near = Math.max(0, 1 - behind / 8);
    return { length: 0.5 * near, name: near > 0.1 ? "it" : "tick" };
  }

  fade() {
    const kept = this.name === "idle" || this.name === "off" ? 0.86 : 0.97;
    for (let index = 0; index < DIAL_TICKS; index++) this.levels[index] *= kept;
  }
}
