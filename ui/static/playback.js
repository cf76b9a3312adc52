// AudioWorklet: plays what the socket's worker sends, and reports what became audible.
// ring.js is prepended. `sampleRate` is the AudioContext's.

const RING_S = 3; // the server keeps 0.6 s ahead; beyond this something is wrong and is trimmed
const PREBUFFER_S = 0.04;
const REPORT_S = 0.05;
const AUDIBLE = 0.004; // amplitude; about -48 dBFS
const FADE_S = 0.008;
const DUCKED = 0.25; // -12 dB, while somebody may be interrupting

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new PlaybackRing(RING_S * sampleRate, Math.round(PREBUFFER_S * sampleRate));
    this.audible = 0; // samples above AUDIBLE since the page opened
    this.power = 0;
    this.counted = 0;
    this.idle = true;
    this.fader = new Fader(FADE_S * sampleRate);
    this.latency = 0; // seconds from here to the ear
    this.came = this.began = null; // when the first samples of this speech came, and were put out
    this.port.onmessage = ({ data }) => {
      if (data.latency !== undefined) this.latency = data.latency;
      if (!data.port) return;
      this.worker = data.port;
      this.worker.onmessage = (message) => this.receive(message.data);
    };
  }

  receive(message) {
    if (message.type === "samples") {
      this.came ??= currentTime;
      this.ring.push(message.samples);
    } else if (message.type === "end") this.ring.end();
    else if (message.type === "duck") this.fader.to(message.on ? DUCKED : 1);
    else if (message.type === "pause") this.fader.to(0);
    else if (message.type === "resume") this.resume();
    else if (message.type === "flush") this.flush();
    this.idle = false;
  }

  resume() {
    this.ring.resume();
    this.fader.to(1);
  }

  flush() {
    this.ring.flush();
    this.fader.reset();
    this.came = this.began = null;
  }

  process(inputs, outputs) {
    const output = outputs[0][0];
    const count = this.ring.pull(output);
    const first = count > 0 && this.began === null;
    if (first) this.began = currentTime;
    this.fader.apply(output);
    if (this.fader.silent) this.ring.pause();
    for (const sample of output) {
      this.power += sample * sample;
      if (sample > AUDIBLE || sample < -AUDIBLE) this.audible++;
    }
    for (const channel of outputs[0].slice(1)) channel.set(output);
    this.counted += output.length;
    if (first || this.counted >= REPORT_S * sampleRate) this.report();
    return true;
  }

  report() {
    const { played, buffered, drained, underruns, trimmed } = this.ring;
    const level = Math.sqrt(this.power / this.counted);
    this.power = this.counted = 0;
    if (this.idle) return;
    this.idle = buffered === 0; // one report says so, then quiet
    const { audible } = this;
    const figures = { played, buffered, drained, underruns, trimmed, audible, level };
    this.worker?.postMessage({ ...figures, ...this.firstSound() });
  }

  // How long the first sound of this speech had to wait here, and how long ago it was audible.
  firstSound() {
    if (this.began === null) return {};
    const waited_ms = 1000 * (this.began - this.came + this.latency);
    return { waited_ms, ago_ms: Math.max(0, 1000 * (currentTime - this.began - this.latency)) };
  }
}

registerProcessor("playback", Playback);
