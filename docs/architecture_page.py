"""The page architecture.md and its figure, from the source itself.

    python docs/architecture_page.py

One line per module from its docstring, the imports between parts as a figure, and how far one batch
walks (`benchmarks/walk.py`).
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from built import write
from import_graph import LAYERS, PACKAGE, all_imports, arrows, rank, without_shortcuts

ROOT = Path(__file__).parent.parent
WALK = ROOT / "benchmarks" / "results" / "walk.json"
BEFORE = {"calls": 153, "files": 21, "switches": 83}
"""The walk at version 0.1.0, before the rooms were arranged by the data's path."""

HEAD = """# How winsor is built

*Built by `docs/architecture_page.py`.* The reasons: [the floor plan](adr/0005-the-floor-plan.md).

The listing of `winsor/` reads as the path of the data:

```
rows -> sampling -> grads (per-sample view) -> rules (bound) -> mechanisms (noise) -> training
                                                   \\-> event -> ledger -> accounting -> report
```

## Who imports whom

Arrows point down, or to another part of the same layer, and form no circle. Imports inside
functions, under `TYPE_CHECKING` and by string count too. `tests/test_architecture.py` enforces
this. The figure omits arrows that a longer path implies; the table below has all of them.

![imports between the parts of winsor](architecture.svg)
"""


# ------------------------------------------------------------------------------------------ page


def page() -> str:
    return "\n".join([HEAD, _walk(), _table(), *_listing()])


def _walk() -> str:
    now = json.loads(WALK.read_text())
    rows = [
        f"| {name} | {numbers['calls']} | {numbers['files']} | {numbers['switches']} |"
        for name, numbers in (("before (0.1.0)", BEFORE), ("now", now))
    ]
    return (
        "## The walk of one batch\n\n"
        "Calls into winsor, their files, and switches between files, from `batches()` to the\n"
        "optimiser, for a two-layer network under `Flat` after the first steps\n"
        "(`benchmarks/walk.py`).\n\n"
        "| | calls | files | switches |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _table() -> str:
    graph = arrows(all_imports())
    lines = ["## Arrows in words\n", "| part | imports |", "|---|---|"]
    for part in _parts():
        lines.append(f"| `{part}` | {', '.join(f'`{p}`' for p in sorted(graph.get(part, ())))} |")
    return "\n".join(lines) + "\n"


def _listing() -> list[str]:
    sections = ["## Every module\n"]
    for part in _parts():
        file = PACKAGE / f"{part}.py"
        if file.exists():
            sections.append(f"### winsor/{part}.py\n\n{summary(file)}\n")
            continue
        rows = [
            f"| `{path.relative_to(PACKAGE / part).as_posix()}` | {summary(path)} |"
            for path in sorted((PACKAGE / part).rglob("*.py"))
            if path != PACKAGE / part / "__init__.py" and summary(path)
        ]
        lines = [f"### winsor/{part}/", "", summary(PACKAGE / part / "__init__.py"), ""]
        if rows:
            lines += ["| module | what it is |", "|---|---|", *rows, ""]
        sections.append("\n".join(lines))
    return sections


def _parts() -> list[str]:
    """The parts there are, from the top layer down, each layer as it is written."""
    return [part for layer in reversed(LAYERS) for part in layer if _exists(part)]


def _exists(part: str) -> bool:
    return (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, safe inside a table."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:])\s(?=[A-Z`])", first)[0].rstrip(":")
    return sentence.replace("|", "\\|").replace("<", "&lt;")


# ---------------------------------------------------------------------------------------- figure


WIDTH, ROW, BOX, HEIGHT = 1080, 118, 96, 34
LEFT = 170
NAMES = (
    "words all share", "no torch", "gradients", "bounds, noise, batches",
    "the door", "loops", "tools", "the outside",
)  # fmt: skip
COLOURS = ("#4a5568", "#5a7d2a", "#0b6e99", "#8a4f9e", "#c2571a", "#1f7a5c", "#995c00", "#a02c3c")


def figure() -> str:
    """Layers from top to bottom; an arrow from each part to what it imports.

    Arrows to the lowest layer would hide the others (everything imports `contract`), so they are
    counted below its boxes instead.
    """
    imported = arrows(all_imports())
    graph = without_shortcuts({part: _drawn(part, others) for part, others in imported.items()})
    places = _places()
    height = ROW * len(LAYERS) + 20
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _arrow_heads(),
    ]
    for level, name in enumerate(NAMES):
        y = _row(level)
        fill = "#f6f7f9" if level % 2 else "#fff"
        pieces.append(f'<rect x="0" y="{y - 42}" width="{WIDTH}" height="{ROW}" fill="{fill}"/>')
        pieces.append(f'<text x="14" y="{y + 22}" fill="{COLOURS[level]}">{name}</text>')
    for part in places:
        pieces += [_arrow(part, other, places) for other in sorted(graph.get(part, ()))]
    pieces += [_box(part, place) for part, place in places.items()]
    return "\n".join([*pieces, "</svg>", ""])


