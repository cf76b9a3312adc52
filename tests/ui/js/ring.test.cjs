const assert = require("node:assert");
const { test } = require("node:test");
const { PlaybackRing, Fader } = require("../../../ui/static/ring.js");

const ramp = (count, from = 1) => Float32Array.from({ length: count }, (_, n) => from + n);

function pull(ring, count) {
  const output = new Float32Array(count).fill(9);
  return [ring.pull(output), [...output]];
}

test("nothing plays before the prebuffer is full", () => {
  const ring = new PlaybackRing(100, 8);
  ring.push(ramp(7));
  assert.deepStrictEqual(pull(ring, 4), [0, [0, 0, 0, 0]]);
  ring.push(ramp(1, 8));
  assert.deepStrictEqual(pull(ring, 4), [4, [1, 2, 3, 4]]);
  assert.strictEqual(ring.underruns, 0);
});

test("an ending plays however short it is, and drains", () => {
  const ring = new PlaybackRing(100, 8);
  ring.push(ramp(3));
  ring.end();
  assert.deepStrictEqual(pull(ring, 4), [3, [1, 2, 3, 0]]);
  assert.ok(ring.drained);
  assert.strictEqual(ring.underruns, 0);
  assert.strictEqual(ring.played, 3);
});

test("running dry counts as an underrun and prebuffers again", () => {
  const ring = new PlaybackRing(100, 4);
  ring.push(ramp(4));
  pull(ring, 6);
  assert.strictEqual(ring.underruns, 1);
  ring.push(ramp(3));
  assert.strictEqual(pull(ring, 2)[0], 0);
  ring.push(ramp(1));
  assert.strictEqual(pull(ring, 2)[0], 2);
});

test("samples keep their order around the end of the buffer", () => {
  const ring = new PlaybackRing(10, 1);
  let expected = 1;
  for (let next = 1; next < 200; next += 7) {
    ring.push(ramp(7, next));
    const [count, output] = pull(ring, 7);
    assert.strictEqual(count, 7);
    for (const sample of output) assert.strictEqual(sample, expected++);
  }
});

test("too much drops the oldest, so the delay stays bounded", () => {
  const ring = new PlaybackRing(10, 1);
  ring.push(ramp(8));
  ring.push(ramp(6, 9));
  assert.strictEqual(ring.trimmed, 4);
  assert.deepStrictEqual(pull(ring, 10)[1], [...ramp(10, 5)]);
  assert.strictEqual(ring.played, 14);
});

test("one push larger than the buffer keeps its end", () => {
  const ring = new PlaybackRing(10, 1);
  ring.push(ramp(3));
  ring.push(ramp(25, 4));
  assert.deepStrictEqual(pull(ring, 10)[1], [...ramp(10, 19)]);
  assert.strictEqual(ring.played, 28);
});

test("a flush is silent at once", () => {
  const ring = new PlaybackRing(100, 2);
  ring.push(ramp(50));
  pull(ring, 10);
  ring.flush();
  assert.deepStrictEqual(pull(ring, 3), [0, [0, 0, 0]]);
  assert.strictEqual(ring.played, 0);
});

test("a pause keeps what is buffered, and what comes during it", () => {
  const ring = new PlaybackRing(100, 2);
  ring.push(ramp(4));
  assert.deepStrictEqual(pull(ring, 2), [2, [1, 2]]);
  ring.pause();
  ring.push(ramp(2, 5));
  assert.deepStrictEqual(pull(ring, 3), [0, [0, 0, 0]]);
  assert.strictEqual(ring.played, 2);
  ring.resume();
  assert.deepStrictEqual(pull(ring, 4), [4, [3, 4, 5, 6]]);
  assert.strictEqual(ring.underruns, 0);
});

test("a flush ends a pause", () => {
  const ring = new PlaybackRing(100, 2);
  ring.push(ramp(4));
  ring.pause();
  ring.flush();
  ring.push(ramp(2));
  assert.deepStrictEqual(pull(ring, 2), [2, [1, 2]]);
});

test("a fader reaches silence in its ramp, without a jump, and comes back", () => {
  const fader = new Fader(10);
  const loud = () => new Float32Array(20).fill(1);
  const first = loud();
  fader.apply(first);
  assert.deepStrictEqual([...first], [...loud()]);
  fader.to(0);
  const down = loud();
  fader.apply(down);
  assert.ok(down.every((value, n) => n === 0 || Math.abs(value - down[n - 1]) < 0.11));
  assert.ok(down[0] > 0.85 && Math.abs(down[12]) < 1e-6);
  fader.apply(loud());
  assert.ok(fader.silent);
  fader.to(1);
  const up = loud();
  fader.apply(up);
  assert.ok(!fader.silent && up[0] < 0.2 && Math.abs(up[19] - 1) < 1e-6);
});
