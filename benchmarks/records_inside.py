"""A record whose threshold and step length are found within epsilon: `winsor.tune`, one call.

A random tenth of the training rows is held out and scores the trials, with noise; the number of
trials is random (logarithmic law), and the ledger holds the selection with every release of a
trial. Only for features that are normalised row by row: nothing is released before the trials.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from torch import Tensor, nn

from winsor.metrics import Accuracy
from winsor.sampling.samplers import Poisson
from winsor.tuning import Job, LogUniform, PrivateScore, Space, TuningResult, tune

HELD_OUT, SCORE_STD, TRIALS = 0.1, 0.005, 5
SPACE = Space({"threshold": LogUniform(0.1, 20.0), "length": LogUniform(0.5, 8.0)})
"""Round numbers around what large batches of standardised rows usually want."""

Fit = Callable[[Tensor, Tensor, dict[str, float], Job], tuple[nn.Module, Any]]
"""One private training at a setting: the model, and the finished run."""


def smaller(batch: int, kept: int, n: int) -> int:
    """The batch of ``kept`` of ``n`` rows at the same sampling rate."""
    return round(batch * kept / n)


def within_epsilon(
    rows: tuple[Tensor, Tensor],
    fit: Fit,
    plan: tuple[int, int],
    budget: tuple[float, float],
    seed: int,
    folder: Path,
) -> TuningResult:
    """``plan`` is (batch, steps) for all rows, ``budget`` (epsilon, delta) of the whole tuning."""
    x, y = rows
    out = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)) < HELD_OUT
    inside, held_out = (x[~out], y[~out]), (x[out], y[out])
    batch, steps = smaller(plan[0], len(inside[1]), len(y)), plan[1]
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
        trial=lambda nm: [(PoissonSampledDpEvent(rate, GaussianDpEvent(nm)), steps)],
        score=PrivateScore(Accuracy(), 2 * SCORE_STD * len(held_out[1])),
        epsilon=budget[0],
        delta=budget[1],
        trials=TRIALS,
        directory=folder,
        random_state=seed,
    )
