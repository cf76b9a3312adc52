// AudioWorklet: plays what the socket's worker sends, and reports what became audible.
// ring.js is prepended. `sampleRate` is the AudioContext's.

const RING_S = 3; // the server keeps 0.6 s ahead; beyond this something is wrong and is trimmed
const PREBUFFER_S = 0.04;
const REPORT_S = 0.05;
const AUDIBLE = 0.004; // amplitude; about -48 dBFS

class Playback extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ring = new PlaybackRing(RING_S * sampleRate, Math.round(PREBUFFER_S * sampleRate));
    this.audible = 0; // samples above AUDIBLE since the page opened
    this.power = 0;
    this.counted = 0;
    this.idle = true;
    this.port.onmessage = ({ data }) => {
      this.worker = data.port;
      this.worker.onmessage = (message) => this.receive(message.data);
    };
  }

  receive(message) {
    if (message.type === "samples") this.ring.push(message.samples);
    else if (message.type === "end") this.ring.end();
    else if (message.type === "flush") this.ring.flush();
    this.idle = false;
  }

  process(inputs, outputs) {
    const output = outputs[0][0];
    this.ring.pull(output);
    for (const sample of output) {
      this.power += sample * sample;
      if (sample > AUDIBLE || sample < -AUDIBLE) this.audible++;
    }
    for (const channel of outputs[0].slice(1)) channel.set(output);
    this.counted += output.length;
    if (this.counted >= REPORT_S * sampleRate) this.report();
    return true;
  }

  report() {
    const { played, buffered, drained, underruns, trimmed } = this.ring;
    const level = Math.sqrt(this.power / this.counted);
    this.power = this.counted = 0;
    if (this.idle) return;
    this.idle = buffered === 0; // one report says so, then quiet
    const { audible } = this;
    this.worker?.postMessage({ played, buffered, drained, underruns, trimmed, audible, level });
  }
}

registerProcessor("playback", Playback);
