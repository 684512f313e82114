"""The README as a program: its Python blocks, and the lines of its command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"


def fenced() -> Iterator[tuple[int, str, str]]:
    """(number, language, line) for every line inside a fence."""
    language: str | None = None
    for number, line in enumerate(README.read_text().splitlines()):
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language is not None:
            yield number, language, line


def program() -> str:
    """Every Python block in one file, at the lines where README has it."""
    lines = {number: line for number, language, line in fenced() if language == "python"}
    return "\n".join(lines.get(number, "") for number in range(max(lines) + 1)) + "\n"


def commands() -> list[list[str]]:
    """The words of every `winsor ...` line, comments left out."""
    lines = [line.split("#")[0].split() for _, language, line in fenced() if not language]
    return [words[1:] for words in lines if words[:1] == ["winsor"]]
