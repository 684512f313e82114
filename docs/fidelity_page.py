"""The page fidelity.md: where every element of the five papers is, and how it differs.

    python docs/fidelity_page.py

Read from the tables in `papers/winsor_papers/fidelity/`.
`tests/papers/theory/test_fidelity.py` follows every reference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from built import write
from winsor_papers.fidelity import FORMS, Row, read

HEAD = """# Fidelity to the five papers

*Built by `docs/fidelity_page.py` from `papers/winsor_papers/fidelity/`.*

One row per algorithm line, equation, theorem, table and figure. **published** runs or computes what
is printed; **certified** is what winsor proves and uses by default; **both** offers the two;
**missing** says why. A published privacy claim is never a number that a normal run reports.
"""


def page() -> str:
    """Return the text of fidelity.md."""
    titles, rows = read()
    parts = [HEAD, _summary(titles, rows)]
    for number, title in titles.items():
        parts.append(f"\n## {number}. {title}\n")
        parts.append(
            "| item | form | where | test | deviation | reason |\n|---|---|---|---|---|---|"
        )
        parts += [_line(row) for row in rows if row.paper == number]
    return "\n".join(parts) + "\n"


def _summary(titles: Mapping[int, str], rows: Sequence[Row]) -> str:
    lines = ["| paper | " + " | ".join(FORMS) + " |", "|---|" + "---|" * len(FORMS)]
    for number, title in titles.items():
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
    """Return the page by its path."""
    return {"fidelity.md": page()}


if __name__ == "__main__":
    write(files())
