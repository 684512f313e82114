"use strict";
// Light and dark by hand, remembered where the browser allows it. Everything else is plain HTML.
(function () {
  const root = document.documentElement;
  try { const kept = localStorage.getItem("winsor-theme"); if (kept) root.dataset.theme = kept; } catch { /* a file without storage */ }
  document.getElementById("theme").addEventListener("click", () => {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    root.dataset.theme = next;
    try { localStorage.setItem("winsor-theme", next); } catch { /* as above */ }
  });
})();
