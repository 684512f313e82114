"""A record whose threshold and step length are found within epsilon: `winsor.tune`, one call.

A random tenth of the training rows is held out and scores the trials, with noise; the number of
trials is random (logarithmic law), and the ledger holds the selection with every release of a
trial. What is released before the trials, for all of them (axes, second moments), leaves less for
the tuning (`left_of`); `benchmarks/records.py` certifies both together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from torch import Tensor, nn

from winsor.accounting import calibrate, certify
from winsor.contract import Neighbouring
from winsor.metrics import Accuracy
from winsor.sampling.samplers import Poisson
from winsor.tuning import Job, LogUniform, PrivateScore, Space, TuningResult, tune

HELD_OUT, SCORE_STD, TRIALS = 0.1, 0.005, 5
SPACE = Space({"threshold": LogUniform(0.1, 20.0), "length": LogUniform(0.5, 8.0)})
"""Round numbers around what large batches of standardised rows usually want."""
KEPT_BACK = 0.02
"""Of epsilon, where something is released before the trials: a selection composes a little worse
than the normal law by which `left_of` reckons."""

Fit = Callable[[Tensor, Tensor, dict[str, float], Job], tuple[nn.Module, Any]]
"""One private training at a setting: the model, and the finished run."""


def smaller(batch: int, kept: int, n: int) -> int:
    """The batch of ``kept`` of ``n`` rows at the same sampling rate."""
    return round(batch * kept / n)


def left_of(epsilon: float, delta: float, noises: list[float]) -> float:
    """What releases with these noise multipliers leave of epsilon for the tuning."""
    if not noises:
        return epsilon
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    whole = calibrate.noise_multiplier(GaussianDpEvent, 1, epsilon, delta, relation)
    left = (whole**-2 - sum(noise**-2 for noise in noises)) ** -0.5
    found = certify([(GaussianDpEvent(left), 1)], delta, relation).epsilon
    return (1 - KEPT_BACK) * found


def spends(sampling: str, rate: float, steps: int, noise: float) -> list[tuple[Any, int]]:
    """The steps of one trial."""
    step = GaussianDpEvent(noise)
    return [(step if sampling == "full" else PoissonSampledDpEvent(rate, step), steps)]


def within_epsilon(
    rows: tuple[Tensor, Tensor],
    fit: Fit,
    plan: tuple[int, int, str],
    budget: tuple[float, float],
    seed: int,
    folder: Path,
) -> TuningResult:
    """``plan`` is (batch, steps, sampling) for all rows, ``budget`` (epsilon, delta) of the whole
    tuning."""
    x, y = rows
    out = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < HELD_OUT
    inside, held_out = (x[~out], y[~out]), (x[out], y[out])
    batch, (steps, sampling) = smaller(plan[0], len(inside[1]), len(y)), plan[1:]
    rate = Poisson.of_batch_size(len(inside[1]), batch).rate

    def one(setting: dict[str, Any], job: Job) -> tuple[Any, Any, Any]:
        model, run = fit(*inside, setting, job)
        with torch.no_grad():
            named = torch.cat([model(part.float()).argmax(1) for part in held_out[0].split(2000)])
        columns = {"targets": held_out[1].numpy(), "predictions": named.numpy()}
        return model, run.ledger, job.measure(run.ledger, **columns)

    return tune(
        one,
        SPACE,
        trial=lambda noise: spends(sampling, rate, steps, noise),
        score=PrivateScore(Accuracy(), 2 * SCORE_STD * len(held_out[1])),
        epsilon=budget[0],
        delta=budget[1],
        trials=TRIALS,
        directory=folder,
        random_state=seed,
    )
