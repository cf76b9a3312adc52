// The voice controls: buttons, keys, states. Plain script in the page; it starts the socket's
// worker, and passes the server's events on as "unpaused" events of the document, for the panels.

const RELEASE_TAIL_MS = 150; // people let go on the last syllable

class Voice {
  // `follow()` makes the conversation follow a spoken turn; `stopWithoutSocket()` stops a turn.
  constructor(element, sources, follow, stopWithoutSocket) {
    this.find = (name) => element.querySelector(`[data-part="${name}"]`);
    this.follow = follow;
    this.stopWithoutSocket = stopWithoutSocket;
    this.root = this.find("voice");
    this.dial = new Dial(this.find("dial"));
    const touch = matchMedia("(hover: none)").matches; // without a keyboard, most likely
    this.state = { socket: "connecting", microphone: Audio.fault || "off", note: "", touch };
    this.takes = 0;
    this.soundWanted = true;
    this.soundOn = null;
    this.stats = { audible: 0, underruns: 0, trimmed: 0 };
    const { resample, frames, worker } = sources;
    this.worker = new Worker(scriptUrl(resample, frames, worker));
    this.worker.onmessage = ({ data }) => this.receive(data);
    this.audio = new Audio(this.worker, sources, (microphone) => this.microphoneIs(microphone));
    this.listen();
    this.show();
  }

