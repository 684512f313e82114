"""How `winsor tails` and `winsor plan` print what theorems promise, assume and warn about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from winsor_papers.theory import Promise

HEADING = "what the theorems promise (orders with constant 1, each in its own unit)"


def print_promises(console: Console, found: Sequence[Promise]) -> None:
    """One line per rate, its warnings under it, and the assumptions of each paper at the end."""
    _line(console, f"\n{HEADING}", "bold")
    assumed: dict[str, dict[str, None]] = {}
    for promise in found:
        if promise.bound is None:
            _line(console, f"  {promise.name}: does not apply. {promise.refusal}", "yellow")
            continue
        bound = promise.bound
        source = bound.source.split(", an order")[0]
        _line(console, f"  {promise.name}: {bound.value:.4g}  ({source})")
        print_warnings(console, bound.warnings)
        assumed.setdefault(source.split(",")[0], {}).update(dict.fromkeys(bound.assumed))
    for paper, conditions in assumed.items():
        print_assumptions(console, conditions, f"{paper} ")


def print_assumptions(console: Console, assumed: Iterable[str], who: str = "") -> None:
    """What must hold and was not checked, on one line."""
    text = "; ".join(assumed)
    if text:
        _line(console, f"  {who}assumes: {text}", "dim")


def print_warnings(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        _line(console, f"    warning: {warning}", "yellow")


def _line(console: Console, text: str, style: str = "") -> None:
    """A long line stays one line, so that it can be searched and copied."""
    from rich.text import Text

    console.print(Text(text, style), soft_wrap=True)
