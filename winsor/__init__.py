"""winsor: differentially private learning when gradients and data have heavy tails.

Names load on first use, so that `winsor plan` never waits for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "make_private": "winsor.training.make_private",
    "PrivateTraining": "winsor.training.loop",
    "fit": "winsor.training.fit",
    "recommend": "winsor.advise.recommend",
    "Neighbouring": "winsor.contract",
    "Guarantee": "winsor.contract",
    "Poisson": "winsor.sampling.samplers",
    "FixedSize": "winsor.sampling.samplers",
    "FullBatch": "winsor.sampling.samplers",
}
_MODULES = ("accounting", "audit", "contract", "data", "grads", "linear", "means", "rules", "tails")

if TYPE_CHECKING:
    from winsor import accounting, contract, grads, rules
    from winsor.advise.recommend import recommend
    from winsor.contract import Guarantee, Neighbouring
    from winsor.sampling.samplers import FixedSize, FullBatch, Poisson
    from winsor.training.fit import fit
    from winsor.training.loop import PrivateTraining
    from winsor.training.make_private import make_private

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
