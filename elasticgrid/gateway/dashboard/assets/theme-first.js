"use strict";
// Before anything is painted: a theme that was chosen, so that the page does not flash in the other one.
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* without storage it follows the system */ }
})();
