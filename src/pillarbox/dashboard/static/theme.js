// Runs before the first paint, so that a chosen theme does not flash.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("pillarbox-theme"); } catch { /* storage may be forbidden */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
