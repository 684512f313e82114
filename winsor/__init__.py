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

from winsor.core.contract import Guarantee
from winsor.planning.optional import needing_torch

if TYPE_CHECKING:
    from winsor import (
        audit,
        core,
        features,
        gradients,
        metrics,
        models,
        planning,
        rules,
        tables,
        tails,
        training,
        tuning,
    )
    from winsor.contrib.modelmix.mechanism import ModelMix
    from winsor.core.contract import Neighbouring
    from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson
    from winsor.planning.bands import Banded
    from winsor.planning.total import total
    from winsor.training.fit import fit
    from winsor.training.iterates import Ball
    from winsor.training.loop import PrivateTraining
    from winsor.training.make_private import make_private
    from winsor.training.saving.file import resume
    from winsor.tuning import recipe, recommend, tune

__version__ = "0.3.0"  # the only place: the wheel, the reports and the benchmarks read it here

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
    "audit",
    "core",
    "features",
    "fit",
    "gradients",
    "make_private",
    "metrics",
    "models",
    "planning",
    "recipe",
    "recommend",
    "resume",
    "rules",
    "tables",
    "tails",
    "total",
    "training",
    "tune",
    "tuning",
]

_HOMES = {
    "Ball": "winsor.training.iterates",
    "Banded": "winsor.planning.bands",
    "FixedSize": "winsor.core.sampling.samplers",
    "FullBatch": "winsor.core.sampling.samplers",
    "ModelMix": "winsor.contrib.modelmix.mechanism",
    "Neighbouring": "winsor.core.contract",
    "Poisson": "winsor.core.sampling.samplers",
    "PrivateTraining": "winsor.training.loop",
    "fit": "winsor.training.fit",
    "make_private": "winsor.training.make_private",
    "recipe": "winsor.tuning",
    "recommend": "winsor.tuning",
    "resume": "winsor.training.saving.file",
    "total": "winsor.planning.total",
    "tune": "winsor.tuning",
}

_MOVED = {
    "accounting": "core.accounting",
    "additive": "tables",
    "advise": "tuning",
    "cards": "charts.notebook_html",
    "checks": "core.checks",
    "cli": "app.commands",
    "compiled": "core.compiled",
    "contract": "core.contract",
    "data": "tails.datasets",
    "distributed": "training.ranks",
    "files": "training.files",
    "grads": "gradients",
    "ledger": "core.ledger",
    "linear": "tables",
    "losses": "training.losses",
    "means": "tables",
    "mechanisms": "core.noise",
    "partitions": "tables.partitions",
    "randomness": "core.randomness",
    "ranges": "tables",
    "release": "core.door",
    "report": "app.report",
    "runs": "app.runs",
    "sampling": "core.sampling",
    "tree": "gradients.buffers",
}
"""Names of version 0.2 and where they are now, below winsor."""
_PAPERS = ("papers", "theory")
"""Names of version 0.2 that are in the second distribution now."""


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            with needing_torch(f"winsor.{name}"):
                value = getattr(import_module(_HOMES[name]), name)
        elif name in __all__:
            with needing_torch(f"winsor.{name}"):
                value = import_module(f"winsor.{name}")
        elif name in _PAPERS:
            raise AttributeError(f"winsor.{name} of version 0.2 is in package winsor_papers now.")
        elif name in _MOVED:
            raise AttributeError(f"winsor.{name} of version 0.2 is winsor.{_MOVED[name]} now.")
        else:
            near = get_close_matches(name, __all__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise AttributeError(
                f"module 'winsor' has no attribute {name!r}.{hint} It has {', '.join(__all__)}."
            )
        globals()[name] = value  # found once
        return value


def _drawn(guarantee: Guarantee) -> str:
    return import_module("winsor.charts.notebook_html").guarantee_card(guarantee)


Guarantee.drawn = staticmethod(_drawn)  # the core draws nothing itself


def __dir__() -> list[str]:
    return list(__all__)
