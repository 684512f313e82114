"""Plain SGD on the rows of a problem: not private, on public data only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from winsor_papers.reproductions.training_runs import Problem

Look = Callable[[nn.Module], None]
"""Sees the model after every epoch, and at the end."""


def plain_sgd(problem: Problem, lr: float, seed: int, look: Look | None = None) -> nn.Module:
    """SGD on Poisson batches, without clipping or noise (Algorithm 2 of paper 3)."""
    torch.manual_seed(seed)
    model = problem.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x, y = problem.train
    rate = problem.batch_size / len(y)
    epoch = max(1, round(1 / rate))
    for step in range(1, problem.steps + 1):
        rows = torch.nonzero(torch.rand(len(y)) < rate)[:, 0]
        optimizer.zero_grad()
        losses = F.cross_entropy(model(x[rows]), y[rows], reduction="none")
        (losses.sum() / problem.batch_size).backward()
        optimizer.step()
        if look is not None and (step % epoch == 0 or step == problem.steps):
            look(model)
    return model
