"""Tuning inside the budget: a random number of private trials, of which only the best leaves.

result = winsor.tuning.tune(
    train, {"lr": LogUniform(0.01, 10), "clip": [0.1, 1.0]},
    trial=lambda nm: [(PoissonSampledDpEvent(0.01, GaussianDpEvent(nm)), 1000)],
    epsilon=3.0, delta=1e-6, trials=10,
)
result.best_model, result.best_setting, result.best_score, result.guarantee
"""

from winsor.tuning.outcome import PRUNED, Job, TrialRow, TuningResult
from winsor.tuning.pruning import PrivateScore, Pruning
from winsor.tuning.search import PrivateRandomizedSearchCV
from winsor.tuning.space import Choice, Integer, LogUniform, Space, Uniform
from winsor.tuning.trials import tune
from winsor.tuning.what_matters import importance

__all__ = [
    "PRUNED",
    "Choice",
    "Integer",
    "Job",
    "LogUniform",
    "PrivateRandomizedSearchCV",
    "PrivateScore",
    "Pruning",
    "Space",
    "TrialRow",
    "TuningResult",
    "Uniform",
    "importance",
    "tune",
]
