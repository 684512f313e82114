"""winsor: differentially private learning when gradients and data have heavy tails.

Names load on first use, so that `winsor plan` never waits for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "make_private": "winsor.making",
    "PrivateTraining": "winsor.training",
    "fit": "winsor.fitting",
    "recommend": "winsor.tails.recommend",
    "Neighbouring": "winsor.contract",
    "Guarantee": "winsor.contract",
    "Poisson": "winsor.sampling",
    "FixedSize": "winsor.sampling",
    "FullBatch": "winsor.sampling",
}
_MODULES = ("accounting", "audit", "contract", "data", "grads", "linear", "means", "rules", "tails")

if TYPE_CHECKING:
    from winsor import accounting, contract, grads, rules
    from winsor.contract import Guarantee, Neighbouring
    from winsor.fitting import fit
    from winsor.making import make_private
    from winsor.sampling import FixedSize, FullBatch, Poisson
    from winsor.tails.recommend import recommend
    from winsor.training import PrivateTraining

__all__ = [
    "FixedSize",
    "FullBatch",
    "Guarantee",
    "Neighbouring",
    "Poisson",
    "PrivateTraining",
    "accounting",
    "contract",
    "fit",
    "grads",
    "make_private",
    "recommend",
    "rules",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # a submodule of the same name must not shadow the function
        return value
    if name in _MODULES:
        return import_module(f"winsor.{name}")
    raise AttributeError(f"module 'winsor' has no attribute {name!r}")
