const assert = require("node:assert");
const { test } = require("node:test");
const { Resampler } = require("../../../ui/static/resample.js");

const sine = (hz, rate, seconds) =>
  Float32Array.from({ length: rate * seconds }, (_, n) => 0.5 * Math.sin((2 * Math.PI * hz * n) / rate));
const rms = (samples) => Math.sqrt(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);

function convert(input, from, to, chunk) {
  const resampler = new Resampler(from, to);
  const output = [];
  for (let at = 0; at < input.length; at += chunk) {
    output.push(...resampler.process(input.subarray(at, at + chunk)));
  }
  output.push(...resampler.flush());
  return Float32Array.from(output);
}

for (const [from, to] of [[44100, 16000], [48000, 16000], [22050, 44100], [22050, 48000], [16000, 44100]]) {
  test(`a tone keeps its length, level and phase from ${from} to ${to} Hz`, () => {
    const output = convert(sine(440, from, 1), from, to, 128);
    assert.ok(Math.abs(output.length - to) <= 2, `${output.length}`);
    const expected = sine(440, to, 1);
    const middle = [Math.round(0.1 * to), Math.round(0.9 * to)];
    const error = output.slice(...middle).map((x, n) => x - expected[middle[0] + n]);
    assert.ok(rms(error) < 0.002, `${rms(error)}`);
  });
}

test("how the input is cut changes nothing", () => {
  const input = sine(1000, 48000, 0.5);
  const whole = convert(input, 48000, 16000, input.length);
  for (const chunk of [1, 127, 960]) {
    const cut = convert(input, 48000, 16000, chunk);
    assert.strictEqual(cut.length, whole.length);
    assert.ok(cut.every((x, n) => Math.abs(x - whole[n]) < 1e-6));
  }
});

test("what the new rate cannot hold is filtered out, not folded back", () => {
  assert.ok(rms(convert(sine(12000, 48000, 0.5), 48000, 16000, 960)) < 0.002);
});

test("equal rates pass through", () => {
  const input = sine(440, 16000, 0.1);
  assert.deepStrictEqual(convert(input, 16000, 16000, 320), input);
});
