"""Where an element of a paper is in winsor: one `Row` per algorithm line, equation, theorem, ...

A module that implements something printed lists it in a tuple ``FIDELITY`` beside the code.
`docs/fidelity_page.py` gathers these tuples and writes docs/fidelity.md; a test keeps the page
current and follows every ``where`` and ``test``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FORMS = ("published", "certified", "both", "missing")


@dataclass(frozen=True)
class Row:
    """One element of one paper.

    Attributes:
        paper: 1 DC-DPSGD, 2 heavy-tailed DP-SCO, 3 value clipping, 4 AClipped-dpSGD, 5 ModelMix.
        item: as the paper names it: "Algorithm 1, line 6", "eq. (27)", "Theorem 4.1", "Table 1".
        form: ``published`` (as printed), ``certified`` (what winsor proves), ``both``, ``missing``.
        where: a dotted name of winsor, or a path from the root of the repository.
        test: ``path::function`` from the root; empty only where nothing is executed.
        deviation: what differs from the print.
        reason: why; for a missing row, why it is missing.

    >>> Row(2, "eq. (27)", "published", "winsor_papers.theory.sco_rates.per_step_budget").paper
    2
    """

    paper: int
    item: str
    form: str
    where: str = ""
    test: str = ""
    deviation: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}. Got {self.form!r} instead.")
        if self.form == "missing" and not self.reason:
            raise ValueError(f"a missing row must state its reason. Got none for {self.item!r}.")
        if self.deviation and not self.reason:
            raise ValueError(f"a deviation must state its reason. Got none for {self.item!r}.")


Line = tuple[str, Callable[..., Any], str] | tuple[str, Callable[..., Any], str, str, str]
"""Item, the function that is it, its test; and where it differs, deviation and reason."""


def rows_of(paper: int, tests: str, *lines: Line) -> tuple[Row, ...]:
    """Rows of formulas: each names a function, and a test in the file ``tests``.

    A formula that deviates is offered as printed and as corrected: its form is ``both``.
    """
    found = []
    for item, function, test, *rest in lines:
        deviation, reason = rest or ("", "")
        form = "both" if deviation else "published"
        where = f"{function.__module__}.{function.__qualname__}"
        found.append(Row(paper, item, form, where, f"{tests}::{test}", deviation, reason))
    return tuple(found)
