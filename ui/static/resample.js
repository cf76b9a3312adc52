// Streaming sample-rate conversion with a windowed-sinc filter (Smith, "Digital Audio Resampling").
// Plain script: shared by the socket's worker and the tests.

const RESAMPLE_ZEROS = 16; // zero crossings of the sinc on each side: about 80 dB of stop band
const RESAMPLE_PHASES = 256; // table entries per zero crossing, linearly interpolated

class Resampler {
  constructor(inputHz, outputHz) {
    this.step = inputHz / outputHz; // input samples per output sample
    this.cutoff = Math.min(1, outputHz / inputHz) * 0.95; // of the input's Nyquist frequency
    this.reach = Math.ceil(RESAMPLE_ZEROS / this.cutoff);
    this.held = new Float32Array(this.reach); // the past that the filter still needs
    this.at = this.reach; // where the next output sample lies in `held`
    this.table = sincTable();
  }

  // Float32Array in, the output samples that have become certain out.
  process(input) {
    if (this.step === 1) return input;
    const samples = new Float32Array(this.held.length + input.length);
    samples.set(this.held);
    samples.set(input, this.held.length);
    const last = samples.length - this.reach;
    const output = new Float32Array(Math.max(0, Math.ceil((last - this.at) / this.step)));
    let count = 0;
    for (; this.at < last && count < output.length; this.at += this.step) {
      output[count++] = this.interpolate(samples, this.at);
    }
    const keepFrom = Math.max(0, Math.floor(this.at) - this.reach);
    this.held = samples.slice(keepFrom);
    this.at -= keepFrom;
    return output.subarray(0, count);
  }

  // What is still inside the filter, as if silence followed.
  flush() {
    return this.step === 1 ? new Float32Array(0) : this.process(new Float32Array(this.reach));
  }

  interpolate(samples, at) {
    const first = Math.max(0, Math.ceil(at - this.reach));
    const end = Math.min(samples.length, Math.floor(at + this.reach) + 1);
    let sum = 0;
    for (let index = first; index < end; index++) {
      const place = Math.abs(index - at) * this.cutoff * RESAMPLE_PHASES;
      const entry = place | 0;
      if (entry >= this.table.length - 1) continue;
      const weight = this.table[entry] + (place - entry) * (this.table[entry + 1] - this.table[entry]);
      sum += samples[index] * weight;
    }
    return sum * this.cutoff;
  }
}

let sharedSincTable = null;

// One wing of a Blackman-windowed sinc.
function sincTable() {
  if (sharedSincTable) return sharedSincTable;
  const size = RESAMPLE_ZEROS * RESAMPLE_PHASES;
  sharedSincTable = new Float32Array(size + 1);
  for (let index = 0; index <= size; index++) {
    const x = (Math.PI * index) / RESAMPLE_PHASES;
    const turn = (Math.PI * index) / size;
    const window = 0.42 + 0.5 * Math.cos(turn) + 0.08 * Math.cos(2 * turn);
    sharedSincTable[index] = (index === 0 ? 1 : Math.sin(x) / x) * window;
  }
  return sharedSincTable;
}

if (typeof module !== "undefined") module.exports = { Resampler };
