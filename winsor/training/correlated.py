"""What correlated noise must know of a run: its sampler, its momentum, its learning rates.

Bands are chosen for the noise that ends up in the weights, and that depends on how the optimiser
adds up what it is given. Nothing here is about privacy: every choice is certified alike.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

from winsor.core.contract import ConfigurationError
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import Sampler
from winsor.planning.bands import Banded


def cyclic(
    sampling: str | Sampler | None, n: int, batch_size: float, noise: Banded
) -> str | Sampler:
    """Draw cyclically for ``noise``, in as many groups as it has bands.

    One band is ordinary noise, and then every way of drawing will do.
    """
    assert noise.bands is not None
    if noise.bands == 1 and sampling != "cyclic":
        return sampling or "poisson"
    if sampling is None or sampling == "cyclic":
        return CyclicPoisson.of_batch_size(n, batch_size, noise.bands)
    if isinstance(sampling, str):
        raise ConfigurationError(
            f'sampling must be "cyclic" with noise of {noise.bands} bands: a row must stay away '
            f"for {noise.bands} steps after each visit. Got {sampling!r} instead. Leave it out, or "
            'use mechanism="gaussian".'
        )
    return sampling


def momentum(optimizer: torch.optim.Optimizer) -> float:
    """Return the momentum of SGD, or the first beta of Adam and its like."""
    group: dict[str, Any] = optimizer.param_groups[0]
    betas = group.get("betas")
    value = float(betas[0] if betas else group.get("momentum", 0.0))
    return value if 0 <= value < 1 else 0.0


def learning_rates(
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    steps: int,
) -> tuple[float, ...] | None:
    """Find the rate of every step, by playing a copy of the scheduler; None if it is constant."""
    if scheduler is None:
        return None
    scheduler = _playable(scheduler)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the copy steps without its optimiser
        for _ in range(steps):
            rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
            try:
                scheduler.step()
            except TypeError:  # one that waits for a measured value cannot be foreseen
                return None
    return tuple(rates) if len(set(rates)) > 1 else None


def _playable(
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a copy of a scheduler, with one number in place of the model's parameters."""
    stand_in = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0)
    stand_in.param_groups = [
        {name: [] if name == "params" else copy.copy(value) for name, value in group.items()}
        for group in scheduler.optimizer.param_groups
    ]
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
