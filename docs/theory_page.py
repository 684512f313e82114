"""The page theory.md and its figure: theorems as functions, predicted against measured.

    python docs/theory_page.py

Functions and sources from docstrings and the ``FIDELITY`` rows of winsor_papers.theory, numbers
from experiments/2026-11-theory-risk/results/theory_risk.json.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import fidelity_page
from built import write
from winsor_papers import theory

from winsor.charts import Chart, Series
from winsor.charts.files import drawing
from winsor.charts.series import points_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "2026-11-theory-risk" / "results" / "theory_risk.json"

HEAD = """# What the theorems say

*Built by `docs/theory_page.py`.*

`winsor_papers.theory` contains the theorems of the five papers as functions. Some advise numbers;
others return a `Bound`: a value with its source, its terms, the assumptions that were checked,
those that cannot be, and warnings. Where a paper gives only an order, the constant is taken as 1
and the source says so. Suspected misprints are available as printed and as corrected;
[fidelity](fidelity.md) lists them. None of this is a privacy statement.

```python
from winsor_papers import theory

rate = theory.simple_clipping_rate(2.0, n=1e5, d=100, epsilon=0.5, delta=1e-6)
print(rate)            # value, source, warnings: epsilon is above 1/sqrt(d) here
rate.terms             # sampling, privacy, tail
rate.assumed           # what no number can decide
```

`winsor tails FILE --n N --d D` and `winsor plan ... --d D` print the main rates of all papers with
their assumptions and warnings.
"""

READING = """
The bounds are worst cases over all problems that meet their assumptions; the measurement is one
easy problem, whose least-squares risk falls like 1/n, twice as fast as the minimax order. Orders
have no scale, so only their exponent of n can be compared; (9) has constants, but B and G^2 in it
are the orders (14) and (15). The noise is certified: for averaged clipping it has sensitivity 2
lambda where the theorem counts lambda, and at every n here it keeps the risk above that of not
training at all.

Theorem 2's (11) holds in every run with room to spare (predicted over mean measured: {low:.0f} to
{high:.0f}), and the measured exponents of both means are within {gap:.2f} of the predicted ones.
Papers 1, 3 and 5 bound gradients of non-convex losses, or need tails lighter than these: they are
not compared.
"""


def sources() -> dict[str, list[str]]:
    """Function name -> "paper, item" of every row that names it."""
    found: dict[str, list[str]] = {}
    for row in fidelity_page.gathered():
        if row.where.startswith("winsor_papers.theory."):
            found.setdefault(row.where.rsplit(".", 1)[1], []).append(f"{row.paper}: {row.item}")
    return found


def functions() -> str:
    known = sources()
    lines = ["| function | paper: item | what it is |", "|---|---|---|"]
    for name in theory.__all__:
        value = getattr(theory, name)
        if inspect.isfunction(value):
            first = " ".join(inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].split())
            where = "; ".join(known.get(name, ["not printed"]))
            lines.append("| " + " | ".join((f"`{name}`", _safe(where), _safe(first))) + " |")
    return "\n".join(lines)


def comparison(result: dict[str, Any]) -> str:
    setting = result["setting"]
    lines = [
        f"epsilon {setting['epsilon']:g}, delta {setting['delta']:g}, p = {setting['p']:g}, "
        f"{setting['seeds']} seeds (`experiments/2026-11-theory-risk`). Errors of means are "
        f"lengths; the others are excess risks, {setting['risk of the start']:.3g} at the start.",
        "",
        "| method | source | n | predicted | measured | largest | predicted / measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(result["rows"], key=lambda one: one["method"]):
        cells = (
            row["method"], _safe(row["source"]), f"{row['n']:,}", f"{row['predicted']:.3g}",
            f"{row['measured']:.3g}", f"{row['largest']:.3g}", f"{row['predicted / measured']:.3g}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "| method | exponent of n, predicted | measured |", "|---|---|---|"]
    for name, slope in sorted(result["slopes"].items()):
        lines.append(f"| {name} | {slope['predicted']:.2f} | {slope['measured']:.2f} |")
    return "\n".join(lines)


def figure(result: dict[str, Any]) -> str:
    series = []
    names = [name for name in result["slopes"] if not name.endswith("order")]
    for colour, name in enumerate(names):
        mine = [row for row in result["rows"] if row["method"] == name]
        sizes = [float(row["n"]) for row in mine]
        for kind in ("predicted", "measured"):
            points = points_of(sizes, [row[kind] for row in mine])
            line = Series(f"{name}, {kind}", points, colour=colour, markers=kind == "measured")
            series.append(line)
    chart = Chart(
        "theory",
        "Predicted and measured errors",
        "rows n",
        "error of a mean, or excess risk",
        tuple(series),
        log_x=True,
        log_y=True,
    )
    return drawing(chart)


def page() -> str:
    result = json.loads(RESULTS.read_text())
    ratios = [
        row["predicted / measured"] for row in result["rows"] if row["method"] == "clipped mean"
    ]
    gaps = [
        abs(slope["predicted"] - slope["measured"])
        for name, slope in result["slopes"].items()
        if name.endswith("mean")
    ]
    reading = READING.format(low=min(ratios), high=max(ratios), gap=max(gaps))
    return (
        f"{HEAD}\n## Predicted against measured\n\n![predicted and measured](theory.svg)\n\n"
        f"{comparison(result)}\n{reading}\n## All functions\n\n{functions()}\n"
    )


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def files() -> dict[str, str]:
    return {"theory.md": page(), "theory.svg": figure(json.loads(RESULTS.read_text()))}


if __name__ == "__main__":
    write(files())
