"""Figure 2 (c, d) of ModelMix: at the same noise, a larger step stays stable with mixing. And why.

    w_k = (w_{k-1} + w_{k-2})/2 + uniform - eta g(w_{k-1})
    w_k - w_{k-1} = -1/2 (w_{k-1} - w_{k-2}) + uniform - eta g(w_{k-1})

Mixing is momentum with the coefficient -1/2, plus a uniform noise. A constant gradient moves it by
eta/(1 + 1/2) per step: its effective step is 2/3 eta. On a quadratic of curvature h, with noise of
deviation s on the gradient and small eta h, the stationary variances are

    plain  eta s^2 / (2 h),        mixed  9/8 * eta s^2 / (3 h),

where 9/8 is what the uniform adds (a twelfth of the mean square gap, itself 4/3 of the noise of a
step). So mixing at eta behaves as plain SGD at 2/3 eta, with an eighth more noise. That is the
figure's effect. It holds while noise limits the step; where curvature does, mixing is the less
stable of the two: it diverges before eta h = 1, plain SGD from eta h = 2 on.

The paper's figure compares the steps 0.1 and 0.2 on ResNet-20; here a linear model, and a fourth
line, plain SGD at 2/3 of the large step.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.randomness import new_key
from winsor.rules.flat import Flat
from winsor_papers.reproductions.reproduction import Measured
from winsor_papers.reproductions.training_runs import (
    Problem,
    TrainingRecipe,
    gaussian_classes,
    over_seeds,
    plain_noise,
)


@dataclass(frozen=True)
class Figure2:
    """The comparison: all lines share noise and clipping; ``small`` is a step that suits plain SGD.

    ``tau_over_lr`` is small against the Gaussian noise, as in the paper's green line.
    """

    small: float = 1.0
    large: float = 8.0
    tau_over_lr: float = 0.001
    epsilon: float = 8.0
    max_grad_norm: float = 1.0
    seeds: tuple[int, ...] = (0, 1, 2)

    def lines(self) -> list[tuple[str, float, ModelMix | None]]:
        return [
            ("plain, small step", self.small, None),
            ("plain, large step", self.large, None),
            ("mixed, large step", self.large, ModelMix(self.tau_over_lr)),
            ("plain, 2/3 of the large step", 2 / 3 * self.large, None),
        ]


@dataclass(frozen=True)
class Figure2Row:
    """A line of the figure: test loss and accuracy at the end, means over seeds."""

    line: str
    lr: float
    tau_over_lr: float
    loss: float
    accuracy: float
    epsilon: float
    losses: Measured


def synthetic_problem() -> Problem:
    """Five Gaussian classes in 40 dimensions under a linear model."""
    training, test = gaussian_classes()
    return Problem("gaussian classes", training, test, lambda: nn.Linear(40, 5), 100, 300, 1e-4)


def figure_2(problem: Problem | None = None, setting: Figure2 | None = None) -> list[Figure2Row]:
    """The four lines on ``problem``, at the noise that gives plain DP-SGD the setting's epsilon.

    Mixing is certified at no more than the same epsilon, being post-processing.
    """
    problem, setting = problem or synthetic_problem(), setting or Figure2()
    rule = Flat(setting.max_grad_norm)
    noise = plain_noise(problem, setting.epsilon)
    rows = []
    for line, lr, mix in setting.lines():
        recipe = TrainingRecipe(rule, lr, noise_multiplier=noise, mechanism=mix)
        outcomes = over_seeds(problem, recipe, setting.seeds)
        rows.append(
            Figure2Row(
                line,
                lr,
                setting.tau_over_lr if mix is not None else 0.0,
                statistics.mean(outcome.loss for outcome in outcomes),
                statistics.mean(outcome.accuracy for outcome in outcomes),
                max(outcome.epsilon for outcome in outcomes),
                Measured.of([outcome.loss for outcome in outcomes]),
            )
        )
    return rows


# ---------------------------------------------------------------------------------- the quadratic


@dataclass(frozen=True)
class QuadraticRow:
    """Mean square of the iterates on h w^2 / 2 with unit gradient noise, late in a run."""

    lr_times_curvature: float
    plain: float
    mixed: float
    plain_at_two_thirds: float


def quadratic(
    products: Sequence[float] = (0.02, 0.1, 0.3, 0.6, 1.2), steps: int = 600, copies: int = 4000
) -> list[QuadraticRow]:
    """Plain and mixed SGD at several eta h, without widening (tau = 0), on independent copies."""
    return [
        QuadraticRow(
            product,
            _late_square(product, steps, copies, mixed=False),
            _late_square(product, steps, copies, mixed=True),
            _late_square(2 / 3 * product, steps, copies, mixed=False),
        )
        for product in products
    ]


def _late_square(lr: float, steps: int, copies: int, *, mixed: bool) -> float:
    """Mean of w^2 over copies and the second half of the run; curvature 1, noise 1."""
    generator = torch.Generator().manual_seed(7)
    weight = nn.Parameter(torch.zeros(copies))
    optimizer = torch.optim.SGD([weight], lr=lr)
    mixing = MixingUpdate({"w": weight}, optimizer, None, 1.0, ModelMix(0.0), new_key(seed=8))
    squares = []
    for step in range(steps):
        gradient = weight.detach() + torch.randn(copies, generator=generator)
        if mixed:
            mixing.move({"w": gradient}, step, std=1.0)
        else:
            weight.data.sub_(gradient, alpha=lr)
        if step >= steps // 2:
            squares.append(float(weight.detach().double().square().mean()))
    return statistics.mean(squares)
