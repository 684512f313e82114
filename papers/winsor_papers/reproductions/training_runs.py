"""One private training run of a reproduction: a problem, a recipe, an outcome.

Problems are classifications held in memory. Their tuning constants are part of the recipe; nothing
is tuned here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import ConfigurationError
from winsor.core.events.registry import History, event_from_json, event_to_json
from winsor.rules.rule import Rule
from winsor.training.iterates import Ball
from winsor.training.make_private import make_private
from winsor_papers.reproductions.cells import Values, Wanted, cell, data_name, described, model_name
from winsor_papers.sampled import sampled_noise


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to train on, rows to test on, a model to start from, and the length of a run."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    model: Callable[[], nn.Module]
    batch_size: int
    steps: int
    delta: float = 1e-5
    known_as: str = ""
    """What the rows are, where their last bits differ from processor to processor: those of a
    public network's features do."""

    @property
    def data(self) -> str:
        """The rows, in the name of a cell."""
        if not self.known_as:
            return data_name(*self.train, *self.test)
        return f"{self.known_as}, labels {data_name(self.train[1], self.test[1])}"

    def for_steps(self, steps: int) -> Self:
        """The same problem, shorter or longer."""
        return replace(self, steps=steps)


@dataclass(frozen=True, eq=False)
class TrainingRecipe:
    """How to train: one of ``epsilon`` (the noise is calibrated) and ``noise_multiplier``."""

    rule: Rule
    lr: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    mechanism: ModelMix | None = None
    ball: Ball | None = None


@dataclass(frozen=True)
class Outcome:
    """Accuracy in per cent and mean loss on the test rows; the loss is infinite after divergence.

    ``trail`` are the test losses at equal distances along the run, the last one included.
    """

    accuracy: float
    loss: float
    epsilon: float
    noise_multiplier: float
    trail: tuple[float, ...]
    history: History = field(default=(), repr=False)
    """The events of the run, for those that spend on something else too."""
    watched: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """What was watched along the way, by name."""
    seconds: float = 0.0
    """Processor time."""

    def to_values(self) -> Values:
        history = [[event_to_json(event), count] for event, count in self.history]
        return {**vars(self), "history": history, "watched": dict(self.watched)}

    @classmethod
    def from_values(cls, values: Values) -> Outcome:
        history = tuple((event_from_json(event), count) for event, count in values["history"])
        watched = {name: tuple(found) for name, found in values["watched"].items()}
        given = {**values, "history": history, "watched": watched, "trail": tuple(values["trail"])}
        return cls(**given)


Watch = Mapping[str, Callable[[nn.Module], float]]
"""Numbers to note of the model at every look, by name."""


def train(
    problem: Problem, recipe: TrainingRecipe, seed: int, looks: int = 1, watch: Watch | None = None
) -> Outcome:
    """Train privately and test, ``looks`` times along the way: one cell of a table."""
    watch = watch or {}
    made = model_name(problem.model)
    rule = type(recipe.rule).__name__
    stand_in = Outcome(
        50.0, 1.0, recipe.epsilon or 1.0, recipe.noise_multiplier or 1.0, (1.0,) * looks,
        watched=dict.fromkeys(watch, (50.0,) * looks), seconds=1.0,
    )  # fmt: skip
    wanted = Wanted(
        f"{problem.name}, {rule}, {problem.steps} steps of {problem.batch_size}, looks {looks}",
        {
            "data": problem.data,
            "model": made,
            "delta": problem.delta,
            "rule": described(recipe.rule),
            "lr": recipe.lr,
            "epsilon": recipe.epsilon,
            "noise": recipe.noise_multiplier,
            "mechanism": described(recipe.mechanism),
            "ball": None if recipe.ball is None else recipe.ball.radius,
            "watched": sorted(watch),
            "seed": seed,
        },
        lambda: _train(problem, recipe, seed, looks, watch).to_values(),
        stand_in.to_values(),
        problem.steps,
        lambda steps: _train(probed(problem.for_steps(steps)), _cheap(recipe), seed, 1, {}),
        scale=problem.batch_size / probed(problem).batch_size,
    )
    return Outcome.from_values(cell(wanted))


Some = TypeVar("Some", bound=Problem)
PROBED_ROWS = 128
"""Largest batch of a probe."""


def probed(problem: Some, rows: int = PROBED_ROWS) -> Some:
    """What a probe of the cost of a step trains on: small batches, hardly any rows to test on.

    A step of a large batch costs as much as its rows, and 10,000 test images more than a step.
    """
    x, y = problem.test
    batch_size = min(problem.batch_size, rows)
    return replace(problem, test=(x[:100], y[:100]), batch_size=batch_size)


