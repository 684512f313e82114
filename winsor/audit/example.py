"""A small private training for `winsor audit run`: a perceptron on ten Gaussian clusters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from winsor.rules.flat import Flat
from winsor.training.fit import cross_entropy
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import make_private


def clusters(n: int, inputs: int = 784, classes: int = 10) -> tuple[Tensor, Tensor]:
    """Return ``n`` points around ``classes`` centres."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, inputs, generator=generator)
    labels = torch.randint(0, classes, (n,), generator=generator)
    return 0.3 * centres[labels] + torch.randn(n, inputs, generator=generator), labels


def example(epsilon: float = 8.0, steps: int = 60) -> tuple[PrivateTraining, Any]:
    """Return the run, not trained yet, and its loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    private = make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(*clusters(2_000)),
        rule=Flat(1.0),
        epsilon=epsilon,
        delta=1e-5,
        steps=steps,
        batch_size=400,
    )
    return private, cross_entropy
