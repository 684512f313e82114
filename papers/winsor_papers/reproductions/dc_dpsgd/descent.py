"""What paper 1's reproductions train: a task with the descent that goes with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winsor_papers.reproductions.training_runs import Problem

Loss = Callable[[Tensor, Tensor, float], Tensor]
"""(logits, labels, progress of the run in [0, 1)) -> one loss per row."""


def cross_entropy(logits: Tensor, labels: Tensor, progress: float) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


@dataclass(frozen=True)
class Descent:
    """Gradient descent: rate, momentum, its decay, and from where on iterates are averaged.

    ``cosine`` lets the rate fall to a twentieth; ``average_from`` is a part of the run, None for
    the last iterate. Averages of released iterates are post-processing: they cost nothing.
    """

    lr: float
    momentum: float = 0.0
    cosine: bool = False
    average_from: float | None = None

    def optimiser(
        self, trained: Sequence[nn.Parameter], steps: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        """The optimiser, and what moves its rate, if anything does."""
        optimiser = torch.optim.SGD(trained, lr=self.lr, momentum=self.momentum)
        if not self.cosine:
            return optimiser, None

        def factor(step: int) -> float:
            return 0.525 + 0.475 * math.cos(math.pi * min(step / steps, 1.0))

        return optimiser, torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


@dataclass(frozen=True, eq=False)
class DescentTask(Problem):
    """A `Problem` with the descent that goes with it and its loss."""

    descent: Descent = Descent(1.0)
    plain: Descent = Descent(0.05, momentum=0.9, cosine=True)
    """For training without privacy, where unclipped gradients want another rate."""
    loss: Loss = cross_entropy
    rates: Mapping[str, float] = field(default_factory=dict)
    """Learning rates of methods that have one of their own; the others take the descent's."""
    tried: tuple[float, ...] = ()
    """Rates that every method tries with `TUNING_SEED`, in place of ``rates``."""
    tried_for: float = 1.0
    """The length of a trial of a rate, as a part of a run; the noise is that of the whole run."""
    shortened: int | None = None
    """Steps that are taken where ``steps`` are those that the noise is for; None: all of them."""
    guessed: bool = False
    """Whether the rate is only a guess, for want of the runs that would settle it."""

    def for_method(self, name: str) -> DescentTask:
        """The task at the rate that goes with a method."""
        return self.at_rate(self.rates.get(name, self.descent.lr))

    @property
    def taken(self) -> int:
        """Steps that are really taken."""
        return self.steps if self.shortened is None else min(self.shortened, self.steps)

    def for_trial(self) -> DescentTask:
        """A shorter run, long enough to judge a rate."""
        if self.tried_for == 1:
            return self
        return replace(self, shortened=math.ceil(self.tried_for * self.steps))

    def at_rate(self, rate: float) -> DescentTask:
        return replace(self, descent=replace(self.descent, lr=rate))


def steps_of(rows: int, batch_size: int, epochs: float) -> int:
    return math.ceil(epochs * rows / batch_size)
