// The ring of ticks around the microphone: a circular strip chart of sound, or of tokens.
// Plain script in the page.

const DIAL_TICKS = 60;
const DIAL_FPS = 30;

class Dial {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.levels = new Float32Array(DIAL_TICKS);
    this.colours = new Array(DIAL_TICKS).fill("tick");
    this.head = 0;
    this.name = "idle";
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas);
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
    const size = canvas.clientWidth * devicePixelRatio;
    if (!size) return;
    if (canvas.width !== size) canvas.width = canvas.height = size;
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    context.clearRect(0, 0, size, size);
    context.lineWidth = Math.max(1.5, size / 90);
    context.lineCap = "round";
    let alive = false;
    for (let index = 0; index < DIAL_TICKS; index++) {
      const { length, name } = this.tick(index);
      alive ||= this.levels[index] > 0.02;
      const angle = (2 * Math.PI * index) / DIAL_TICKS - Math.PI / 2;
      const inner = size * 0.4;
      const outer = inner + size * (0.028 + 0.062 * length);
      context.strokeStyle = colour(name);
      context.beginPath();
      context.moveTo(size / 2 + inner * Math.cos(angle), size / 2 + inner * Math.sin(angle));
      context.lineTo(size / 2 + outer * Math.cos(angle), size / 2 + outer * Math.sin(angle));
      context.stroke();
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
