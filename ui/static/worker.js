// Web Worker: owns the voice socket, away from the page's work. resample.js and frames.js are
// prepended. The worklets are connected by MessagePorts; the page gets events and levels.

const MICROPHONE_HZ = 16000;
const MICROPHONE_FRAME = 320; // 20 ms
const SEND_BUFFER_BYTES = 64000; // 2 s of microphone: past this the network has stalled
const RETRIES_MS = [500, 1000, 2000, 4000, 8000];
const RETRIES = 60; // about eight minutes
const NO_RETRY_CODES = [4403, 4404, 4409]; // other origin, unknown session, taken over

let url, session, socket;
let attempts = 0;
let open = false;
let capture = null; // {port, resampler, blocks}
let playback = null; // {port, hz}
let talk = null; // {take, mode, sequence} while listening
let sound = false;
let dropped = 0; // microphone frames the network was too slow for
let latest = 0; // number of the latest turn
let speech = null; // {turn, hz, resampler, received, total, played} being played
let waiting = []; // samples that came before there was a playback worklet

const tell = (message) => self.postMessage(message);

function connect() {
  socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => send({ type: "hello", session });
  socket.onmessage = ({ data }) =>
    typeof data === "string" ? receiveEvent(JSON.parse(data)) : receiveSpeech(data);
  socket.onclose = ({ code }) => {
    open = false;
    flush();
    if (NO_RETRY_CODES.includes(code) || attempts >= RETRIES) {
      tell({ type: "socket", state: "ended", code });
      return;
    }
    const delay = RETRIES_MS[Math.min(attempts++, RETRIES_MS.length - 1)];
    tell({ type: "socket", state: "lost" });
    setTimeout(connect, delay * (0.8 + 0.4 * Math.random()));
  };
}

function send(message) {
  if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function receiveEvent(event) {
  if (event.type === "ready") {
    open = true;
    attempts = 0;
    latest = event.turn;
    tell({ type: "socket", state: "open" });
    send({ type: "sound", on: sound });
    if (talk) sendTalk(true);
  }
  if (event.type === "turn") latest = event.turn;
  if (event.type === "speech") beginSpeech(event);
  if (event.type === "speech_end" && speech && event.turn === speech.turn) endSpeech(event.samples);
  if (speech && event.turn === speech.turn) {
    if (event.type === "flush") flush();
    if (["duck", "pause", "resume"].includes(event.type)) playback?.port.postMessage(event);
  }
  tell({ type: "event", event });
}

function beginSpeech({ turn, rate_hz: hz }) {
  flush();
  if (turn < latest) return;
  speech = { turn, hz, resampler: null, total: null, played: 0 };
  if (playback) speech.resampler = new Resampler(hz, playback.hz);
  tell({ type: "playing", on: true });
}

function endSpeech(samples) {
  speech.total = samples;
  if (!playback) return;
  play(speech.resampler.flush());
  playback.port.postMessage({ type: "end" });
}

function receiveSpeech(buffer) {
  const frame = unpackSpeech(buffer);
  if (!frame || !speech || frame.turn !== speech.turn) return; // of a turn that was stopped
  if (playback) play(speech.resampler.process(frame.samples));
  else if (waiting.length < 150) waiting.push(frame.samples); // the server sends 0.6 s, not more
}

function play(samples) {
  if (samples.length === 0) return;
  const copy = samples.slice();
  playback?.port.postMessage({ type: "samples", samples: copy }, [copy.buffer]);
}

// Silence at once; what is still on its way for this turn is dropped when it comes.
function flush() {
  waiting = [];
  playback?.port.postMessage({ type: "flush" });
  if (speech) tell({ type: "playing", on: false });
  speech = null;
}

function receiveReport(report) {
  tell({ type: "playback", ...report });
  if (!speech) return;
  speech.played = Math.round((report.played * speech.hz) / playback.hz);
  const done = report.drained && speech.total !== null;
  const samples = done ? speech.total : speech.played;
  const { waited_ms, ago_ms } = report;
  send({ type: "played", turn: speech.turn, samples, done, waited_ms, ago_ms });
  if (done) flush();
}

function receiveMicrophone(block) {
  let power = 0;
  for (const sample of block) power += sample * sample;
  if (!talk) return;
  tell({ type: "microphone", level: Math.sqrt(power / block.length) });
  capture.blocks.push(capture.resampler.process(block), (samples) => {
    if (!open) return;
    if (socket.bufferedAmount > SEND_BUFFER_BYTES) {
      dropped++;
      return;
    }
    socket.send(packMicrophone(talk.take, talk.sequence++, samples));
  });
}

function sendTalk(on) {
  send({ type: "talk", take: talk.take, on, mode: talk.mode });
}

const commands = {
  drop: () => socket.close(), // as the network would
  open(message) {
    ({ url, session } = message);
    connect();
  },
  capture({ port, hz }) {
    capture = { port, resampler: new Resampler(hz, MICROPHONE_HZ), blocks: new Blocks(MICROPHONE_FRAME) };
    port.onmessage = ({ data }) => receiveMicrophone(data);
  },
  playback({ port, hz }) {
    playback = { port, hz };
    port.onmessage = ({ data }) => receiveReport(data);
    if (!speech) return;
    speech.resampler = new Resampler(speech.hz, hz);
    waiting.splice(0).forEach((samples) => play(speech.resampler.process(samples)));
    if (speech.total !== null) endSpeech(speech.total);
  },
  talk({ on, take, mode }) {
    if (on) {
      talk = { take, mode, sequence: 0 };
      capture?.blocks.clear();
      sendTalk(true);
    } else if (talk) {
      sendTalk(false);
      talk = null;
    }
  },
  sound({ on }) {
    sound = on;
    send({ type: "sound", on });
    if (!on) flush();
  },
  stop() {
    send({ type: "stop", turn: latest, samples: speech ? speech.played : 0 });
    flush();
  },
};

self.onmessage = ({ data }) => commands[data.type](data);
