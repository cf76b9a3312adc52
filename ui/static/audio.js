// The page's one AudioContext, the microphone, and their worklets. Plain script in the page.

const MICROPHONE_WISHES = {
  audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 },
};
const LATENCY_LOOK_MS = 5000;
const MICROPHONE_LINGER_MS = 20000; // kept open between two presses, so the second starts at once

function scriptUrl(...sources) {
  return URL.createObjectURL(new Blob(sources, { type: "text/javascript" }));
}

class Audio {
  // `worker` is the socket's; `onMicrophone(state)` hears "on", "off" or a fault.
  constructor(worker, sources, onMicrophone) {
    this.worker = worker;
    this.sources = sources;
    this.onMicrophone = onMicrophone;
    this.stream = null;
  }

  static get fault() {
    if (!navigator.mediaDevices) return isSecureContext ? "unsupported" : "insecure";
    return "AudioWorkletNode" in window ? null : "unsupported";
  }

  // Making a context asks the system and may take 50 ms: done ahead, it delays no gesture.
  prepare() {
    if (this.context || !("AudioWorkletNode" in window)) return;
    this.context = new AudioContext({ latencyHint: "interactive" });
    this.context.suspend(); // some browsers would begin without being asked
  }

  // No sound is wanted: unless the microphone needs it the device rests until the next `start`.
  rest() {
    if (!this.stream) this.context?.suspend();
  }

  // Call it within a gesture: browsers start sound in no other way.
  start() {
    if (!this.ready) {
      // Worklets exist only in secure contexts: without them the page stays silent.
      this.ready = "AudioWorkletNode" in window ? this.connectPlayback() : Promise.resolve(false);
    } else if (this.context?.state === "suspended") {
      this.context.resume();
    }
    return this.ready;
  }

  async connectPlayback() {
    this.prepare();
    this.context.resume();
    const { ring, playback, frames, capture } = this.sources;
    await Promise.all([
      this.context.audioWorklet.addModule(scriptUrl(ring, playback)),
      this.context.audioWorklet.addModule(scriptUrl(frames, capture)),
    ]);
    const node = new AudioWorkletNode(this.context, "playback", {
      numberOfInputs: 0,
      outputChannelCount: [1],
    });
    node.connect(this.context.destination);
    this.joinWorker("playback", node);
    this.tellLatency(node);
    return true;
  }

  // The way from the worklet to the ear is known once sound runs, and may change with the device.
  tellLatency(node) {
    const tell = () => {
      const latency = this.context.outputLatency || this.context.baseLatency || 0;
      node.port.postMessage({ latency });
    };
    this.context.addEventListener("statechange", tell);
    this.latencyTimer = setInterval(tell, LATENCY_LOOK_MS);
    tell();
  }

  joinWorker(type, node) {
    const channel = new MessageChannel();
    node.port.postMessage({ port: channel.port1 }, [channel.port1]);
    const port = channel.port2;
    this.worker.postMessage({ type, port, hz: this.context.sampleRate }, [port]);
  }

  // Opens the microphone, asking for it if need be. Throws what getUserMedia throws.
  async openMicrophone() {
    clearTimeout(this.lingering);
    if (this.stream) return;
    await this.start();
    const stream = await navigator.mediaDevices.getUserMedia(MICROPHONE_WISHES);
    if (this.stream) {
      // Two presses asked at once; one stream is enough.
      stream.getTracks().forEach((track) => track.stop());
      return;
    }
    this.stream = stream;
    stream.getAudioTracks()[0].onended = () => {
      this.closeMicrophone();
      this.onMicrophone("unplugged");
    };
    this.source = this.context.createMediaStreamSource(stream);
    this.captureNode = new AudioWorkletNode(this.context, "capture", { numberOfOutputs: 0 });
    this.source.connect(this.captureNode);
    this.joinWorker("capture", this.captureNode);
    this.onMicrophone("on");
  }

  closeMicrophone() {
    clearTimeout(this.lingering);
    this.source?.disconnect();
    this.captureNode?.disconnect();
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = this.source = this.captureNode = null;
    this.onMicrophone("off");
  }

  closeMicrophoneSoon() {
    clearTimeout(this.lingering);
    this.lingering = setTimeout(() => this.closeMicrophone(), MICROPHONE_LINGER_MS);
  }
}
