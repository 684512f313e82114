"""A record whose threshold and step length are found within epsilon: `winsor.tune`, one call.

Around `winsor.recipe`, which looks at no row: its batches and steps, and a law around its two
numbers, the share of norms below the threshold and the length of a step; a quarter of the trials
are the recipe itself. Every trial trains on all rows, which score it through the door, with noise.
The number of trials is random, and the ledger holds the selection with every release of a trial.
What is released before the trials, for all of them (axes, second moments, class counts), leaves
less for the tuning (`left_of`); `benchmarks/records.py` certifies both together.

Few trials on average: where batches are large and noise is loud, a selection is dear. With 400
steps at rate 0.1 and epsilon 3 a mean of two asks for 1.16 times the noise of a single run, of
three for 1.29 and of five for 1.50.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent
from torch import Tensor, nn

from winsor.accounting import calibrate, certify
from winsor.accounting.events import History
from winsor.accounting.trial_counts import TruncatedNegativeBinomial
from winsor.advise.recipes import Recipe, UnitLength
from winsor.contract import Neighbouring
from winsor.grads import trainable_parameters
from winsor.metrics import Accuracy
from winsor.rules.rule import dry_run
from winsor.sampling.samplers import Poisson
from winsor.training.make_private import PlannedSteps
from winsor.tuning import Job, LogUniform, PrivateScore, Space, TuningResult, Uniform, tune

FACTOR, WIDTH, SHARE, SCORE_STD = 2.0, 0.1, 0.25, 0.001
TRIALS, ETA = 2, 4.0
INSIDE = (
    f"around the recipe: quantile within {WIDTH:g}, length within a factor {FACTOR:g}, the recipe "
    f"itself in {SHARE:g} of the trials; mean of {TRIALS} trials, eta {ETA:g}; scored by training "
    f"rows with noise {SCORE_STD:g}"
)
"""What a cell says of how it was tuned; the same for every task."""
MOST_QUANTILE = 0.98
LEAST_SCORE_NOISE = 20.0
"""Over the sensitivity of a score: of few rows, as in the audit, `SCORE_STD` would cost all."""
KEPT_BACK = 0.02
"""Of epsilon, where something is released before the trials: a selection composes a little worse
than the normal law by which `left_of` reckons."""

Fit = Callable[[Recipe, Job], tuple[nn.Module, Any]]
"""One private training by a recipe at the job's noise: the model, and the finished run."""


@dataclass(frozen=True)
class Scored:
    """The rows that score a trial: their labels, and what a model takes them for."""

    labels: Tensor
    guesses: Callable[[nn.Module], Tensor]


def left_of(epsilon: float, delta: float, noises: list[float]) -> float:
    """What releases with these noise multipliers leave of epsilon for the tuning."""
    if not noises:
        return epsilon
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    whole = calibrate.noise_multiplier(GaussianDpEvent, 1, epsilon, delta, relation)
    left = (whole**-2 - sum(noise**-2 for noise in noises)) ** -0.5
    found = certify([(GaussianDpEvent(left), 1)], delta, relation).epsilon
    return (1 - KEPT_BACK) * found


def around(plan: Recipe) -> Space:
    """Public laws around the two numbers of a recipe."""
    quantile, length = plan.rule.rule.tracker.target, plan.learning_rate
    highest = max(quantile, min(quantile + WIDTH, MOST_QUANTILE))
    laws = {
        "quantile": Uniform(quantile - WIDTH, highest),
        "length": LogUniform(length / FACTOR, length * FACTOR),
    }
    return Space(laws).with_known({"quantile": quantile, "length": length}, SHARE)


def at(plan: Recipe, setting: dict[str, float]) -> Recipe:
    """The recipe with other values of these two numbers."""
    rule = plan.rule.rule
    tracker = replace(rule.tracker, target=setting["quantile"])
    changed = UnitLength(replace(rule, tracker=tracker))
    return replace(plan, rule=changed, learning_rate=setting["length"])


def price_of(plan: Recipe, model: nn.Module, n: int) -> Callable[[float], History]:
    """What the steps of a recipe spend on ``n`` rows, by their noise multiplier."""
    sampler = Poisson.of_batch_size(n, plan.batch_size)
    parts = dry_run(plan.rule, trainable_parameters(model), sampler.expected_size)
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    return PlannedSteps(parts, "gaussian", sampler, relation, plan.delta, plan.steps).events


def within_epsilon(
    fit: Fit,
    plan: Recipe,
    price: Callable[[float], History],
    scored: Scored,
    epsilon: float,
    seed: int,
    folder: Path | None,
) -> TuningResult:
    """The best of a random number of trials around ``plan``, whose whole tuning spends epsilon."""
    labels = scored.labels.numpy()
    score = PrivateScore.of_std(Accuracy(), SCORE_STD, len(labels))
    score = replace(score, noise_multiplier=max(score.noise_multiplier, LEAST_SCORE_NOISE))

    def one(setting: dict[str, Any], job: Job) -> tuple[Any, Any, Any]:
        model, run = fit(at(plan, setting), job)
        named = scored.guesses(model).numpy()
        return model, run.ledger, job.measure(run.ledger, targets=labels, predictions=named)

    return tune(
        one,
        around(plan),
        trial=price,
        score=score,
        epsilon=epsilon,
        delta=plan.delta,
        trials=TruncatedNegativeBinomial.of_mean(TRIALS, eta=ETA),
        directory=folder,
        random_state=seed,
    )
