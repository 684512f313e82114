"""A configuration file as a plain table.

By itself, so that a file that is missing or no TOML is refused before scipy and torch are loaded.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from winsor.core.contract import ConfigurationError

REMEDIES = {
    "\\": 'Write paths with /, or in single quotes: source = "C:/data/rows.csv".',
    "Invalid value": 'Text stands in quotes: name = "flat".',
    "Expected '='": "A setting is written key = value, under the name of its table: [data].",
    "declare": "Write the settings of a table together, under one heading.",
    "overwrite": "The same setting stands there twice.",
    "codec": "Save it as UTF-8.",
}


def load_table(path: Path) -> dict[str, Any]:
    """The plain table of a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the configuration {path}: {error.strerror or error}."
        ) from error
    except (ValueError, RecursionError) as error:  # also numbers and tables without end
        raise ConfigurationError(
            f"{path} is not valid TOML: {error}.{_remedy(str(error))}"
        ) from error


def read_text(path: Path) -> str:
    """Without the mark that editors on Windows put in front."""
    return path.read_text(encoding="utf-8-sig")


def _remedy(problem: str) -> str:
    """What to write instead, for what people write most."""
    for sign, remedy in REMEDIES.items():
        if sign in problem:
            return f" {remedy}"
    return ""
