// The page's settings in its address, so that a link opens the same view; and the first visit's
// hint. Plain script; ui/settings.py reads the address when the page is opened.

// The address's query with `changes` ({name: value}); what is default (null) is left out.
function withSettings(query, changes) {
  const settings = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") settings.delete(name);
    else settings.set(name, String(value));
  }
  const text = settings.toString();
  return text ? `?${text}` : "";
}

function remember(changes) {
  if (!window.unpaused?.session) return; // the page is still being set up from its address
  const query = withSettings(location.search, changes);
  history.replaceState(history.state, "", location.pathname + query + location.hash);
}

// What scrolls must be reached by the keyboard; Gradio mounts it anew with the first message.
function keepReachable(selector) {
  document.addEventListener("unpaused", ({ detail }) => {
    const region = detail.type === "done" && document.querySelector(selector);
    if (region) region.tabIndex = 0;
  });
}

// Two lines, shown until they were closed once in this browser.
function firstVisit(element) {
  const hint = element.querySelector("[data-part=hint]");
  let seen = null;
  try {
    seen = localStorage.getItem("unpaused-hint");
  } catch {
    // A browser that keeps nothing shows it at every visit.
  }
  hint.hidden = seen === "seen";
  hint.querySelector("button").addEventListener("click", () => {
    hint.hidden = true;
    try {
      localStorage.setItem("unpaused-hint", "seen");
    } catch {
      // The same.
    }
  });
}

if (typeof module !== "undefined") module.exports = { withSettings };
