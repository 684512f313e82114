"use strict";
// Adds what a drawing cannot do: values under the pointer, lines on and off, light and dark.
(function () {
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const byKey = new Map(charts.map((chart) => [chart.key, chart]));

  function nearest(points, x) {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) < Math.abs(points[high][0] - x) ? points[low] : points[high];
  }

  function line(tip, text, colour) {
    const p = document.createElement("p");
    p.textContent = text;
    if (colour !== undefined) p.className = "c" + colour;
    tip.appendChild(p);
  }

  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    const chart = byKey.get(svg.dataset.chart);
    const tip = svg.parentElement.querySelector(".tip");
    const cross = svg.querySelector(".cross");
    const groups = svg.querySelectorAll("g[data-line]");

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      const found = [];
      chart.lines.forEach((series, i) => {
        if (series.points.length && !groups[i].classList.contains("off")) {
          found.push([nearest(series.points, x), series]);
        }
      });
      if (!found.length) return;
      found.sort((a, b) => Math.abs(a[0][0] - x) - Math.abs(b[0][0] - x));
      const place = found[0][0];
      cross.setAttribute("x1", place[0]);
      cross.setAttribute("x2", place[0]);
      cross.removeAttribute("hidden");
      tip.replaceChildren();
      line(tip, chart.x + " " + place[2]);
      found.sort((a, b) => a[0][1] - b[0][1]);
      for (const [point, series] of found) line(tip, series.label + ": " + point[3], series.colour);
      tip.hidden = false;
      const left = place[0] / svg.viewBox.baseVal.width;
      const width = tip.offsetWidth / box.width;
      const side = left + width + 0.03 < 1 ? left + 0.02 : left - width - 0.02;
      tip.style.setProperty("left", Math.max(0, 100 * side) + "%");
    });
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      cross.setAttribute("hidden", "");
    });
  }

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const svg = document.querySelector('svg[data-chart="' + button.dataset.for + '"]');
      const group = svg.querySelector('g[data-line="' + button.dataset.line + '"]');
      const off = group.classList.toggle("off");
      button.setAttribute("aria-pressed", String(!off));
    });
  }

  document.getElementById("theme")?.addEventListener("click", () => {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = root.dataset.theme || system;
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
