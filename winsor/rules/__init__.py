"""Every clipping rule, found rather than listed.

A rule is a module of this folder that exports ``EXAMPLES``: a few instances of its class or
classes. The test battery, the audit, the command line and the documentation go through the
functions below, so adding a rule is adding one file.

The file may also live outside winsor: in a folder named by the environment variable
``WINSOR_RULES`` (several, separated as in PATH), or in an installed package with an entry point of
the group ``winsor.rules`` that names its module.

>>> from winsor import rules
>>> rules.Flat(1.0)
Flat(max_grad_norm=1.0)
>>> rules.by_name("per_layer", max_grad_norm=1.0, joint=True).joint
True
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from winsor.core.checks import choice, nearest_first
from winsor.core.contract import ConfigurationError
from winsor.planning.optional import needing_torch

if TYPE_CHECKING:  # the classes below are found when asked for: type checkers read their names here
    from winsor.rules._names import *  # written by docs/rule_pages.py (make docs)

FOLDERS = "WINSOR_RULES"
ENTRY_POINTS = "winsor.rules"

ARCHIVE = "experiments/2026-11-edge/rules"
"""Folder in winsor's repository with rules that lost to `Flat` in its experiments."""

ARCHIVED = ("Balanced", "Centred", "Compensated", "Geometric", "Microbatch", "Scaled")


@functools.cache
def _modules() -> tuple[Any, ...]:
    _extend_path()
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    loaded = [importlib.import_module(f"{__name__}.{name}") for name in found]
    installed = importlib.metadata.entry_points(group=ENTRY_POINTS)
    loaded += [point.load() for point in sorted(installed, key=lambda point: point.name)]
    return tuple(module for module in loaded if hasattr(module, "EXAMPLES"))


@functools.cache
def _extend_path() -> None:
    """Add the folders named in the environment to this package, after its own."""
    taken = {module.name for module in pkgutil.iter_modules(__path__)}
    for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
        if not Path(folder).is_dir():
            raise ConfigurationError(
                f"{FOLDERS} must name folders with rules. Got {folder!r} instead, which is none."
            )
        names = {module.name for module in pkgutil.iter_modules([folder])}
        if names & taken:
            raise ConfigurationError(
                f"files in {FOLDERS} must have names of their own. Got {sorted(names & taken)} "
                f"in {folder!r} instead, which winsor has already. Rename them."
            )
        taken |= names
        __path__.append(folder)


@functools.cache
def all_rules() -> MappingProxyType[str, type[Any]]:
    """Return class name -> rule class, in the order of their files.

    >>> all_rules()["Flat"].__module__
    'winsor.rules.flat'
    """
    found: dict[str, type[Any]] = {}
    for cls in dict.fromkeys(type(example) for example in all_examples()):
        if cls.__name__ in found:
            raise ConfigurationError(
                f"rules must have names of their own. Got {cls.__name__!r} in both "
                f"{found[cls.__name__].__module__} and {cls.__module__} instead. Rename one."
            )
        found[cls.__name__] = cls
    return MappingProxyType(found)


def all_examples() -> tuple[Any, ...]:
    """Return the example instances of every rule.

    >>> all_examples()[0]
    Automatic(max_grad_norm=1.0, gamma=0.01)
    """
    return tuple(example for module in _modules() for example in module.EXAMPLES)


def find(name: str) -> type[Any] | None:
    """Return the rule class called ``name``, in any spelling; None if there is none.

    A rule whose file (or entry point) has its name is imported alone: a run with `Flat` loads no
    others.

    >>> find("per-layer").__name__, find("sdg")
    ('PerLayer', None)
    """
    wanted = _plain(name)
    for load in _named(wanted):
        for example in getattr(load(), "EXAMPLES", ()):
            if _plain(type(example).__name__) == wanted:
                return type(example)
    return {_plain(rule): cls for rule, cls in all_rules().items()}.get(wanted)


def _named(wanted: str) -> list[Callable[[], Any]]:
    """Return loaders of the modules of rules whose name is ``wanted``."""
    _extend_path()
    own = [m.name for m in pkgutil.iter_modules(__path__) if _plain(m.name) == wanted]
    installed = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return [
        *(functools.partial(importlib.import_module, f"{__name__}.{name}") for name in own),
        *(point.load for point in installed if _plain(point.name) == wanted),
    ]


def by_name(name: str, /, **options: Any) -> Any:
    """Return the rule called ``name``, in any spelling: "per_layer", "PerLayer", "per-layer".

    >>> by_name("flat", max_grad_norm=0.5)
    Flat(max_grad_norm=0.5)
    """
    kind = find(name)
    if kind is None:
        kind = all_rules()[choice("rule", name, nearest_first(name, all_rules()), moved(name))]
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigurationError(f"the options of {name!r} do not fit: {error}.") from error


def is_known(name: str) -> bool:
    """Return whether `by_name` knows a rule of this name.

    >>> is_known("per-layer"), is_known("sdg")
    (True, False)
    """
    return find(name) is not None


def moved(name: str) -> str:
    """Return where the archived rule ``name`` went, as the remedy of an error; "" for others."""
    if _plain(name) not in map(_plain, ARCHIVED):
        return ""
    return (
        f"It was archived in 0.3: it is a file of {ARCHIVE} in winsor's repository. "
        f"Set {FOLDERS} to that folder to use it."
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


if not TYPE_CHECKING:  # or a type checker would believe in rules that do not exist

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return __dir__()
        if not name[:1].isupper():  # the import system probes for submodules: no discovery then
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needing_torch(f"winsor.rules.{name}"):
            rule = find(name)
        if rule is not None and rule.__name__ == name:
            return rule
        near = nearest_first(name, sorted(all_rules()))
        remedy = moved(name) or f"Did you mean {near[0]!r}?"
        raise AttributeError(f"module {__name__!r} has no rule {name!r}. {remedy} It has {near}.")


def __dir__() -> list[str]:
    return ["all_examples", "all_rules", "by_name", *all_rules()]
