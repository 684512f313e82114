"""Write every page and figure that a program makes: build/docs, which the site lays over docs/.

    python docs/built.py        # `make docs`

Each module of ``WRITERS`` has ``files()``: text by path, relative to docs/. None of these files is
committed. A link from a hand-written page to one of them leads somewhere on the site (`make site`).
"""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "docs"
WRITERS = (
    "rule_pages",
    "paper_page",
    "fidelity_page",
    "theory_page",
    "tables_page",
    "additive_figure",
    "architecture_page",
    "api_pages",
    "licence_page",
)


@functools.cache
def files() -> dict[str, str]:
    """Text of every built file by its path relative to docs/; two writers never share a path."""
    found: dict[str, str] = {}
    for name in WRITERS:
        written: dict[str, str] = importlib.import_module(name).files()
        if shared := found.keys() & written.keys():
            raise ValueError(f"{name} writes {sorted(shared)}, which another module writes too")
        found |= written
    return found


def write(texts: Mapping[str, str], folder: Path = BUILT) -> None:
    """Write the files into ``folder``; others that are there stay."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    texts = files()
    shutil.rmtree(BUILT, ignore_errors=True)
    write(texts)
    rules = importlib.import_module("rule_pages")
    rules.NAMES.write_text(rules.names())  # committed: type checkers read it
    print(f"Written: {len(texts)} files in {BUILT}")


if __name__ == "__main__":
    main()
