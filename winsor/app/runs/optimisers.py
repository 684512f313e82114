"""Optimisers and learning-rate schedules by name.

All of it is post-processing of released gradients, so every choice is equally private.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from winsor.app.runs.reading import Part, bind
from winsor.core.checks import choice, fraction, positive
from winsor.core.contract import ConfigurationError
from winsor.training.optimisers import AdamCorrected

Maker = Callable[..., torch.optim.Optimizer]


def _descent(default_momentum: float) -> Maker:
    def make(
        model: nn.Module,
        *,
        lr: float,
        momentum: float = default_momentum,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            model.parameters(), lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
        )

    return make


def _adaptive(kind: type[torch.optim.Adam], default_decay: float) -> Maker:
    def make(
        model: nn.Module,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = default_decay,
    ) -> torch.optim.Optimizer:
        return kind(model.parameters(), lr, betas, eps, weight_decay)

    return make


def _corrected(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    floor: float = 1e-4,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    return AdamCorrected(model.parameters(), lr, betas, floor, weight_decay)


OPTIMIZERS: dict[str, Maker] = {
    "sgd": _descent(0.0),
    "momentum": _descent(0.9),
    "adam": _adaptive(torch.optim.Adam, 0.0),
    "adamw": _adaptive(torch.optim.AdamW, 1e-2),
    "adam_corrected": _corrected,
}


def check_optimizer(part: Part) -> None:
    """Try the settings on a model of one weight."""
    build_optimizer(part, nn.Linear(1, 1))


def build_optimizer(part: Part, model: nn.Module) -> torch.optim.Optimizer:
    make = OPTIMIZERS[choice("optimizer.name", part.name, OPTIMIZERS)]
    options = bind(make, part.options, "optimizer")
    positive("optimizer.lr", options.get("lr", 1.0))
    try:
        return make(model, **options)
    except ValueError as error:
        raise ConfigurationError(f"optimizer: {error}.") from error


# -------------------------------------------------------------------------------------- schedules

Factor = Callable[[float], float]
"""From progress in [0, 1] to the factor on the learning rate."""


def constant() -> Factor:
    return lambda progress: 1.0


def linear(*, last: float = 0.0) -> Factor:
    """Straight down to ``last`` times the first rate."""
    return lambda progress: 1 - (1 - last) * progress


def cosine(*, last: float = 0.0) -> Factor:
    """Half a cosine down to ``last`` times the first rate."""
    return lambda progress: last + (1 - last) * (1 + math.cos(math.pi * progress)) / 2


def steps(*, at: list[float], factor: float = 0.1) -> Factor:
    """Multiply by ``factor`` at each of the given fractions of the run."""
    return lambda progress: factor ** sum(progress >= moment for moment in at)


SCHEDULES: dict[str, Callable[..., Factor]] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "steps": steps,
}


def check_schedule(part: Part) -> None:
    _factor(part)


def build_schedule(part: Part, optimizer: torch.optim.Optimizer, planned: int) -> LambdaLR:
    """A scheduler over ``planned`` steps."""
    factor, warmup = _factor(part)

    def at(step: int) -> float:
        progress = min(1.0, step / planned)
        rising = min(1.0, (step + 1) / (warmup * planned)) if warmup else 1.0
        return factor(progress) * rising

    return LambdaLR(optimizer, at)


def _factor(part: Part) -> tuple[Factor, float]:
    """``warmup`` is the fraction of the run over which the rate first rises linearly."""
    make = SCHEDULES[choice("schedule.name", part.name, SCHEDULES)]
    options = dict(part.options)
    warmup = fraction("schedule.warmup", options.pop("warmup", 0.0))
    return make(**bind(make, options, "schedule")), warmup
