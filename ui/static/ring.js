// The playback buffer: bounded, prebuffered, and it knows what was played. Plain script.

class PlaybackRing {
  // `capacity` and `prebuffer` in samples.
  constructor(capacity, prebuffer) {
    this.samples = new Float32Array(capacity);
    this.prebuffer = prebuffer;
    this.trimmed = 0; // samples dropped because the buffer was full
    this.underruns = 0; // times that speech was due and had not come
    this.flush();
  }

  flush() {
    this.from = 0;
    this.buffered = 0;
    this.played = 0;
    this.playing = false;
    this.ended = false;
    this.paused = false;
  }

  // Nothing is taken out until `resume`; what is pushed meanwhile is kept as ever.
  pause() {
    this.paused = true;
  }

  resume() {
    this.paused = false;
  }

  // Appends; the oldest samples give way, so the delay cannot grow.
  push(input) {
    const capacity = this.samples.length;
    if (input.length > capacity) {
      this.skip(input.length - capacity);
      input = input.subarray(input.length - capacity);
    }
    const overflow = this.buffered + input.length - capacity;
    if (overflow > 0) {
      this.skip(overflow);
      this.from = (this.from + overflow) % capacity;
      this.buffered -= overflow;
    }
    const at = (this.from + this.buffered) % capacity;
    const first = Math.min(input.length, capacity - at);
    this.samples.set(input.subarray(0, first), at);
    this.samples.set(input.subarray(first), 0);
    this.buffered += input.length;
  }

  // Samples that are lost count as played all the same: the sender waits for that count.
  skip(count) {
    this.trimmed += count;
    this.played += count;
  }

  // No more samples will come: play what is left, however short.
  end() {
    this.ended = true;
  }

  // Fills `output` (silence where there is nothing); returns how many samples are speech.
  pull(output) {
    if (this.paused) {
      output.fill(0);
      return 0;
    }
    if (!this.playing) {
      this.playing = this.buffered > 0 && (this.ended || this.buffered >= this.prebuffer);
      if (!this.playing) {
        output.fill(0);
        return 0;
      }
    }
    const count = Math.min(output.length, this.buffered);
    for (let index = 0; index < count; index++) {
      output[index] = this.samples[(this.from + index) % this.samples.length];
    }
    output.fill(0, count);
    this.from = (this.from + count) % this.samples.length;
    this.buffered -= count;
    this.played += count;
    if (count < output.length) {
      this.playing = false;
      if (!this.ended) this.underruns++;
    }
    return count;
  }

  get drained() {
    return this.ended && this.buffered === 0;
  }
}

// Loudness that changes within milliseconds, so that it does not click.
class Fader {
  constructor(rampSamples) {
    this.step = 1 / rampSamples;
    this.gain = this.goal = 1;
  }

  to(goal) {
    this.goal = goal;
  }

  // At once: there is nothing that could click.
  reset() {
    this.gain = this.goal = 1;
  }

  apply(samples) {
    if (this.gain === 1 && this.goal === 1) return;
    for (let index = 0; index < samples.length; index++) {
      const way = this.goal - this.gain;
      this.gain += Math.max(-this.step, Math.min(this.step, way));
      samples[index] *= this.gain;
    }
  }

  get silent() {
    return this.gain === 0 && this.goal === 0;
  }
}

if (typeof module !== "undefined") module.exports = { PlaybackRing, Fader };
