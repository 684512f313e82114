"""winsor: differentially private learning when gradients and data have heavy tails.

Everything a user needs is here; names load on first use, so that `winsor plan` never waits for
torch.

>>> import winsor
>>> sorted(set(dir(winsor)) - set(winsor.__all__))
[]
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor import (
        accounting,
        additive,
        audit,
        contract,
        data,
        features,
        grads,
        linear,
        losses,
        means,
        metrics,
        models,
        rules,
        tails,
        theory,
        tuning,
    )
    from winsor.advise import recipe, recommend
    from winsor.contract import Guarantee, Neighbouring
    from winsor.contrib.modelmix.mechanism import ModelMix
    from winsor.ledger.total import total
    from winsor.mechanisms.banded import Banded
    from winsor.sampling.samplers import FixedSize, FullBatch, Poisson
    from winsor.training.fit import fit
    from winsor.training.iterates import Ball
    from winsor.training.loop import PrivateTraining
    from winsor.training.make_private import make_private
    from winsor.training.resuming import resume
    from winsor.tuning import tune

__version__ = "0.2.0"  # the only place: the wheel, the reports and the benchmarks read it here

__all__ = [
    "Ball",
    "Banded",
    "FixedSize",
    "FullBatch",
    "Guarantee",
    "ModelMix",
    "Neighbouring",
    "Poisson",
    "PrivateTraining",
    "accounting",
    "additive",
    "audit",
    "contract",
    "data",
    "features",
    "fit",
    "grads",
    "linear",
    "losses",
    "make_private",
    "means",
    "metrics",
    "models",
    "recipe",
    "recommend",
    "resume",
    "rules",
    "tails",
    "theory",
    "total",
    "tune",
    "tuning",
]

_HOMES = {
    "Ball": "winsor.training.iterates",
    "Banded": "winsor.mechanisms.banded",
    "FixedSize": "winsor.sampling.samplers",
    "FullBatch": "winsor.sampling.samplers",
    "Guarantee": "winsor.contract",
    "ModelMix": "winsor.contrib.modelmix.mechanism",
    "Neighbouring": "winsor.contract",
    "Poisson": "winsor.sampling.samplers",
    "PrivateTraining": "winsor.training.loop",
    "fit": "winsor.training.fit",
    "make_private": "winsor.training.make_private",
    "recipe": "winsor.advise",
    "recommend": "winsor.advise",
    "resume": "winsor.training.resuming",
    "total": "winsor.ledger.total",
    "tune": "winsor.tuning",
}


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            value = getattr(import_module(_HOMES[name]), name)
        elif name in __all__:
            value = import_module(f"winsor.{name}")
        else:
            near = get_close_matches(name, __all__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise AttributeError(
                f"module 'winsor' has no attribute {name!r}.{hint} It has {', '.join(__all__)}."
            )
        globals()[name] = value  # found once
        return value


def __dir__() -> list[str]:
    return list(__all__)
