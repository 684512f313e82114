"""Things named by an import path: "package.module:name"."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from winsor.core.contract import ConfigurationError

ALLOWED: ContextVar[bool] = ContextVar("winsor_allow_import", default=True)
"""Whether import paths are followed. The command line switches it off, unless told otherwise."""


@contextmanager
def allowing(wanted: bool) -> Iterator[None]:
    """Follow import paths inside the block, or refuse them."""
    token = ALLOWED.set(wanted)
    try:
        yield
    finally:
        ALLOWED.reset(token)


def is_import_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in f"{module}.{attribute}".split("."))


def import_object(name: str, path: str) -> Any:
    """What ``name`` points to; ``path`` is the setting it came from.

    The working directory can be imported from, after everything that is installed.
    """
    if not ALLOWED.get():
        raise ConfigurationError(
            f"{path} names code to be run, {name!r}, and a configuration may come from a stranger. "
            "If you trust it, say --allow-import."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ConfigurationError(
            f"{path} must be something that can be imported. Got {name!r} instead: "
            f"{type(error).__name__}: {error}. Check the spelling, and that the module is "
            "installed or in the working directory."
        ) from error
    return found


def call_imported(function: Any, options: dict[str, Any], path: str) -> Any:
    """Call the user's class or function; what goes wrong in it is reported under ``path``."""
    try:
        return function(**options)
    except Exception as error:
        raise ConfigurationError(
            f"{path} cannot be built: {type(error).__name__}: {error}. It was called with "
            f"{options!r}."
        ) from error
