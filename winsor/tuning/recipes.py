"""The run to start with when nothing is known and nothing may be tuned.

    d = sum(p.numel() for p in model.parameters())
    recipe = winsor.tuning.recipe(n=len(data), d=d, epsilon=3.0, delta=1e-6)
    private = recipe.make_private(model, data)
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))

1. The threshold C_t follows a private quantile of the norms (`winsor.rules.Quantile`), starting
   low. Which quantile follows from how loud the noise will be (`quantile_for`): nearly all norms
   below C_t for small models, 70 % of them for large ones.
2. The released gradient is divided by C_t, which is public: the learning rate is then the length
   of a step, means the same for every model and loss, and does not move with the threshold.
3. Batches of 2 sqrt(n) rows, 400 steps, momentum 0.9, and a learning rate that falls linearly to
   zero, so that late noise is averaged away. Whoever can afford more passes over the data says so
   (``epochs``): the 400 steps stay and the batches grow. For a given number of passes, noise per
   progress falls as batches grow until the multiplier is well above 1, and then hardly changes
   (it is that of the full batch), while fewer steps are harder on the optimiser. Steps that grow
   with the root of the batch were tried, and lost two points on features of EfficientNet.

Inputs should be of order one, as for any optimiser. The constants were chosen once, on three public
datasets (docs/which-rule.md has the figures), and not per dataset. A fit of public norms
(`winsor.tails.fit`) improves the start of the threshold.

Guarantee
---------
That of the rule: dividing by a public number is post-processing of what was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError
from winsor.rules.quantile import Quantile, QuantileTracker, UnitLength
from winsor.tails.fitting import TailFit
from winsor.tails.guide import STEPS, TARGETS, Setting, private_quantile

if TYPE_CHECKING:
    from winsor.training.loop import PrivateTraining


@dataclass(frozen=True)
class Recipe:
    """Everything that `make_private` and the optimiser ask for."""

    rule: UnitLength
    epsilon: float
    delta: float
    batch_size: int
    steps: int
    learning_rate: float
    momentum: float

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """Return SGD with momentum on the model's trainable parameters."""
        trained = [p for p in model.parameters() if p.requires_grad]
        return torch.optim.SGD(trained, lr=self.learning_rate, momentum=self.momentum)

    def make_private(
        self, model: nn.Module, dataset: Dataset[Any], **options: Any
    ) -> PrivateTraining:
        """Start a run of this recipe; ``options`` are those of `winsor.make_private`."""
        from winsor.training.make_private import make_private

        optimizer = self.optimizer(model)
        schedule = falling(optimizer, self.steps)
        return make_private(
            model=model,
            optimizer=optimizer,
            dataset=dataset,
            rule=self.rule,
            batch_size=self.batch_size,
            steps=self.steps,
            delta=self.delta,
            **{"epsilon": self.epsilon, "scheduler": schedule, **options},
        )

    def __str__(self) -> str:
        quantile = self.rule.rule
        return (
            f"threshold: private {quantile.tracker.target:.0%} quantile of the norms, starting at "
            f"{quantile.max_grad_norm:.3g}; batches of {self.batch_size}, {self.steps} steps, "
            f"learning rate {self.learning_rate:g} (length of a step, falling to zero), momentum "
            f"{self.momentum:g}"
        )


def falling(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule that falls linearly from 1 to 1/steps at the last step."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: max(1, steps - t) / steps)


EXCESS = 1 / 30
"""What clipping takes from the mean norm, in thresholds. Chosen so that small models (a9a, claims)
keep the target that the sum gives, after looks at training rows of features of MNIST, where it
hardly matters, and of EfficientNet, where it is worth a point (experiments/2026-11-records)."""


def quantile_for(noise: float, most: float) -> float:
    """Return the share of norms to keep below the threshold, for noise of this length over it.

    `guide.private_quantile` adds the length of the noise to a bound of the bias. But noise has no
    direction in common with the bias, so their squares add: b(C)^2 + (noise C)^2, with
    b(C) = E max(|g| - C, 0) and b' = -P(|g| > C), is least where P(|g| > C) = noise^2 C / b. Where
    noise is louder than b/C, here `EXCESS`, that is more than the sum says: large models clip more.

    >>> [round(quantile_for(noise, 1 - noise), 2) for noise in (0.02, 0.05, 0.09, 0.2)]
    [0.98, 0.93, 0.76, 0.7]
    """
    return min(most, max(TARGETS[0], 1 - noise**2 / EXCESS))


def recipe(
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    *,
    fitted: TailFit | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
) -> Recipe:
    """Return the default run for ``n`` private rows; nothing in it depends on their values.

    Parameters
    ----------
    n, d, epsilon, delta : public facts: rows, trainable parameters, budget.
    fitted : tail of PUBLIC or synthetic norms, for a better start of the threshold.
    batch_size, steps : fixed by something else, such as time or memory.
    epochs : passes over the data that can be afforded, instead of ``batch_size``.

    Examples
    --------
    >>> plan = recipe(n=60_000, d=7_850, epsilon=3.0, delta=1e-6)
    >>> plan.batch_size, plan.steps
    (490, 400)
    >>> large = recipe(n=60_000, d=7_850, epsilon=3.0, delta=1e-6, epochs=40)
    >>> large.batch_size, large.steps
    (6000, 400)
    """
    whole("n", n, least=2)
    whole("d", d)
    if epochs is not None:
        if batch_size is not None:
            raise ConfigurationError(
                f"give batch_size or epochs. Got {batch_size!r} and {epochs!r} instead."
            )
        batch_size = max(1, min(n, round(positive("epochs", epochs) * n / (steps or STEPS))))
    setting = Setting(n=n, d=d, epsilon=epsilon, delta=delta, steps=steps, batch_size=batch_size)
    advice = private_quantile(fitted, setting).values
    noise = advice["noise_multiplier"] * math.sqrt(d) / advice["batch_size"]
    target = quantile_for(noise, advice["target"])
    tracker = QuantileTracker(target, advice["rate"], advice["share"])
    start = advice["max_grad_norm"] if fitted is None else fitted.body_quantile(target)
    start = min(max(start, tracker.floor), tracker.ceiling)
    return Recipe(
        rule=UnitLength(Quantile(start, tracker)),
        epsilon=epsilon,
        delta=delta,
        batch_size=math.floor(advice["batch_size"]),
        steps=math.floor(advice["steps"]),
        learning_rate=advice["learning_rate"],
        momentum=advice["momentum"],
    )
