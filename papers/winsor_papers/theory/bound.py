"""What a theorem promises: a number with its source, its terms and the state of its assumptions.

    rate = winsor_papers.theory.simple_clipping_rate(2.0, n=1e5, d=10, epsilon=0.1, delta=1e-6)
    float(rate), rate.terms, rate.warnings

Three kinds of assumption are kept apart. What numbers can decide is *checked*: an argument for
which the formula has no meaning is refused with `ConfigurationError`, one outside the range of the
proof gives a *warning* that travels with the value. What no number can decide (convexity, the tail
of the gradient noise) is *assumed*, and listed. None of this is a privacy statement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

ORDER = "an order, its constant taken as 1"


@dataclass(frozen=True)
class Bound:
    """One bound or rate of a paper, at given arguments.

    Attributes:
        value: the number; the sum of ``terms`` where the formula is a sum.
        formula: the formula in plain text.
        source: paper, theorem and equation, and what was read into it.
        terms: named parts of the formula.
        checked: conditions that the arguments were seen to meet.
        assumed: conditions that no argument can decide.
        warnings: conditions that the arguments break, and suspected misprints that matter here.

    >>> bound = Bound(0.25, "sqrt(d/n)", "paper 0, (1)", warnings=("n is small",))
    >>> print(bound)
    0.25 (paper 0, (1)) [n is small]
    >>> float(bound)
    0.25
    """

    value: float
    formula: str
    source: str
    terms: Mapping[str, float] = field(default_factory=dict)
    checked: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        doubts = f" [{'; '.join(self.warnings)}]" if self.warnings else ""
        return f"{self.value:.4g} ({self.source}){doubts}"

    @property
    def is_order(self) -> bool:
        """Whether the paper gives the rate only, so that the value has no scale of its own."""
        return ORDER in self.source

    def to_json(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "value": self.value,
            "source": self.source,
            "formula": self.formula,
            "terms": dict(self.terms),
            "checked": list(self.checked),
            "assumed": list(self.assumed),
            "warnings": list(self.warnings),
        }


Condition = tuple[bool, str, str]
"""Whether it holds, what it says, and the warning if it does not hold."""


def stated(
    source: str,
    formula: str,
    terms: Mapping[str, float],
    *,
    value: float | None = None,
    order: bool = False,
    assumed: Iterable[str] = (),
    conditions: Iterable[Condition] = (),
    notes: Iterable[str] = (),
) -> Bound:
    """A `Bound` from its terms (summed unless ``value`` is given) and the conditions checked.

    ``notes`` are warnings whatever the arguments: misprints of the formula that was evaluated.
    """
    held: list[str] = []
    broken = list(notes)
    for holds, condition, warning in conditions:
        (held if holds else broken).append(condition if holds else warning)
    total = math.fsum(terms.values()) if value is None else value
    if not math.isfinite(total):
        broken.append("the formula overflows here")
    return Bound(
        value=total,
        formula=formula,
        source=f"{source}, {ORDER}" if order else source,
        terms=dict(terms),
        checked=tuple(held),
        assumed=tuple(assumed),
        warnings=tuple(broken),
    )
