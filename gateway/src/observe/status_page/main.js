// Fetches the data of the gateway that serves the page, or takes them from the page or a file.

/** Seconds between two requests for the status, and the most after failures. */
const POLL_SECONDS = 2;
const POLL_SECONDS_MAX = 60;
/** Seconds between two requests for the history, which has a sample each 10 s. */
const HISTORY_SECONDS = 10;
/** Seconds after which a request is given up. */
const FETCH_SECONDS = 10;
/** Seconds that a status may be old: all open pages share one. */
const STATUS_AGE_SECONDS = 1;

const poll = {
  timer: 0,
  failures: 0,
  paused: false,
  asking: false,
  file: "",
  heard: 0,
  history: 0,
  fabric: "",
  resize: 0,
};

/** Milliseconds without a change of the window after which pictures are drawn anew. */
const RESIZE_MS = 150;

/** Shows all data. */
function show() {
  const status = live.status;
  if (!status) return;
  const loads = linkLoads(status);
  showHeader(status);
  showAlarms(status);
  showMap(status, loads);
  showLinks(loads);
  showCollectives(status);
  showStragglers(status);
  showCommits(status);
  showJobs(status);
  showMembers(status);
  showConfig(status);
}

function showHistory() {
  const history = live.history || { interval_seconds: HISTORY_SECONDS, samples: [] };
  showCurves(history);
  showHour(history);
}

/** Says how old the data are and whether more will come. */
function showFreshness() {
  const ago = poll.heard ? `${time(Math.round((Date.now() - poll.heard) / 1000))} ago` : "never";
  const wait = pollDelay();
  const text = poll.file
    ? poll.file
    : poll.paused
      ? `Paused; last heard ${ago}`
      : poll.failures
        ? `The gateway does not answer; last heard ${ago}; asking again each ${time(wait)}`
        : `Live; last heard ${ago}`;
  const element = byId("freshness");
  setText(element, text);
  setClass(element, poll.failures && !poll.file ? "bad" : "soft");
}

const pollDelay = () => Math.min(POLL_SECONDS_MAX, POLL_SECONDS * 2 ** Math.min(poll.failures, 8));

/** Fetches JSON of the gateway, at most so many seconds old. */
async function get(path, age) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), FETCH_SECONDS * 1000);
  try {
    const headers = age ? { "Cache-Control": `max-age=${age}` } : {};
    const answer = await fetch(path, { cache: "no-store", headers, signal: stop.signal });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return await answer.json();
  } finally {
    clearTimeout(timer);
  }
}

/** Takes a status, and forgets what belongs to a gateway before it. */
function take(status) {
  live.before = live.status;
  live.status = status;
  addMark(status);
}

/** Asks the gateway once, and again after a pause that grows with failures. */
async function ask() {
  clearTimeout(poll.timer);
  if (poll.file || poll.paused || poll.asking || document.hidden) return;
  poll.asking = true;
  try {
    const status = await get("status", STATUS_AGE_SECONDS);
    const fabric = `${status.fabric_identity} ${status.fabric_version?.digest ?? ""}`;
    if (poll.fabric !== fabric) {
      live.fabric = await get("fabric");
      poll.fabric = fabric;
    }
    if (poll.file) return;
    take(status);
    poll.heard = Date.now();
    poll.failures = 0;
    show();
    if (Date.now() - poll.history >= HISTORY_SECONDS * 1000) {
      live.history = await get("history");
      poll.history = Date.now();
      showHistory();
    }
  } catch {
    poll.failures += 1;
  } finally {
    poll.asking = false;
    showFreshness();
    poll.timer = setTimeout(ask, pollDelay() * 1000);
  }
}

/** Shows data that were saved: those of a saved page, or a status alone. */
function showSaved(data, where) {
  const saved = data && data.status ? data : { status: data };
  if (!saved.status || !Array.isArray(saved.status.peers) || !Array.isArray(saved.status.jobs)) {
    throw new Error("no status of a gateway");
  }
  Object.assign(live, {
    marks: [],
    status: null,
    fabric: saved.fabric || null,
    history: saved.history || null,
  });
  poll.file = `${where}${saved.saved ? `, saved at ${saved.saved}` : ""}`;
  if (saved.before) take(complete(saved.before));
  take(complete(saved.status));
  show();
  showHistory();
  showFreshness();
}

/** Adds what a status of an older gateway lacks. */
function complete(status) {
  const totals = { completed: 0, failed: 0, bytes: 0, seconds: 0, bound_seconds: 0 };
  const none = {
    region: "",
    program_version: "",
    uptime_seconds: 0,
    fabric_identity: "",
    links_down: [],
  };
  const lists = {
    problems: [],
    links: [],
    job_differences: [],
    restart_needed: [],
    lost_log_lines: 0,
  };
  const jobs = status.jobs.map((job) => ({ commits: [], straggler: null, totals, ...job }));
  return { ...none, ...lists, ...status, jobs };
}

/** Saves the page with its data as one HTML file, which needs no gateway. */
function save() {
  const page = document.documentElement.cloneNode(true);
  page.querySelectorAll("[data-live]").forEach((element) => {
    element.replaceChildren();
    delete element.dataset.state;
  });
  const { status, before, fabric, history } = live;
  const data = JSON.stringify({ saved: new Date().toISOString(), status, before, fabric, history });
  // No text of the data may end the element that holds it.
  page.querySelector("#data").textContent = data.replace(/</g, "\\u003c");
  const file = new Blob(["<!DOCTYPE html>\n", page.outerHTML], { type: "text/html" });
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(file);
  anchor.download = `landbridge-${status ? status.gateway : "page"}.html`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 1000);
}

function setPaused(paused) {
  poll.paused = paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Go on" : "Pause");
  showFreshness();
  ask();
}

byId("pause").addEventListener("click", () => setPaused(!poll.paused));
byId("save").addEventListener("click", save);
byId("filter").addEventListener("input", () => live.status && showJobs(live.status));
byId("load").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (!file) return;
  try {
    showSaved(JSON.parse(await file.text()), `From ${file.name}`);
  } catch (error) {
    setText(byId("freshness"), `${file.name} cannot be shown: ${error.message}`);
  }
});
document.querySelectorAll("button.more").forEach((button) => {
  const id = button.id.replace("-more", "");
  button.addEventListener("click", () => {
    limits.set(id, (limits.get(id) || ROWS_STEP) + ROWS_STEP);
    show();
    showHistory();
  });
});
document.addEventListener("visibilitychange", ask);
addEventListener("resize", () => {
  clearTimeout(poll.resize);
  poll.resize = setTimeout(() => {
    show();
    showHistory();
  }, RESIZE_MS);
});
setInterval(() => document.hidden || showFreshness(), 1000);

/** Shows the first data: those of a saved page, or of the gateway. */
function start() {
  const embedded = byId("data").textContent.trim();
  showHistory();
  if (embedded) {
    showSaved(JSON.parse(embedded), "A saved page");
  } else if (location.protocol.startsWith("http")) {
    ask();
  } else {
    poll.file = "No gateway serves this page: load a file with a status";
    setText(byId("ready"), "No data");
    showFreshness();
  }
}

// The browser paints the empty page first.
setTimeout(start, 0);
