"""The page statistics.md: one section per statistic of `winsor.tables.statistics`.

    python docs/statistic_pages.py

A statistic needs no registration here: it is found as everywhere else.
"""

from __future__ import annotations

import inspect

import numpy as np
from built import write

from winsor.tables.statistics import Statistic, all_statistics


def page() -> str:
    """Return the text of statistics.md."""
    parts = [
        "# Statistics that are sums over rows\n",
        "*Built by `docs/statistic_pages.py` from docstrings.*\n",
        inspect.cleandoc(inspect.getmodule(Statistic).__doc__ or "").split("Guarantee\n")[0],
    ]
    parts += [section(name, examples) for name, examples in all_statistics().items()]
    return "\n".join(parts)


def section(name: str, examples: tuple[Statistic, ...]) -> str:
    """Return the section of one statistic: its docstring, its examples, and why it is bounded."""
    lines = [f"## {name}\n", inspect.cleandoc(type(examples[0]).__doc__ or ""), ""]
    for one in examples:
        claim = one.bounded(np.zeros((0, one.columns))).sensitivity
        lines.append(f"* `{one!r}`: a row moves the sum by {claim.add_remove:g}: {claim.proof}.")
    return "\n".join(lines) + "\n"


def files() -> dict[str, str]:
    """Return the page by its path."""
    return {"statistics.md": page()}


if __name__ == "__main__":
    write(files())
