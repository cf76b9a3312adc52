// What the page says it is doing, from the states of its parts. Pure; plain script.

const MICROPHONE_FAULTS = {
  insecure:
    "No microphone here: browsers give it only to https pages and to localhost. Typing works.",
  unsupported: "This browser offers no microphone or audio worklets. Typing works.",
  denied: "The microphone is blocked. Allow it in the browser's site settings. Typing works.",
  missing: "No microphone was found. Plug one in and try again. Typing works.",
  busy: "The microphone could not be opened; another program may hold it. Typing works.",
  unplugged: "The microphone went away. Plug it in and try again. Typing works.",
};

const ENDED = {
  4403: "The voice connection was refused: this page was opened under another address.",
  4409: "This conversation went on in another tab.",
};

// state: {socket, endedCode, microphone, talking, mode, hearing, playing, server, position, waitS,
// partial, note}
// Gives {name, text, fault}: `name` styles the dial, `fault` marks text that asks for action.
function describeStatus(state) {
  const idle = state.mode === "free" ? "listening" : "idle";
  const say = (name, text, fault = false) => ({ name, text, fault });
  if (state.socket === "ended") {
    return say("off", ENDED[state.endedCode] || "The voice connection ended. Reload the page.", true);
  }
  if (state.socket === "lost") {
    return say("off", "The voice connection was lost. Reconnecting… Typing still works.", true);
  }
  if (state.microphone === "asking") return say("waiting", "Allow the microphone in the browser…");
  if (state.talking && state.mode === "hold") return say("listening", "Listening. Release to send.");
  if (state.hearing && !state.playing) {
    return say("listening", state.partial ? `“${state.partial}”` : "Listening…");
  }
  if (state.playing) {
    return say("speaking", state.mode === "free" ? "Speaking. Talk over it to interrupt." : "Speaking");
  }
  if (state.server === "waiting") return say("waiting", waitingText(state));
  if (state.server === "loading") return say("thinking", "Loading the model…");
  if (state.server === "transcribing") return say("thinking", "Transcribing…");
  if (state.server === "thinking") return say("thinking", "Thinking…");
  if (state.server === "measuring") return say("thinking", "Running the engines…");
  if (state.server === "answering") return say("answering", "Answering");
  if (MICROPHONE_FAULTS[state.microphone]) return say("off", MICROPHONE_FAULTS[state.microphone], true);
  if (state.note) return say(idle, state.note, true);
  if (state.socket === "connecting") return say("off", "Connecting…");
  if (state.mode === "free") return say("listening", "Listening. Just speak.");
  return say("idle", state.touch ? "Hold to talk" : "Hold to talk, or hold Space");
}

// `waitS` is the server's estimate in seconds; null while no turn has shown how long one takes.
function waitingText({ position, waitS }) {
  const before = position === 1 ? "1 turn is" : `${position} turns are`;
  const about = waitS == null ? "" : `, about ${Math.max(1, Math.round(waitS))} s`;
  return `Waiting: ${before} before yours${about}`;
}

// Why getUserMedia failed, as a key of MICROPHONE_FAULTS.
function microphoneFault(error) {
  const faults = {
    NotAllowedError: "denied",
    SecurityError: "denied",
    NotFoundError: "missing",
    OverconstrainedError: "missing",
  };
  return faults[error?.name] || "busy";
}

if (typeof module !== "undefined") module.exports = { describeStatus, microphoneFault };