  connect(session) {
    if (!session || this.connected) return;
    this.connected = true;
    this.session = session;
    const url = new URL("ws/voice", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    this.worker.postMessage({ type: "open", url: url.href, session });
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.show();
  }

  // Controls

  listen() {
    const talk = this.find("talk");
    talk.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      talk.setPointerCapture(event.pointerId);
      this.press();
    });
    for (const name of ["pointerup", "pointercancel"]) {
      talk.addEventListener(name, () => this.release());
    }
    talk.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press
    // A click without a pointer comes from Enter or a screen reader: there, it toggles.
    talk.addEventListener("click", (event) => {
      if (event.detail === 0) this.held ? this.release() : this.press();
    });
    this.find("hands-free").addEventListener("click", () => this.toggleHandsFree());
    this.find("sound").addEventListener("click", () => {
      this.soundWanted = !this.soundWanted;
      this.updateSound(true);
    });
    this.find("stop").addEventListener("click", () => this.stop());
    document.addEventListener("keydown", (event) => this.keyDown(event));
    document.addEventListener("keyup", (event) => {
      if (event.code === "Space" && this.spaceHeld) this.release();
    });
    window.addEventListener("blur", () => this.release());
    for (const name of ["pointerdown", "keydown"]) {
      document.addEventListener(name, () => this.updateSound(true), { capture: true });
    }
  }

  keyDown(event) {
    if (event.key === "Escape" && this.active) this.stop();
    if (event.code !== "Space" || event.ctrlKey || event.altKey || event.metaKey) return;
    const on = document.activeElement;
    const talk = on === this.find("talk");
    const typing = on?.closest("input, textarea, select, button, a, summary, [contenteditable]");
    if (typing && !talk) return;
    event.preventDefault();
    if (event.repeat) return;
    this.spaceHeld = true;
    this.press();
  }

  async press() {
    if (this.held) return;
    const free = this.state.mode === "free";
    this.endTake(); // also of a press that was let go just now
    if (free) return; // the dial switches hands-free off
    this.held = true;
    if (!(await this.microphone()) || !this.held) {
      this.held = false;
      return;
    }
    this.beginTake("hold");
  }

  release() {
    this.spaceHeld = false;
    if (!this.held) return;
    this.held = false;
    if (this.state.mode !== "hold") return; // the microphone was still opening
    this.tail = setTimeout(() => this.endTake(), RELEASE_TAIL_MS);
  }

  async toggleHandsFree() {
    const free = this.state.mode === "free";
    this.endTake();
    if (!free && (await this.microphone())) this.beginTake("free");
  }

  async microphone() {
    if (Audio.fault) return false;
    if (this.state.socket !== "open") return false;
    this.set({ microphone: this.audio.stream ? "on" : "asking", note: "" });
    try {
      await this.audio.openMicrophone();
    } catch (error) {
      this.set({ microphone: microphoneFault(error) });
      return false;
    }
    return true;
  }

  beginTake(mode) {
    this.takes++;
    this.worker.postMessage({ type: "talk", on: true, take: this.takes, mode });
    this.set({ mode, talking: true, note: "" });
  }

  endTake() {
    clearTimeout(this.tail);
    if (!this.state.mode) return;
    this.worker.postMessage({ type: "talk", on: false });
    this.set({ mode: null, talking: false, hearing: false });
    this.audio.closeMicrophoneSoon();
  }

  microphoneIs(microphone) {
    if (microphone !== "on" && this.state.mode) {
      this.worker.postMessage({ type: "talk", on: false });
      this.set({ mode: null, talking: false, hearing: false });
    }
    this.set({ microphone });
    this.updateSound();
  }

  // Speech is wanted unless switched off, and possible after a first gesture.
  updateSound(gesture = false) {
    if (gesture && this.soundWanted) this.audio.start().catch(() => this.set({ note: "No sound." }));
    if (!this.soundWanted) this.audio.rest();
    const on = this.soundWanted && Boolean(this.audio.ready) && "AudioWorkletNode" in window;
    if (on !== this.soundOn) this.worker.postMessage({ type: "sound", on });
    this.soundOn = on;
    this.find("sound").setAttribute("aria-checked", String(this.soundWanted));
  }

  stop() {
    this.worker.postMessage({ type: "stop" });
    if (this.state.socket !== "open") this.stopWithoutSocket();
  }

  get active() {
    return Boolean(this.state.server || this.state.playing);
  }

  // What the worker tells

  receive(message) {
    if (message.type === "socket") {
      const lost = message.state !== "open";
      this.set({ socket: message.state, endedCode: message.code, ...(lost && { server: null }) });
      if (message.state === "ended") this.endTake();
      if (!lost) this.audio.prepare();
    } else if (message.type === "microphone") {
      if (!this.state.playing) this.dial.push(loudness(message.level), "you");
    } else if (message.type === "playback") {
      Object.assign(this.stats, message);
      if (this.state.playing) this.dial.push(loudness(message.level), "it");
    } else if (message.type === "playing") {
      this.set({ playing: message.on });
    } else if (message.type === "event") {
      this.receiveEvent(message.event);
    }
  }

  receiveEvent(event) {
    document.dispatchEvent(new CustomEvent("unpaused", { detail: event }));
    const latest = event.turn === this.turn;
    if (event.type === "turn") {
      this.turn = event.turn;
      this.set({ server: event.kind === "voice" ? "transcribing" : "thinking", note: "" });
      if (event.kind === "voice") this.follow();
    } else if (event.type === "state" && latest) {
      this.set({ server: event.state, position: event.position, waitS: event.wait_s });
    } else if (event.type === "done" && latest) {
      const unheard = event.finish === "no_speech" ? "No speech was heard. Try again." : "";
      this.set({ server: null, note: unheard });
    } else if (event.type === "hearing") {
      this.set({ hearing: event.on, partial: "" });
    } else if (event.type === "partial") {
      this.set({ partial: event.text });
    } else if (event.type === "taken_back") {
      this.set({ partial: "" });
    } else if (event.type === "error") {
      this.set({ note: event.message });
    } else if (event.type === "metrics" && this.state.server === "answering") {
      this.countTokens(event.tokens);
    }
  }

  countTokens(tokens) {
    if (!this.state.playing) {
      for (let token = this.tokens || 0; token < tokens; token++) this.dial.push(0.35, "it");
    }
    this.tokens = tokens;
  }

  // What the page shows

  show() {
    const { name, text, fault } = describeStatus(this.state);
    this.root.dataset.state = name;
    this.dial.setState(name);
    const status = this.find("status");
    if (status.textContent !== text) status.textContent = text;
    status.toggleAttribute("data-fault", fault);
    const free = this.state.mode === "free";
    const talk = this.find("talk");
    talk.setAttribute("aria-pressed", String(this.state.mode === "hold"));
    talk.setAttribute("aria-label", free ? "Stop listening" : "Hold to talk");
    this.find("hands-free").setAttribute("aria-checked", String(free));
    this.find("stop").disabled = !this.active;
    if (!this.active) this.tokens = 0;
  }
}

// A level (root mean square) as 0 to 1, by decibels, as ears have it.
function loudness(level) {
  return level > 0 ? Math.max(0, Math.min(1, 1 + (20 * Math.log10(level) + 10) / 40)) : 0;
}
