"""Know your tails: fits, guidance from the theorems, plots, and monitors during training.

Names load when they are first used: the monitors need torch, everything else is NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.rules.debug_monitor import DebugMonitor
    from winsor.rules.monitor import PrivateMonitor
    from winsor.tails import datasets
    from winsor.tails.fitting import Estimate, TailFit, fit
    from winsor.tails.guide import Advice, Setting, advise
    from winsor.tails.verdict import TailClass, Verdict

_HOMES = {
    "Advice": "winsor.tails.guide",
    "DebugMonitor": "winsor.rules.debug_monitor",
    "Estimate": "winsor.tails.fitting",
    "PrivateMonitor": "winsor.rules.monitor",
    "Setting": "winsor.tails.guide",
    "TailClass": "winsor.tails.verdict",
    "TailFit": "winsor.tails.fitting",
    "Verdict": "winsor.tails.verdict",
    "advise": "winsor.tails.guide",
    "datasets": "winsor.tails.datasets",
    "fit": "winsor.tails.fitting",
}

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


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'winsor.tails' has no attribute {name!r}")
        home = import_module(_HOMES[name])
        globals()[name] = value = getattr(home, name, home)  # `datasets` is a module
        return value


def __dir__() -> list[str]:
    return list(__all__)
