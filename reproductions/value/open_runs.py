"""Runs of paper 3 that are not private: plain SGD, and Algorithm 3 read as printed.

Both are plain PyTorch, on public data only: `make_private` accepts neither. The printed algorithm
divides every row by the mean loss's bound, so that no sensitivity can be stated
(`winsor/papers/value/claim.py`); its noise is there, its guarantee is not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from winsor_reproductions.training_runs import Problem

from winsor.papers.value.claim import printed_scale
from winsor.rules.value_bounds.spectral import spectral_norm
from winsor.rules.wgc import relu_network

Weights = Callable[[nn.Module, Tensor, Tensor], Tensor]
Look = Callable[[nn.Module], None]
"""Sees the model after every epoch, and at the end."""


def plain_sgd(problem: Problem, lr: float, seed: int, look: Look | None = None) -> nn.Module:
    """SGD on Poisson batches, without clipping or noise (Algorithm 2 of paper 3)."""
    return _descend(problem, lr, seed, None, 0.0, look)


def value_clipping_as_printed(
    problem: Problem,
    lr: float,
    seed: int,
    max_grad_norm: float,
    noise: float,
    look: Look | None = None,
) -> nn.Module:
    """Algorithm 3 with f(w), the mean loss of the batch, and Appendix D's beta_1 of each row."""

    def weights(model: nn.Module, x: Tensor, losses: Tensor) -> Tensor:
        growth = relu_network(x, spectral_norms(model))
        return printed_scale(losses, growth, max_grad_norm)

    return _descend(problem, lr, seed, weights, noise * max_grad_norm, look)


def spectral_norms(model: nn.Module) -> list[float]:
    """Largest singular value of every matrix: the bounds that certified runs have."""
    return [spectral_norm(parameter) for parameter in model.parameters()]


def _descend(
    problem: Problem,
    lr: float,
    seed: int,
    weights: Weights | None,
    deviation: float,
    look: Look | None = None,
) -> nn.Module:
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
        scale = 1.0 if weights is None else weights(model, x[rows], losses.detach())
        ((scale * losses).sum() / problem.batch_size).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if deviation:
                noise = torch.randn_like(parameter) * (deviation / problem.batch_size)
                parameter.grad += noise
        optimizer.step()
        if look is not None and (step % epoch == 0 or step == problem.steps):
            look(model)
    return model
