// Keyboard: g and a letter goes to a page, / searches, j k x Enter work on rows, ? lists them.
import { toggleLive } from "./live.js";

let waitsForLetter = false;

function isTyping(target) {
  return target.closest("input, textarea, select, [contenteditable]") !== null;
}

function listRows() {
  return [...document.querySelectorAll("tr[data-row]")];
}

function moveRow(step) {
  const rows = listRows();
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  const next = Math.min(Math.max(at + step, 0), rows.length - 1);
  rows[at]?.classList.remove("at");
  rows[next].classList.add("at");
  rows[next].scrollIntoView({ block: "nearest" });
}

function press(key) {
  const row = document.querySelector("tr[data-row].at");
  switch (key) {
    case "/": document.getElementById("search")?.focus(); return true;
    case "?": document.getElementById("keys")?.showModal(); return true;
    case "j": moveRow(1); return true;
    case "k": moveRow(-1); return true;
    case "x": row?.querySelector("[data-tick]")?.click(); return true;
    case "p": toggleLive(); return true;
    case "Enter": if (row) location.href = row.dataset.href; return row !== null;
    case "g": waitsForLetter = true; setTimeout(() => { waitsForLetter = false; }, 1500); return true;
  }
  return false;
}

export function listenForKeys() {
  document.getElementById("help")?.addEventListener("click", () => document.getElementById("keys").showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && isTyping(event.target)) { event.target.blur(); return; }
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    if (waitsForLetter) {
      waitsForLetter = false;
      const link = document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (press(event.key)) event.preventDefault();
  });
}
