"""Where every element of the five papers is: one `Row` per algorithm line, equation, theorem, ...

Each paper has a file, ``1.toml`` to ``5.toml``, with its ``title`` and a table for each item, named
as the paper names it. `docs/fidelity_page.py` writes docs/fidelity.md from them; a test keeps the
page current and follows every ``where`` and ``test``.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FORMS = ("published", "certified", "both", "missing")
KINDS = ("Algorithm", "Definition", "eq", "Theorem", "Proposition", "Corollary", "Lemma", "Remark",
         "Section", "Appendix", "Table", "Figure")  # fmt: skip


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

    >>> Row(2, "eq. (27)", "published", "winsor_papers.theory.sco_budgets.per_step_budget").paper
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


@functools.cache
def read() -> tuple[dict[int, str], tuple[Row, ...]]:
    """Return the titles of the papers by number, and all rows in the order of a page."""
    titles, rows = {}, []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        items = tomllib.loads(path.read_text())
        paper = int(path.stem)
        titles[paper] = items.pop("title")
        rows += [Row(paper, item, **fields) for item, fields in items.items()]
    return titles, tuple(sorted(rows, key=place))


def place(row: Row) -> tuple[int, int, list[tuple[bool, int, str]]]:
    """Order by paper, then by kind, then as people count: line 10 after line 9."""
    kind = next((i for i, word in enumerate(KINDS) if row.item.startswith(word)), len(KINDS))
    parts = re.findall(r"\d+|\D+", re.sub(r"\b(line|eq)s\b", r"\1", row.item))
    return row.paper, kind, [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts]
