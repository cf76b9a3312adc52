const assert = require("node:assert");
const { test } = require("node:test");
const { packMicrophone, unpackSpeech, Blocks } = require("../../../ui/static/frames.js");

test("a microphone frame is laid out as the server reads it", () => {
  const data = Buffer.from(packMicrophone(3, 65537, Float32Array.of(0, 1, -1, 2, -2, 0.5)));
  assert.deepStrictEqual([...data.subarray(0, 8)], [1, 0, 1, 0, 3, 0, 0, 0]);
  const samples = Array.from({ length: 6 }, (_, n) => data.readInt16LE(8 + 2 * n));
  assert.deepStrictEqual(samples, [0, 32767, -32767, 32767, -32767, 16384]);
});

test("a speech frame is read back", () => {
  const data = Buffer.from([2, 0, 7, 0, 5, 0, 0, 0, 0x00, 0x40, 0x00, 0x80]);
  const frame = unpackSpeech(data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
  assert.deepStrictEqual([frame.turn, frame.sequence, [...frame.samples]], [5, 7, [0.5, -1]]);
});

for (const [what, bytes] of [["empty", []], ["short", [2, 0, 0]], ["odd", [2, 0, 0, 0, 0, 0, 0, 0, 1]],
  ["of another kind", [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]]]) {
  test(`a frame that is ${what} is nothing`, () => {
    assert.strictEqual(unpackSpeech(Uint8Array.from(bytes).buffer), null);
  });
}

test("blocks have one size, however the samples come", () => {
  const blocks = new Blocks(4);
  const seen = [];
  for (const part of [[1], [2, 3, 4, 5, 6, 7], [8, 9]]) {
    blocks.push(Float32Array.from(part), (block) => seen.push([...block]));
  }
  assert.deepStrictEqual(seen, [[1, 2, 3, 4], [5, 6, 7, 8]]);
  blocks.clear();
  blocks.push(Float32Array.of(10, 11, 12, 13), (block) => seen.push([...block]));
  assert.deepStrictEqual(seen[2], [10, 11, 12, 13]);
});
