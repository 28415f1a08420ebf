// Live updates: one stream per page says that something changed; htmx then fetches the page again and morphs the
// regions that are marked. Nothing moves while somebody chooses rows, types, selects text or has a dialog open.
import { drawCharts } from "./charts.js";
import { countChosen } from "./selection.js";

const POLL = 5000;
const JOB = 700;
let isPaused = false;
let isStale = false;
let shown = document.body.dataset.version;
let latest = null;
let source = null;
let timer = null;

function show(state, text) {
  const dot = document.getElementById("live");
  if (!dot) return;
  dot.dataset.state = state;
  dot.lastElementChild.textContent = text;
}

function isBusy() {
  const focused = document.activeElement;
  const isTyping = focused && focused.closest("main input, main select, main textarea, [role=search]") && focused.value !== focused.defaultValue;
  const isSelecting = !(getSelection()?.isCollapsed ?? true);
  const isOpen = document.querySelector("dialog[open], .picker[open]") !== null;
  return countChosen() > 0 || Boolean(isTyping) || isSelecting || isOpen;
}

function listRegions(page) {
  return [...page.querySelectorAll("[data-live][id]")].map((region) => region.id);
}

function reloadIfRegionsDiffer(event) {
  // A list that was empty, or is empty now, has other regions than the page that is shown.
  if (event.target.id !== "refresher" || event.detail.ctx.response.status !== 200) return;
  const page = new DOMParser().parseFromString(event.detail.ctx.text, "text/html");
  if (String(listRegions(page)) === String(listRegions(document))) return;
  event.preventDefault();
  location.reload();
}

function refresh() {
  // An empty store has another page than one with messages.
  if (document.querySelector("[data-reload]")) { location.reload(); return; }
  const ids = listRegions(document);
  const refresher = document.getElementById("refresher");
  if (!ids.length || !refresher || !window.htmx) return;
  refresher.setAttribute("hx-select-oob", ids.map((id) => `#${id}:outerMorph`).join(","));
  window.htmx.trigger(refresher, "refresh");
  drawCharts();
}

function receive(pulse) {
  latest = pulse;
  for (const name of ["failed", "skipped", "inbox"]) {
    const badge = document.getElementById(`${name}-badge`);
    if (badge) { badge.textContent = pulse[`${name}_text`]; badge.hidden = !badge.textContent; }
  }
  for (const mark of document.querySelectorAll("[data-attention]")) {
    mark.textContent = pulse.attention;
    mark.hidden = !pulse.attention;
    mark.className = `badge badge-${pulse.severity ?? "none"}`;
  }
  isStale = Boolean(pulse.error);
  if (isStale) show("stale", pulse.at ? `stale since ${pulse.at.slice(11, 19)}` : "store down");
  if (pulse.version === shown || isPaused || document.hidden) return;
  if (isBusy()) { show("paused", "waits while you work"); return; }
  shown = pulse.version;
  if (!isStale) show(source ? "streaming" : "polling", source ? "live" : "polling");
  refresh();
}

function stream() {
  source = new EventSource(`${document.body.dataset.root}live`);
  let hasWorked = false;
  source.addEventListener("sample", (event) => {
    hasWorked = true;
    show("streaming", "live");
    receive(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    // A proxy that buffers, or a server without streams: ask instead.
    if (!hasWorked || source.readyState === EventSource.CLOSED) { source.close(); source = null; poll(); }
    else show("stale", "connection lost");
  });
}

async function poll() {
  clearTimeout(timer);
  if (!isPaused && !document.hidden) {
    try {
      const answer = await fetch(`${document.body.dataset.root}pulse`, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(answer.statusText);
      show("polling", "polling");
      receive(await answer.json());
    } catch {
      show("stale", "no answer");
    }
  }
  timer = setTimeout(poll, POLL);
}

export function toggleLive() {
  isPaused = !isPaused;
  if (isPaused) { source?.close(); source = null; clearTimeout(timer); show("paused", "paused"); } else { shown = null; stream(); }
}

function followJob() {
  // A job moves faster than the samples of the store.
  const job = document.querySelector("[data-job]");
  if (!job) return;
  if (job.dataset.job === "running") { if (!document.hidden) refresh(); setTimeout(followJob, JOB); }
}

export function watchStore() {
  if (!document.getElementById("live")) return;
  stream();
  followJob();
  document.getElementById("live").addEventListener("click", toggleLive);
  document.addEventListener("htmx:after:request", reloadIfRegionsDiffer);
  // What was held back while somebody worked is shown when the work is done.
  setInterval(() => { if (latest && latest.version !== shown) receive(latest); }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !isPaused) { shown = null; } });
  addEventListener("pagehide", () => source?.close());
}
