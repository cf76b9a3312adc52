const assert = require("node:assert");
const { test } = require("node:test");
const { describeStatus, microphoneFault } = require("../../../ui/static/status.js");
const {
  describeDrafts,
  formatMs,
  formatRate,
  layOutStages,
} = require("../../../ui/static/readings.js");

const open = { socket: "open", microphone: "off" };

for (const [state, name, text, fault] of [
  [{ socket: "connecting" }, "off", /Connecting/, false],
  [{ socket: "lost", playing: true }, "off", /Reconnecting/, true],
  [{ socket: "ended", endedCode: 4409 }, "off", /another tab/, true],
  [{ socket: "ended", endedCode: 4404 }, "off", /Reload/, true],
  [open, "idle", /Hold to talk, or hold Space/, false],
  [{ ...open, touch: true }, "idle", /^Hold to talk$/, false],
  [{ ...open, microphone: "asking" }, "waiting", /Allow/, false],
  [{ ...open, microphone: "denied" }, "off", /blocked.*Typing works/, true],
  [{ ...open, microphone: "insecure" }, "off", /https/, true],
  [{ ...open, microphone: "unplugged" }, "off", /went away/, true],
  [{ ...open, microphone: "denied", playing: true }, "speaking", /Speaking/, false],
  [{ ...open, talking: true, mode: "hold" }, "listening", /Release to send/, false],
  [{ ...open, talking: true, mode: "free" }, "listening", /Just speak/, false],
  [{ ...open, talking: true, mode: "free", hearing: true }, "listening", /^Listening…/, false],
  [{ ...open, talking: true, mode: "free", playing: true }, "speaking", /Talk over it/, false],
  [{ ...open, server: "waiting", position: 1 }, "waiting", /1 turn is before yours$/, false],
  [{ ...open, server: "waiting", position: 2, waitS: 7.6 }, "waiting", /2 turns .* about 8 s/, false],
  [{ ...open, server: "waiting", position: 3 }, "waiting", /3 turns are/, false],
  [{ ...open, server: "loading" }, "thinking", /Loading/, false],
  [{ ...open, server: "transcribing" }, "thinking", /Transcribing/, false],
  [{ ...open, server: "thinking" }, "thinking", /Thinking/, false],
  [{ ...open, server: "measuring" }, "thinking", /engines/, false],
  [{ ...open, server: "answering" }, "answering", /Answering/, false],
  [{ ...open, note: "No speech was heard." }, "idle", /No speech/, true],
]) {
  test(`status of ${JSON.stringify(state)}`, () => {
    const status = describeStatus(state);
    assert.strictEqual(status.name, name);
    assert.match(status.text, text);
    assert.strictEqual(status.fault, fault);
  });
}

test("faults of getUserMedia become words", () => {
  const named = (name) => microphoneFault({ name });
  assert.strictEqual(named("NotAllowedError"), "denied");
  assert.strictEqual(named("NotFoundError"), "missing");
  assert.strictEqual(named("NotReadableError"), "busy");
  assert.strictEqual(microphoneFault(undefined), "busy");
});

test("figures have a sensible number of digits", () => {
  assert.deepStrictEqual([null, undefined, 0, 0.6071, 9.99, 18.44, 412.4, 1785.2].map(formatMs), [
    "–", "–", "0.00", "0.61", "9.99", "18.4", "412", "1785",
  ]);
  assert.deepStrictEqual([null, 4.25, 54.34, 170.2, 3047.4].map(formatRate), [
    "–", "4.3", "54.3", "170", "3,047",
  ]);
});

test("stages follow each other and fill the whole", () => {
  const { bars, total } = layOutStages([
    { name: "endpointing", ms: 200 },
    { name: "prefill", ms: 50 },
    { name: "synthesis", ms: 150 },
    { name: "a later stage", ms: 100 },
  ]);
  assert.strictEqual(total, 500);
  assert.deepStrictEqual(bars.map((bar) => [bar.label, bar.side, bar.from, bar.length]), [
    ["Endpointing", "you", 0, 40],
    ["Prefill", "it", 40, 10],
    ["Synthesis", "voice", 50, 30],
    ["a later stage", "voice", 80, 20],
  ]);
});

test("stages that took no time lay out without a fault", () => {
  assert.deepStrictEqual(layOutStages([]), { bars: [], total: 0 });
  assert.strictEqual(layOutStages([{ name: "prefill", ms: 0 }]).bars[0].length, 0);
});

test("drafts are told only where the engine drafts", () => {
  assert.equal(describeDrafts(null), null);
  assert.equal(describeDrafts(undefined), null);
  const speculation = { passes: 5, drafted: 12, accepted: 9, acceptance: 0.75, tokens_per_pass: 2.8 };
  assert.deepEqual(describeDrafts(speculation), { acceptance: "75", perPass: "2.8" });
  const none = { passes: 0, drafted: 0, accepted: 0, acceptance: null, tokens_per_pass: null };
  assert.deepEqual(describeDrafts(none), { acceptance: "–", perPass: "–" });
});
