"""Commands and audits that other distributions bring, found by their entry points.

A distribution adds a command to `winsor` with an entry point of the group ``winsor.commands``
(``name = "module:function"``, a function with typer annotations or a typer app), and a list of
audits to `winsor audit` with one of the group ``winsor.audits`` (``name = "module:function"``, a
function without arguments that returns a list of `winsor.audit.suite.Audit`). They are loaded when
they are asked for.
"""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from winsor.core.contract import ConfigurationError

COMMANDS, AUDITS = "winsor.commands", "winsor.audits"

ELSEWHERE = {"reproduce": "winsor-papers", "promises": "winsor-papers"}
"""Commands that a distribution of this project brings, and which one it is."""


def plugged(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of ``group`` by name, in the order of their names."""
    points = metadata.entry_points(group=group)
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}


def command(name: str) -> Any:
    """Load the command called ``name``; None if no installed distribution has one."""
    point = plugged(COMMANDS).get(name)
    if point is None and name in ELSEWHERE:
        raise ConfigurationError(missing(f"winsor {name}", ELSEWHERE[name]))
    return None if point is None else point.load()


def summaries() -> dict[str, str]:
    """Return the line of `winsor --help` of every command that is plugged in."""
    found = {}
    for name, point in plugged(COMMANDS).items():
        try:
            said = (getattr(point.load(), "__doc__", None) or "").strip()
        except ImportError as error:  # one broken distribution must not take the help away
            said = f"Cannot be loaded: {error}"
        found[name] = said.partition("\n")[0]
    return found


def self_test(name: str) -> Any:
    """Load the audits called ``name`` of winsor itself, which only a clone of the repository has.

    Raises:
        ConfigurationError: if there is no clone to load them from.
    """
    clone = Path(__file__).resolve().parents[3]
    folders = [str(clone / "tests" / "support"), str(clone / "papers")]
    if name not in plugged(AUDITS) and all(Path(folder).is_dir() for folder in folders):
        sys.path += [folder for folder in folders if folder not in sys.path]
        importlib.invalidate_caches()
    point = plugged(AUDITS).get(name)
    if point is None:
        raise ConfigurationError(
            f"winsor audit {name} must find the self-test of winsor, which is in tests/support of "
            "its repository and not in the wheel. Got an installed winsor instead. Run "
            f"`python -m winsor audit {name}` in a clone of the repository."
        )
    return point.load()


def point_to_promises() -> None:
    """Name the command that prints the rates of the papers' theorems, if it is installed."""
    if "promises" in plugged(COMMANDS):
        print(
            "\nwinsor promises prints the rates that the papers' theorems promise for such numbers."
        )


def missing(what: str, distribution: str) -> str:
    """Say which distribution brings ``what``, and how to install it."""
    return (
        f"{what} must find {distribution}, which is not installed. Install {distribution}: "
        "`pip install -e papers` in a clone of the repository."
    )
