"""The options that every example of the gallery has."""

from __future__ import annotations

import argparse
from pathlib import Path

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def asked_for(text: str | None, name: str, arguments: list[str] | None) -> argparse.Namespace:
    """``full``, ``out`` and ``data``, a folder with the files that full forms read."""
    parser = argparse.ArgumentParser(description=(text or "").split("\n")[0])
    parser.add_argument("--full", action="store_true", help="minutes instead of seconds")
    parser.add_argument("--out", type=Path, default=Path("build") / "gallery" / name)
    parser.add_argument("--data", type=Path, default=DATA, help="a folder with data files")
    return parser.parse_args(arguments)
