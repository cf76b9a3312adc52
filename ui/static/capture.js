// AudioWorklet: hands the microphone to the socket's worker in blocks of 20 ms, unchanged.
// frames.js is prepended. `sampleRate` is the AudioContext's.

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.blocks = new Blocks(Math.round(sampleRate * 0.02));
    this.port.onmessage = ({ data }) => {
      this.worker = data.port;
    };
  }

  process(inputs) {
    const channel = inputs[0][0];
    if (channel && this.worker) {
      this.blocks.push(channel, (block) => this.worker.postMessage(block, [block.buffer]));
    }
    return true;
  }
}

registerProcessor("capture", Capture);
