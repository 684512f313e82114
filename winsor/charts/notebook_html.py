"""Small cards of HTML for notebooks: a title, a bar, pairs, a line and a table.

Self-contained: styles are inline, colours are the page's own (``currentColor``), so that light and
dark themes both look right, and everything that is not a number is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from winsor.core.contract import Guarantee

SHOWN = 12
"""Rows of a table that are seen at once; the rest is folded."""

_BOX = (
    "border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:8px;"
    "padding:12px 16px;max-width:44em;font:14px/1.5 system-ui,sans-serif;color:inherit"
)
_CELL = "padding:2px 12px 2px 0;text-align:left;background:none;font-weight:normal;border:0"
_NUMBER = _CELL.replace("left", "right") + ";font-variant-numeric:tabular-nums"
_SOFT = "opacity:.75"
_TABLE = "font:inherit;color:inherit;border-collapse:collapse"
_NAME = f"{_CELL};{_SOFT};white-space:nowrap;vertical-align:top"
_WIDE = 'width="100%" preserveAspectRatio="none"'


def card(title: str, *parts: str) -> str:
    """A box with a title and parts; empty parts are left out."""
    inside = "".join(part for part in parts if part)
    heading = f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>'
    return f'<div class="winsor-card" style="{_BOX}">{heading}{inside}</div>'


def sentence(text: str) -> str:
    """A line of text."""
    return f'<div style="{_SOFT}">{escape(text)}</div>' if text else ""


def bar(share: float, label: str) -> str:
    """A bar that is filled up to ``share``, with a label under it."""
    share = min(1.0, max(0.0, share))
    return (
        f'<svg role="img" aria-label="{escape(label, quote=True)}" viewBox="0 0 400 12" '
        f'{_WIDE} height="12" style="display:block;margin:6px 0 2px">'
        '<rect width="400" height="12" rx="3" fill="currentColor" fill-opacity=".15"/>'
        f'<rect width="{400 * share:.1f}" height="12" rx="3" fill="currentColor" '
        f'fill-opacity=".75"/></svg><div>{escape(label)}</div>'
    )


def pairs(values: Mapping[str, str]) -> str:
    """Names and values, one line each."""
    rows = "".join(
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in values.items()
    )
    return f'<table style="{_TABLE};margin:8px 0 0">{rows}</table>' if rows else ""


def line(points: Sequence[tuple[float, float]], label: str) -> str:
    """A curve from zero, without axes; the label says what it shows."""
    if len(points) < 2:
        return ""
    right, top = max(x for x, _ in points) or 1.0, max(y for _, y in points) or 1.0
    path = " ".join(f"{400 * x / right:.1f},{58 - 54 * y / top:.1f}" for x, y in points)
    return (
        f'<svg role="img" aria-label="{escape(label, quote=True)}" viewBox="0 0 400 60" '
        f'{_WIDE} height="60" style="display:block;margin:8px 0 2px">'
        '<line x1="0" y1="58" x2="400" y2="58" stroke="currentColor" stroke-opacity=".3"/>'
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="2" '
        f'vector-effect="non-scaling-stroke"/></svg><div style="{_SOFT}">{escape(label)}</div>'
    )


def table(summary: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A folded table; columns after the first are set to the right."""
    rows = list(rows)
    if not rows:
        return ""
    styles = [_CELL, *[_NUMBER] * (len(headers) - 1)]
    head = "".join(
        f'<th scope="col" style="{style};{_SOFT}">{escape(text)}</th>'
        for style, text in zip(styles, headers, strict=True)
    )
    body = "".join(_row(row, styles) for row in rows[:SHOWN])
    more = f"and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return (
        f'<details style="margin-top:8px"><summary>{escape(summary)}</summary>'
        f'<table style="{_TABLE}"><thead><tr style="background:none">{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>{sentence(more)}</details>"
    )


def _row(cells: Sequence[str], styles: Sequence[str]) -> str:
    inside = "".join(
        f'<td style="{style}">{escape(text)}</td>'
        for style, text in zip(styles, cells, strict=True)
    )
    return f'<tr style="background:none">{inside}</tr>'


def folded(summary: str, lines: Iterable[str]) -> str:
    """A list that opens on demand."""
    items = "".join(f"<li>{escape(text)}</li>" for text in lines)
    if not items:
        return ""
    return (
        f'<details style="margin-top:8px"><summary>{escape(summary)}</summary>'
        f'<ul style="margin:4px 0 0;padding-left:1.4em">{items}</ul></details>'
    )


def guarantee_card(guarantee: Guarantee) -> str:
    """A certified guarantee with what it rests on."""
    values = {
        "relation": guarantee.relation.value.replace("_", " "),
        "steps": f"{guarantee.steps:,}",
        "batches": guarantee.sampler,
        "accountant": guarantee.accountant.upper(),
    }
    return card(
        f"(epsilon = {guarantee.epsilon:.4g}, delta = {guarantee.delta:.3g})-differential privacy",
        pairs({name: value for name, value in values.items() if value}),
        folded("what it rests on", guarantee.conditions),
    )
