// Before anything is drawn: the theme that was chosen, if one was.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* storage is off: the system's theme holds */ }
})();
