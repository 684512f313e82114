"""A page of documentation as a program: its Python blocks, and the set-up that readers do not see.

A page may hold ``<!-- setup ... -->`` with the names that its blocks use: rows, a model. A block
that is fenced as ``python peer`` shows another library's code, and is not run.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PYTHON, PEER, SETUP = "```python", "```python peer", "<!-- setup"


def program(page: Path) -> str:
    """What is run, at the lines where the page has it."""
    lines, inside = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if inside is not None:
            end = line == inside
            lines.append("" if end else line)
            inside = None if end else inside
            continue
        lines.append("")
        if line.strip() == PYTHON:
            inside = "```"
        elif line.strip() == SETUP:
            inside = "-->"
    return "\n".join(lines) + "\n"


def count(page: Path, fence: str = PYTHON) -> int:
    """Blocks that open with just this fence."""
    return sum(line.strip() == fence for line in page.read_text(encoding="utf-8").splitlines())
