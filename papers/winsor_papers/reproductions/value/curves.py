"""Tuned runs of paper 3 with accuracies after every epoch: private, plain, Algorithm 3 as printed.

Figure 1 and figures 2 and 3 are of the same runs. How often a run clips is an exact function of the
training rows: for public data only.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from winsor.contrib.value.value import Value
from winsor.gradients.view import View
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule, State
from winsor_papers.reproductions.value.lockstep import AsPrinted, Run
from winsor_papers.reproductions.value.problems import NOISE, ValueTask
from winsor_papers.reproductions.value.together import Accuracies, advanced

EPOCHS = 10

PLAIN = ("SGD", 0.0)
"""The method that does not clip, among the keys of `tuned`."""
METHODS: dict[str, Callable[[float], Rule | AsPrinted]] = {
    "GC": Flat,
    "VC": lambda threshold: Value(threshold, form="value"),
    "VC as printed": AsPrinted,
}
Key = tuple[str, float]
"""A method and its threshold."""


@dataclass(frozen=True)
class Watched(Flat):
    """Gradient clipping that keeps the norms it sees: for public data only."""

    seen: list[Tensor] = field(default_factory=list, compare=False, repr=False)

    def weights(self, view: View, state: State) -> Tensor:
        self.seen.append(view.norms().clone())
        return super().weights(view, state)


@dataclass(frozen=True)
class Tuned:
    """The rate that trained best with the first seed, and the runs of all seeds at it."""

    lr: float
    runs: list[Accuracies]


def tuned(task: ValueTask, thresholds: Sequence[float], seeds: Sequence[int]) -> dict[Key, Tuned]:
    """Every method at every threshold, and plain SGD, each at its own best rate."""
    keys = [PLAIN, *((method, clip) for clip in thresholds for method in METHODS)]

    def at(rates: Sequence[float], seed: int) -> list[Accuracies]:
        runs = [_run(key, lr) for key, lr in zip(keys, rates, strict=True)]
        return advanced(task.problem, runs, seed, task.epochs)

    tried = {lr: at([lr] * len(keys), seeds[0]) for lr in task.rates}
    chosen = [
        max(task.rates, key=lambda lr: tried[lr][place].training) for place in range(len(keys))
    ]
    later = [at(chosen, seed) for seed in seeds[1:]]
    return {
        key: Tuned(lr, [tried[lr][place], *(found[place] for found in later)])
        for place, (key, lr) in enumerate(zip(keys, chosen, strict=True))
    }


def _run(key: Key, lr: float) -> Run:
    method, threshold = key
    if key == PLAIN:
        return Run(None, 0.0, lr)
    return Run(METHODS[method](threshold), NOISE, lr)


def mean_curve(curves: Sequence[Sequence[float]]) -> str:
    """The mean over seeds at every epoch."""
    means = (statistics.fmean(values) for values in zip(*curves, strict=True))
    return " ".join(f"{value:.4g}" for value in means)
