"""Choosing settings: a recipe without tuning, a recommendation from public rows, private tuning.

Names load on first use, because some need torch.

result = winsor.tuning.tune(
    train, {"lr": LogUniform(0.01, 10), "clip": [0.1, 1.0]},
    trial=lambda nm: [(PoissonSampledDpEvent(0.01, GaussianDpEvent(nm)), 1000)],
    epsilon=3.0, delta=1e-6, trials=10,
)
result.best_model, result.best_setting, result.best_score, result.guarantee
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winsor.tuning.outcome import PRUNED, Job, TrialRow, TuningResult, importance
    from winsor.tuning.pruning import PrivateScore, Pruning
    from winsor.tuning.recipes import Recipe, recipe
    from winsor.tuning.recommendations import Recommendation, recommend
    from winsor.tuning.search import PrivateRandomizedSearchCV
    from winsor.tuning.space import Choice, Integer, LogUniform, Space, Uniform
    from winsor.tuning.trials import tune

_NAMES = {
    "outcome": ("PRUNED", "Job", "TrialRow", "TuningResult", "importance"),
    "pruning": ("PrivateScore", "Pruning"),
    "recipes": ("Recipe", "recipe"),
    "recommendations": ("Recommendation", "recommend"),
    "search": ("PrivateRandomizedSearchCV",),
    "space": ("Choice", "Integer", "LogUniform", "Space", "Uniform"),
    "trials": ("tune",),
}
_HOMES = {name: f"winsor.tuning.{home}" for home, names in _NAMES.items() for name in names}

__all__ = [
    "PRUNED",
    "Choice",
    "Integer",
    "Job",
    "LogUniform",
    "PrivateRandomizedSearchCV",
    "PrivateScore",
    "Pruning",
    "Recipe",
    "Recommendation",
    "Space",
    "TrialRow",
    "TuningResult",
    "Uniform",
    "importance",
    "recipe",
    "recommend",
    "tune",
]


if not TYPE_CHECKING:  # or a type checker would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'winsor.tuning' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # found once
        return value


def __dir__() -> list[str]:
    return list(__all__)
