"""Sentences for paper 1's verdicts (`winsor_papers.reproductions.verdicts` has the judgement)."""

from __future__ import annotations

from collections.abc import Iterable

from winsor_papers.reproductions.reproduction import Line


def span(values: Iterable[float | None]) -> str:
    """The range of certified epsilons, for a sentence."""
    known = [value for value in values if value is not None]
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def by_label(lines: Iterable[Line], **wanted: str) -> Line | None:
    """The line whose label holds all of ``wanted``, if there is one."""
    for line in lines:
        if all(line.label.get(name) == value for name, value in wanted.items()):
            return line
    return None
