// Starts what a page needs. Every page works without it, except for charts and live updates.
import { drawCharts } from "./charts.js";
import { listenForKeys } from "./keys.js";
import { watchStore } from "./live.js";
import { listenForChoices } from "./selection.js";

function listenForTheme() {
  const button = document.getElementById("theme");
  button?.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("pillarbox-theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
    drawCharts();
  });
}

function listenForCopies() {
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-copy-from]");
    if (!button) return;
    const text = button.dataset.copy ?? document.querySelector(button.dataset.copyFrom)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

listenForTheme();
listenForCopies();
listenForKeys();
listenForChoices();
watchStore();
// uPlot is a deferred script, as this module is: it has run.
drawCharts();
