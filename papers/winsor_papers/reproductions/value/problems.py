"""What paper 3 trains: linear models and perceptrons with 128 hidden units, on MNIST and CIFAR-10.

Models have no biases, as Appendix D asks. MNIST pixels are standardised by the usual public
constants. The paper's CIFAR-10 features come from a VGG16 network trained on ImageNet, which is not
at hand; scattering coefficients, a fixed transform without training, stand in for them, averaged to
2 x 2 positions per channel and divided by the length of the row (972 numbers of length 1).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.features import scattering_features
from winsor.models.networks import mlp
from winsor_papers.reproductions.cells import like_rows, planning
from winsor_papers.reproductions.training_runs import Problem, cifar10, images

BATCH, NOISE, DELTA, HIDDEN = 128, 1.0, 1e-5, 128
"""Section 6, for every experiment."""
MODELS = ("linear", "2-layer NN")
WIDTH = 972
"""Of a row of features of CIFAR-10."""


@dataclass(frozen=True, eq=False)
class ValueTask:
    """A model on a data set, with the thresholds and rates that the paper tries there."""

    data: str
    model: str
    problem: Problem
    thresholds: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def steps_per_epoch(self) -> int:
        return round(len(self.problem.train[1]) / self.problem.batch_size)

    @property
    def epochs(self) -> int:
        return max(1, self.problem.steps // self.steps_per_epoch)

    def for_epochs(self, epochs: int) -> ValueTask:
        problem = replace(self.problem, steps=epochs * self.steps_per_epoch)
        return replace(self, problem=problem)


def make(
    data: str,
    rows: tuple[tuple[Tensor, Tensor], ...],
    thresholds: tuple[float, ...],
    rates: tuple[float, ...],
) -> list[ValueTask]:
    """Both models on the same flat rows, for one epoch."""
    train, test = rows
    width = train[0].shape[1]
    tasks = []
    for model, hidden in zip(MODELS, ([], [HIDDEN]), strict=True):
        network = functools.partial(mlp, [width, *hidden, 10], bias=False)
        problem = Problem(f"{data}, {model}", train, test, network, BATCH, 1, DELTA)
        tasks.append(ValueTask(data, model, problem, thresholds, rates).for_epochs(1))
    return tasks


def mnist(folder: str | os.PathLike[str], rows: int | None = None) -> list[ValueTask]:
    """The first ``rows`` of MNIST, standardised; thresholds and rates of section 6."""
    (x, y), (x_test, y_test) = images(folder, "mnist.npz")
    x, x_test = (((part - 0.1307) / 0.3081).flatten(1) for part in (x[:rows], x_test))
    data = ((x, y[:rows]), (x_test, y_test))
    return make("MNIST", data, (1.0, 5.0, 20.0, 40.0), (2e-3, 5e-3, 1e-2))


def cifar(folder: str | os.PathLike[str], cache: str | os.PathLike[str]) -> list[ValueTask]:
    """Scattering features of CIFAR-10 (as many rows as the file has), kept in ``cache``."""
    parts = cifar10(folder)
    data = tuple(
        (_cached(x, Path(cache) / f"cifar-scattering-{name}-{len(x)}.npy"), y)
        for name, (x, y) in zip(("train", "test"), parts, strict=True)
    )
    return make("CIFAR-10", data, (0.1, 0.2, 0.4, 1.0), (0.1,))


def colour_features(x: Tensor) -> Tensor:
    """(n, 3, h, w) -> (n, 972): scattering per colour, averaged to 2 x 2, rows of length 1."""
    parts = []
    for part in x.split(200):
        coefficients = scattering_features(part.flatten(0, 1))
        parts.append(F.adaptive_avg_pool2d(coefficients, 2).reshape(len(part), -1))
    return F.normalize(torch.cat(parts))


def _cached(x: Tensor, path: Path) -> Tensor:
    if planning():
        return like_rows(len(x), WIDTH)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial := path.with_suffix(".partial"), "wb") as file:
            np.save(file, colour_features(x).numpy())
        partial.rename(path)
    return torch.from_numpy(np.load(path))
