"""What to run: a whole run without tuning, or the best of several tried on public rows.

Names load on first use, because they need torch and reading public rows does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.advise.recipes import Recipe, recipe
    from winsor.advise.recommendations import Recommendation, recommend

__all__ = ["Recipe", "Recommendation", "recipe", "recommend"]

_LATER = {
    "Recipe": "winsor.advise.recipes",
    "Recommendation": "winsor.advise.recommendations",
    "recipe": "winsor.advise.recipes",
    "recommend": "winsor.advise.recommendations",
}


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'winsor.advise' has no attribute {name!r}")
        value = getattr(import_module(_LATER[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return list(__all__)
