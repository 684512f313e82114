"""docs/heavy-tail-edge.svg: methods down, beds across, standard errors from tuned flat clipping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, NAMES, TOP, NOTE = 76, 30, 150, 68, 30
FULL = 6.0
"""Standard errors at which a colour is at its strongest."""
AHEAD, BEHIND = (0, 114, 178), (213, 94, 0)
TITLE = "Ahead of tuned flat clipping (blue) or behind (orange)"
WORDS = "standard errors of the paired difference, eight fresh seeds; bold: beyond two"

Errors = Mapping[tuple[str, str], float]
"""(method, bed) -> standard errors ahead of flat clipping."""


def draw(methods: Sequence[str], beds: Sequence[str], errors: Errors, path: Path) -> None:
    width, height = NAMES + WIDTH * len(beds) + 10, TOP + HEIGHT * len(methods) + NOTE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="13" role="img" aria-label="{escape(TITLE)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(10, 22, TITLE, 'font-weight="600" font-size="15"'),
        *(
            _text(NAMES + WIDTH * (place + 0.5), TOP - 10, bed, 'text-anchor="middle"')
            for place, bed in enumerate(beds)
        ),
    ]
    for row, method in enumerate(methods):
        y = TOP + HEIGHT * row
        parts.append(_text(10, y + 20, method))
        for column, bed in enumerate(beds):
            parts += _cell(NAMES + WIDTH * column, y, errors.get((method, bed)))
    parts.append(_text(10, height - 10, WORDS, 'fill="#5b6470" font-size="12"'))
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _cell(x: float, y: float, error: float | None) -> list[str]:
    box = f'x="{x + 1}" y="{y + 1}" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="3"'
    if error is None:
        return [f'<rect {box} fill="none" stroke="#d9dee5"/>']
    bold = 'font-weight="700" ' if abs(error) > 2 else ""
    middle = f'{bold}text-anchor="middle"'
    return [
        f'<rect {box} fill="{_colour(error)}"/>',
        _text(x + WIDTH / 2, y + 20, f"{error:+.1f}".replace("-", "\u2212"), middle),
    ]


def _colour(error: float) -> str:
    """White at zero; never so strong that black letters would be hard to read."""
    share = 0.6 * min(1.0, abs(error) / FULL)
    full = AHEAD if error > 0 else BEHIND
    return "#" + "".join(f"{round(255 + (c - 255) * share):02x}" for c in full)


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{escape(words)}</text>'