def _drawn(part: str, others: set[str]) -> set[str]:
    return {other for other in others if other not in LAYERS[0] or part in LAYERS[0]}


def _places() -> dict[str, tuple[float, float]]:
    """Part -> centre of its box."""
    places = {}
    for level, layer in enumerate(LAYERS):
        parts = [part for part in layer if _exists(part)]
        step = (WIDTH - LEFT) / max(len(parts), 1)
        for i, part in enumerate(parts):
            stagger = 14 * (-1) ** i if len(parts) > 3 else 0
            places[part] = (LEFT + step * (i + 0.5), _row(level) + HEIGHT / 2 + stagger)
    return places


def _row(level: int) -> float:
    return 42 + ROW * (len(LAYERS) - 1 - level)


def _arrow_heads() -> str:
    heads = [
        f'<marker id="head{level}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
        for level, colour in enumerate(COLOURS)
    ]
    return "<defs>" + "".join(heads) + "</defs>"


def _arrow(part: str, other: str, places: dict[str, tuple[float, float]]) -> str:
    """A curve from the bottom of one box to the top of another; side by side inside a layer."""
    (x1, y1), (x2, y2) = places[part], places[other]
    level = rank()[part]
    look = f'fill="none" stroke="{COLOURS[level]}" stroke-opacity="0.45" stroke-width="1.3"'
    if rank()[other] == level:
        side = 1 if x2 > x1 else -1
        start, end = (x1 + side * BOX / 2, y1), (x2 - side * BOX / 2, y2)
        lift = 0 if abs(x2 - x1) < 1.5 * (WIDTH - LEFT) / len(LAYERS[level]) else 46
        middle = f"{(start[0] + end[0]) / 2:.0f} {min(y1, y2) - lift:.0f}"
        path = f"M{start[0]:.0f} {start[1]:.0f}Q{middle} {end[0]:.0f} {end[1]:.0f}"
    else:
        top, bottom = y1 + HEIGHT / 2, y2 - HEIGHT / 2
        bend = (bottom - top) * 0.45
        path = (
            f"M{x1:.0f} {top:.0f}C{x1:.0f} {top + bend:.0f} "
            f"{x2:.0f} {bottom - bend:.0f} {x2:.0f} {bottom:.0f}"
        )
    return f'<path d="{path}" {look} marker-end="url(#head{level})"/>'


def _box(part: str, place: tuple[float, float]) -> str:
    x, y = place
    level = rank()[part]
    count = ""
    if level == 0:
        users = sum(part in others for others in arrows(all_imports()).values())
        count = (
            f'<text x="{x:.0f}" y="{y + HEIGHT / 2 + 15:.0f}" text-anchor="middle" fill="#555" '
            f'font-size="11">imported by {users} parts</text>'
        )
    return (
        f'<rect x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{BOX}" height="{HEIGHT}" '
        f'rx="5" fill="#fff" stroke="{COLOURS[level]}" stroke-width="1.6"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#111">{part}</text>{count}'
    )


def files() -> dict[str, str]:
    return {"architecture.md": page(), "architecture.svg": figure()}


if __name__ == "__main__":
    write(files())
