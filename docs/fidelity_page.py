"""The page fidelity.md: where every element of the five papers is, and how it differs.

    python docs/fidelity_page.py

Gathered from the tuples ``FIDELITY`` that stand beside the code, in any module of winsor.
`tests/papers/theory/test_fidelity.py` follows every reference.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

from built import write
from winsor_papers.theory.fidelity import FORMS, Row

ROOT = Path(__file__).parent.parent

PAPERS = {
    1: "DC-DPSGD: clip body and tail separately",
    2: "Heavy-tailed private convex optimisation at optimal rates",
    3: "DP-SGD with gradient clipping and value clipping",
    4: "AClipped-dpSGD: clip the averaged gradient",
    5: "ModelMix: random mixing of iterates",
}
KINDS = ("Algorithm", "Definition", "eq", "Theorem", "Proposition", "Corollary", "Lemma", "Remark",
         "Section", "Appendix", "Table", "Figure")  # fmt: skip

HEAD = """# Fidelity to the five papers

*Built by `docs/fidelity_page.py` from annotations beside the code.*

One row per algorithm line, equation, theorem, table and figure. **published** runs or computes what
is printed; **certified** is what winsor proves and uses by default; **both** offers the two;
**missing** says why. A published privacy claim is never a number that a normal run reports.
"""


def gathered() -> list[Row]:
    """Every row of every ``FIDELITY`` in winsor; only modules that have one are imported."""
    found: list[Row] = []
    for path in sorted((ROOT / "winsor").rglob("*.py")):
        if re.search(r"^FIDELITY\b", path.read_text(), re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found += importlib.import_module(name).FIDELITY
    return sorted(found, key=_place)


def _place(row: Row) -> tuple[int, int, list[tuple[bool, int, str]]]:
    """By paper, then by kind, then as people count: line 10 after line 9."""
    kind = next((i for i, word in enumerate(KINDS) if row.item.startswith(word)), len(KINDS))
    parts = re.findall(r"\d+|\D+", re.sub(r"\b(line|eq)s\b", r"\1", row.item))
    return row.paper, kind, [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts]


def page(rows: list[Row] | None = None) -> str:
    rows = gathered() if rows is None else rows
    parts = [HEAD, _summary(rows)]
    for number, title in PAPERS.items():
        parts.append(f"\n## {number}. {title}\n")
        parts.append(
            "| item | form | where | test | deviation | reason |\n|---|---|---|---|---|---|"
        )
        parts += [_line(row) for row in rows if row.paper == number]
    return "\n".join(parts) + "\n"


def _summary(rows: list[Row]) -> str:
    lines = ["| paper | " + " | ".join(FORMS) + " |", "|---|" + "---|" * len(FORMS)]
    for number, title in PAPERS.items():
        counts = Counter(row.form for row in rows if row.paper == number)
        numbers = " | ".join(str(counts[form]) for form in FORMS)
        lines.append(f"| {number}. {title} | {numbers} |")
    return "\n".join(lines)


def _line(row: Row) -> str:
    where = f"`{row.where}`" if row.where else ""
    test = f"`{row.test.split('::')[1]}`" if row.test else ""
    cells = (row.item, row.form, where, test, row.deviation, row.reason)
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    text = text.replace("|", "\\|")
    return text if text.startswith("`") else text.replace("<", "&lt;").replace(">", "&gt;")


def files() -> dict[str, str]:
    return {"fidelity.md": page()}


if __name__ == "__main__":
    write(files())
