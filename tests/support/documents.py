"""A page of documentation as a program: its Python blocks, and the set-up that readers do not see.

A page may hold ``<!-- setup ... -->`` with the names that its blocks use: rows, a model. A block
that is fenced as ``python peer NAME`` shows another library's code: with ``<!-- peer setup NAME ...
-->`` it is a program of its own, which `docs/peer_code.py` runs in that library's environment. Any
other word after ``python`` names a test that runs the block with models of its own.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PYTHON, SETUP = "```python", "<!-- setup"
PEER, PEER_SETUP = "```python peer", "<!-- peer setup"


def program(page: Path, fence: str = PYTHON, setup: str = SETUP) -> str:
    """What is run, at the lines where the page has it."""
    lines, inside = [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if inside is not None:
            end = line == inside
            lines.append("" if end else line)
            inside = None if end else inside
            continue
        lines.append("")
        if line.strip() == fence:
            inside = "```"
        elif line.strip() == setup:
            inside = "-->"
    return "\n".join(lines) + "\n"


def count(page: Path, fence: str = PYTHON) -> int:
    """Blocks that open with just this fence."""
    return sum(line.strip() == fence for line in page.read_text(encoding="utf-8").splitlines())