def _cheap(recipe: TrainingRecipe) -> TrainingRecipe:
    """The same steps at any noise: a probe of their cost need not calibrate."""
    noise = recipe.noise_multiplier or 1.0
    return replace(recipe, epsilon=None, noise_multiplier=noise)


def _train(
    problem: Problem, recipe: TrainingRecipe, seed: int, looks: int, watch: Watch
) -> Outcome:
    begun = time.process_time()
    torch.manual_seed(seed)
    model = problem.model()
    private = make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=recipe.lr),
        dataset=TensorDataset(*problem.train),
        rule=recipe.rule,
        batch_size=problem.batch_size,
        delta=problem.delta,
        epsilon=recipe.epsilon,
        noise_multiplier=recipe.noise_multiplier,
        steps=problem.steps,
        mechanism=recipe.mechanism,
        ball=recipe.ball,
        seed=seed,
    )
    trail, accuracy = [], 0.0
    watched: dict[str, list[float]] = {name: [] for name in watch}
    for count in _segments(problem.steps, looks):
        for x, y in private.batches(count):
            private.step(F.cross_entropy(model(x), y, reduction="none"))
        accuracy, loss = evaluate(model, *problem.test)
        trail.append(loss)
        for name, look in watch.items():
            watched[name].append(look(model))
    spent = private.spent()
    private.detach()
    return Outcome(
        accuracy,
        trail[-1],
        spent.epsilon,
        private.noise_multiplier,
        tuple(trail),
        tuple(private.ledger.history()),
        {name: tuple(found) for name, found in watched.items()},
        time.process_time() - begun,
    )


def over_seeds(problem: Problem, recipe: TrainingRecipe, seeds: Sequence[int]) -> list[Outcome]:
    """One run per seed; noise is calibrated once."""
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcomes.append(train(problem, recipe, seed))
        noise = outcomes[0].noise_multiplier
        recipe = replace(recipe, epsilon=None, noise_multiplier=noise)
    return outcomes


def plain_noise(problem: Problem, epsilon: float) -> float:
    """The noise multiplier at which DP-SGD without mixing is certified at ``epsilon``."""
    rate = problem.batch_size / len(problem.train[1])
    return sampled_noise(rate, problem.steps, epsilon, problem.delta)


def _segments(steps: int, looks: int) -> list[int]:
    ends = [round(steps * (i + 1) / looks) for i in range(looks)]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy in per cent and mean loss."""
    logits = torch.cat([model(part) for part in x.split(2000)])
    loss = float(F.cross_entropy(logits, y))
    accuracy = 100 * float((logits.argmax(1) == y).double().mean())
    return accuracy, loss if math.isfinite(loss) else math.inf


# -------------------------------------------------------------------------------------- problems


def gaussian_classes(
    n: int = 2000, dimension: int = 40, classes: int = 5, seed: int = 0
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test rows of a synthetic classification: unit Gaussians around random means."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, dimension, generator=generator) * (3 / math.sqrt(dimension))
    y = torch.randint(0, classes, (2 * n,), generator=generator)
    x = means[y] + torch.randn(2 * n, dimension, generator=generator)
    return (x[:n], y[:n]), (x[n:], y[n:])


def fashion_mnist(folder: str | os.PathLike[str]) -> tuple[tuple[Tensor, Tensor], ...]:
    """Training and test images (n, 28, 28) in [0, 1] with labels, from ``fashion_mnist.npz``."""
    return images(folder, "fashion_mnist.npz")


def images(
    folder: str | os.PathLike[str], file: str, *instead: str
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Training and test images in [0, 1] with labels, from a file of bytes.

    ``instead`` names files that are as good or better: the last one that is there is read.
    """
    names = ("x_train", "y_train", "x_test", "y_test")
    found = [path for name in (file, *instead) if (path := Path(folder) / name).is_file()]
    if not found:
        raise ConfigurationError(
            f"folder must hold {' or '.join((file, *instead))} with the arrays "
            f"{', '.join(names)}. Got {os.fspath(folder)!r} instead, which has no such file."
        )
    with np.load(found[-1], allow_pickle=False) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in names}
    return tuple(
        (arrays[f"x_{part}"].float() / 255, arrays[f"y_{part}"].long())
        for part in ("train", "test")
    )


def cifar10(folder: str | os.PathLike[str]) -> tuple[tuple[Tensor, Tensor], ...]:
    """CIFAR-10: all 50,000 and 10,000 images where ``cifar10.npz`` is there, else the subset."""
    return images(folder, "cifar10_20k_5k.npz", "cifar10.npz")
