"""Know your tails: fits, guidance from the theorems, plots, and monitors during training.

The monitors need torch and load on first use; everything else is NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from winsor.tails.fit import Estimate, TailFit, fit
from winsor.tails.guide import Advice, Setting, advise
from winsor.tails.verdict import TailClass, Verdict

if TYPE_CHECKING:
    from winsor.advise.recipe import Recipe, recipe
    from winsor.advise.recommend import recommend
    from winsor.tails.debug import DebugMonitor
    from winsor.tails.monitor import PrivateMonitor

_LATER = {
    "DebugMonitor": "winsor.tails.debug",
    "PrivateMonitor": "winsor.tails.monitor",
    "Recipe": "winsor.advise.recipe",
    "recipe": "winsor.advise.recipe",
    "recommend": "winsor.advise.recommend",
}

__all__ = [
    "Advice",
    "DebugMonitor",
    "Estimate",
    "PrivateMonitor",
    "Recipe",
    "Setting",
    "TailClass",
    "TailFit",
    "Verdict",
    "advise",
    "fit",
    "recipe",
    "recommend",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value  # the submodule `recommend` must not shadow the function
        return value
    raise AttributeError(f"module 'winsor.tails' has no attribute {name!r}")
