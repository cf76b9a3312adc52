const assert = require("node:assert");
const { test } = require("node:test");
const {
  Latencies,
  STRIP_CAPACITY,
  decades,
  layOutStrip,
  stripHeight,
} = require("../../../ui/static/strip.js");
const { arrived, latenciesOf, pieceEnds } = require("../../../ui/static/lanes.js");
const { withSettings } = require("../../../ui/static/link.js");

function filled(values) {
  const latencies = new Latencies();
  latencies.push(0, values);
  return latencies;
}

test("every token counts once, whatever is told twice", () => {
  const latencies = new Latencies();
  latencies.push(0, [10, 1, 2]);
  latencies.push(1, [1, 2, 3]);
  latencies.push(4, [4]);
  assert.deepStrictEqual(Array.from(latencies.values.subarray(0, latencies.count)), [10, 1, 2, 3, 4]);
});

test("what a token takes now is the median of the last few, without the first token", () => {
  assert.strictEqual(new Latencies().now, null);
  assert.strictEqual(filled([90]).now, null);
  assert.strictEqual(filled([90, 2]).now, 2);
  assert.strictEqual(filled([90, 9, 9, 9, 9, 9, 9, 9, 1, 1, 50, 1, 1, 1, 1, 1]).now, 1);
});

test("neighbours share a column when there are more tokens than columns, and none is lost", () => {
  const latencies = filled(Array.from({ length: 1000 }, (_, index) => (index === 777 ? 64 : 1)));
  const { step, size } = layOutStrip(1000, 250);
  assert.deepStrictEqual({ step, size }, { step: 1, size: 4 });
  assert.strictEqual(latencies.column(776, size).high, 64); // the one slow token is still seen
  assert.strictEqual(latencies.column(776, size).mean, (64 + 3) / 4);
  assert.strictEqual(latencies.column(772, size).mean, 1);
  assert.strictEqual(latencies.column(999, size).mean, 1); // a column that is not full
});

test("columns change only when twice as many tokens have come, and always fit", () => {
  const seen = new Set();
  for (let count = 0; count <= STRIP_CAPACITY; count++) {
    const { step, size } = layOutStrip(count, 246);
    assert.ok(Math.ceil(count / size) * step <= 246);
    seen.add(`${step} ${size}`);
  }
  assert.strictEqual(seen.size, 11);
  assert.deepStrictEqual(layOutStrip(3, 246), { step: 4, size: 1 });
  assert.ok(layOutStrip(10, 0).size >= 10); // a strip that has no room yet
});

test("hidden tokens are marked", () => {
  const latencies = filled([5, 1, 1, 1]);
  latencies.hidden = 2;
  const marks = [0, 1, 2, 3].map((from) => latencies.column(from, 1).hidden);
  assert.deepStrictEqual(marks, [true, true, false, false]);
});

test("memory is bounded and numbering goes on", () => {
  const latencies = new Latencies();
  const total = 10 * Math.ceil(STRIP_CAPACITY / 10 + 1);
  for (let at = 0; at < total; at += 10) latencies.push(at, Array(10).fill(at));
  assert.ok(latencies.values.length <= STRIP_CAPACITY);
  assert.strictEqual(latencies.dropped + latencies.count, total);
  latencies.push(total - 1, [7, 8]);
  assert.strictEqual(latencies.dropped + latencies.count, total + 1);
  assert.strictEqual(latencies.values[latencies.count - 1], 8);
});

test("the scale is whole decades around all that is shown", () => {
  assert.deepStrictEqual(decades([filled([18, 20])]), { low: 10, high: 100 });
  assert.deepStrictEqual(decades([filled([0.6, 0.7]), filled([13, 14])]), { low: 0.1, high: 100 });
  assert.deepStrictEqual(decades([filled([10, 10])]), { low: 10, high: 100 });
  assert.deepStrictEqual(decades([new Latencies()]), { low: 1, high: 10 });
  assert.ok(decades([filled([0])]).low > 0);
  assert.deepStrictEqual(decades([filled([18, 0, 0, 20])]), { low: 10, high: 100 });
});

test("heights are logarithmic and stay inside", () => {
  const scale = { low: 1, high: 100 };
  assert.strictEqual(stripHeight(10, scale), 0.5);
  assert.strictEqual(stripHeight(1000, scale), 1);
  assert.ok(stripHeight(0, scale) > 0);
});

test("tokens appear when they came", () => {
  const times = [10, 20, 20, 30];
  assert.deepStrictEqual([0, 9.9, 10, 20, 29, 30, Infinity].map((now) => arrived(times, now)), [
    0, 0, 1, 3, 3, 4, 4,
  ]);
  assert.strictEqual(arrived([], 5), 0);
  assert.deepStrictEqual(latenciesOf(times), [10, 10, 0, 10]);
  assert.deepStrictEqual(pieceEnds(["ab", "", "c"]), [2, 2, 3]);
});

test("settings go into the address, defaults stay out", () => {
  assert.strictEqual(withSettings("", { view: "race" }), "?view=race");
  assert.strictEqual(withSettings("?view=race&hidden=300", { view: null }), "?hidden=300");
  assert.strictEqual(withSettings("?view=race", { view: null }), "");
  assert.strictEqual(withSettings("?a=x", { hidden: 0, engine: "a&b" }), "?a=x&hidden=0&engine=a%26b");
});
