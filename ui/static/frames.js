// The voice socket's binary frames; ui/socket.py describes them. Plain script.

const FRAME_HEADER_BYTES = 8;
const FRAME_MICROPHONE = 1;
const FRAME_SPEECH = 2;

// Float32Array in [-1, 1] at 16 kHz to one microphone frame.
function packMicrophone(take, sequence, samples) {
  const buffer = new ArrayBuffer(FRAME_HEADER_BYTES + 2 * samples.length);
  const view = new DataView(buffer);
  view.setUint8(0, FRAME_MICROPHONE);
  view.setUint16(2, sequence & 0xffff, true);
  view.setUint32(4, take, true);
  for (let index = 0; index < samples.length; index++) {
    const clipped = Math.max(-1, Math.min(1, samples[index]));
    view.setInt16(FRAME_HEADER_BYTES + 2 * index, Math.round(clipped * 32767), true);
  }
  return buffer;
}

// A speech frame as {turn, sequence, samples: Float32Array}, or null for anything else.
function unpackSpeech(buffer) {
  const view = new DataView(buffer);
  const bytes = buffer.byteLength - FRAME_HEADER_BYTES;
  if (bytes < 2 || bytes % 2 || view.getUint8(0) !== FRAME_SPEECH) return null;
  const samples = new Float32Array(bytes / 2);
  for (let index = 0; index < samples.length; index++) {
    samples[index] = view.getInt16(FRAME_HEADER_BYTES + 2 * index, true) / 32768;
  }
  return { turn: view.getUint32(4, true), sequence: view.getUint16(2, true), samples };
}

// Collects samples and gives them back in blocks of one size.
class Blocks {
  constructor(size) {
    this.size = size;
    this.block = new Float32Array(size);
    this.filled = 0;
  }

  push(samples, each) {
    for (let from = 0; from < samples.length; ) {
      const count = Math.min(this.size - this.filled, samples.length - from);
      this.block.set(samples.subarray(from, from + count), this.filled);
      this.filled += count;
      from += count;
      if (this.filled === this.size) {
        each(this.block);
        this.block = new Float32Array(this.size);
        this.filled = 0;
      }
    }
  }

  clear() {
    this.filled = 0;
  }
}

if (typeof module !== "undefined") {
  module.exports = { packMicrophone, unpackSpeech, Blocks, FRAME_HEADER_BYTES };
}
