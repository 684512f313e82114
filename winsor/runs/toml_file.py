"""A configuration file as a plain table.

By itself, so that a file that is missing or no TOML is refused before scipy and torch are loaded.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from winsor.contract import ConfigurationError


def load_table(path: Path) -> dict[str, Any]:
    """The plain table of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the configuration {path}: {error.strerror or error}."
        ) from error
    except (ValueError, RecursionError) as error:  # also numbers and tables without end
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from error
