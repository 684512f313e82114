"""Runs of paper 3 with accuracies after every epoch: private, plain, and Algorithm 3 as printed.

A run is one cell. Figure 1 and figures 2 and 3 share the runs of gradient clipping, which note how
often they clip: an exact function of the training rows, for public data only.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from winsor_reproductions.cells import Values, Wanted, cell, data_name, model_name
from winsor_reproductions.training_runs import Problem, TrainingRecipe, evaluate, train
from winsor_reproductions.value.open_runs import plain_sgd, value_clipping_as_printed
from winsor_reproductions.value.problems import NOISE, ValueTask

from winsor.grads.view import View
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule, State
from winsor.rules.wgc import clipping_frequency

EPOCHS = 10


@dataclass(frozen=True)
class Watched(Flat):
    """Gradient clipping that keeps the norms it sees: for public data only."""

    seen: list[Tensor] = field(default_factory=list, compare=False, repr=False)

    def weights(self, view: View, state: State) -> Tensor:
        self.seen.append(view.norms().clone())
        return super().weights(view, state)


@dataclass(frozen=True)
class Accuracies:
    """Per cent on the training and the test rows after every epoch; epsilon if it is private."""

    training_curve: tuple[float, ...]
    test_curve: tuple[float, ...]
    epsilon: float | None = None
    clipped_curve: tuple[float, ...] = ()
    """Per cent of gradients clipped in every epoch, where that was watched."""

    @property
    def training(self) -> float:
        return self.training_curve[-1]

    @property
    def test(self) -> float:
        return self.test_curve[-1]


class Looks:
    """Training and test accuracies of a model, whenever it is looked at."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.training: list[float] = []
        self.test: list[float] = []

    def __call__(self, model: nn.Module) -> None:
        self.training.append(evaluate(model, *self._problem.train)[0])
        self.test.append(evaluate(model, *self._problem.test)[0])


Runner = Callable[[float, int], Accuracies]
"""(step size, seed) -> a run."""


def private_runner(task: ValueTask, rule: Rule) -> Runner:
    """Certified runs with ``rule``."""
    watch = {
        "training": _accuracy_on(task.problem.train),
        "test": _accuracy_on(task.problem.test),
    }

    def run(lr: float, seed: int) -> Accuracies:
        recipe = TrainingRecipe(rule, lr, noise_multiplier=NOISE)
        outcome = train(task.problem, recipe, seed, looks=task.epochs, watch=watch)
        return Accuracies(outcome.watched["training"], outcome.watched["test"], outcome.epsilon)

    return run


def watched_runner(task: ValueTask, threshold: float) -> Runner:
    """Certified runs with gradient clipping, and how often it clips."""

    def run(lr: float, seed: int) -> Accuracies:
        rule = Watched(threshold)

        def clipped(model: nn.Module) -> float:
            """Since the last look; make_private tries the rule on no rows first."""
            norms = [batch for batch in rule.seen if batch.numel()]
            rule.seen.clear()
            return 100 * clipping_frequency(norms, threshold)

        watch = {
            "clipped": clipped,
            "training": _accuracy_on(task.problem.train),
            "test": _accuracy_on(task.problem.test),
        }
        recipe = TrainingRecipe(rule, lr, noise_multiplier=NOISE)
        outcome = train(task.problem, recipe, seed, looks=task.epochs, watch=watch)
        seen = outcome.watched
        return Accuracies(seen["training"], seen["test"], outcome.epsilon, seen["clipped"])

    return run


def _accuracy_on(rows: tuple[Tensor, Tensor]) -> Callable[[nn.Module], float]:
    return lambda model: evaluate(model, *rows)[0]


def open_runner(problem: Problem, max_grad_norm: float | None, noise: float = NOISE) -> Runner:
    """Plain SGD, or Algorithm 3 as printed with a bound; neither is private."""

    def run(lr: float, seed: int) -> Accuracies:
        found = cell(_open_cell(problem, max_grad_norm, noise, lr, seed))
        return Accuracies(tuple(found["training"]), tuple(found["test"]))

    return run


def _open_cell(
    problem: Problem, max_grad_norm: float | None, noise: float, lr: float, seed: int
) -> Wanted:
    """A run without privacy, as a cell."""

    def curves(at: Problem) -> Values:
        seen = Looks(at)
        if max_grad_norm is None:
            plain_sgd(at, lr, seed, seen)
        else:
            value_clipping_as_printed(at, lr, seed, max_grad_norm, noise, seen)
        return {"training": seen.training, "test": seen.test}

    epochs = max(1, problem.steps * problem.batch_size // len(problem.train[1]))
    method = "plain SGD" if max_grad_norm is None else "value clipping as printed"
    return Wanted(
        f"{problem.name}, {method}, {problem.steps} steps of {problem.batch_size}",
        {
            "data": data_name(*problem.train, *problem.test),
            "model": model_name(problem.model),
            "clip": max_grad_norm,
            "noise": noise,
            "lr": lr,
            "seed": seed,
        },
        lambda: curves(problem),
        {"training": [50.0] * epochs, "test": [50.0] * epochs},
        problem.steps,
        lambda steps: curves(replace(problem, steps=steps)),
    )


def best(
    run: Runner, rates: tuple[float, ...], seeds: Sequence[int]
) -> tuple[float, list[Accuracies]]:
    """The rate that trained best with the first seed, and all seeds at it."""
    tried = {lr: run(lr, seeds[0]) for lr in rates}
    lr = max(tried, key=lambda rate: tried[rate].training)
    return lr, [tried[lr], *(run(lr, seed) for seed in seeds[1:])]


def mean_curve(curves: Sequence[Sequence[float]]) -> str:
    """The mean over seeds at every epoch."""
    means = (statistics.fmean(values) for values in zip(*curves, strict=True))
    return " ".join(f"{value:.4g}" for value in means)
