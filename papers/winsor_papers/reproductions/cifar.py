"""CIFAR-10 as a problem of a size that suits the machine: ResNets, or a small CNN on the middle.

The papers' networks (ResNet-18, ResNet-20) have batch normalisation, which mixes rows and so has no
per-sample gradient; here it is GroupNorm.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from winsor.core.contract import ConfigurationError
from winsor.models.networks import resnet_gn, two_layer_cnn
from winsor_papers.reproductions.aclip.resnet18 import resnet18
from winsor_papers.reproductions.training_runs import Problem

DELTA = 1e-5
CROP = 28
MODELS = {
    "cnn": (lambda: two_layer_cnn(10, channels=3), "a two-layer CNN on 28 x 28 crops"),
    "resnet20": (lambda: resnet_gn(20), "ResNet-20"),
    "resnet18": (resnet18, "ResNet-18"),
}


@dataclass(frozen=True)
class CifarSize:
    """How much to train on, for how long, and which model of ``MODELS``."""

    rows: int | None
    batch_size: int
    epochs: float
    model: str

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigurationError(
                f"model must be one of {', '.join(MODELS)}. Got {self.model!r} instead."
            )

    def describe(self, problem: Problem) -> str:
        """For a note."""
        return (
            f"{len(problem.train[1]):,} rows, {problem.steps} steps of {problem.batch_size}, "
            f"{MODELS[self.model][1]} with GroupNorm"
        )


def problem(
    size: CifarSize, train_rows: tuple[Tensor, Tensor], test_rows: tuple[Tensor, Tensor]
) -> Problem:
    """Images in [0, 1], standardised by constants; the small network sees their middle."""
    y, y_test = train_rows[1][: size.rows], test_rows[1]
    prepared = []
    for x in (train_rows[0][: size.rows], test_rows[0]):
        edge = (x.shape[-1] - CROP) // 2 if size.model == "cnn" else 0
        middle = x[..., edge : x.shape[-2] - edge, edge : x.shape[-1] - edge]
        prepared.append(((middle - 0.5) / 0.25).contiguous())
    steps = round(size.epochs * len(y) / size.batch_size)
    return Problem(
        "cifar10",
        (prepared[0], y),
        (prepared[1], y_test),
        MODELS[size.model][0],
        size.batch_size,
        steps,
        DELTA,
    )
