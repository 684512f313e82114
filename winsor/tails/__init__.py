"""Know your tails: fits, guidance from the theorems, plots, and monitors during training.

The monitors need torch and load on first use; everything else is NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from winsor.tails import datasets
from winsor.tails.fitting import Estimate, TailFit, fit
from winsor.tails.guide import Advice, Setting, advise
from winsor.tails.verdict import TailClass, Verdict

if TYPE_CHECKING:
    from winsor.rules.debug_monitor import DebugMonitor
    from winsor.rules.monitor import PrivateMonitor

__all__ = [
    "Advice",
    "DebugMonitor",
    "Estimate",
    "PrivateMonitor",
    "Setting",
    "TailClass",
    "TailFit",
    "Verdict",
    "advise",
    "datasets",
    "fit",
]

_LATER = {
    "DebugMonitor": "winsor.rules.debug_monitor",
    "PrivateMonitor": "winsor.rules.monitor",
}


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'winsor.tails' has no attribute {name!r}")
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
