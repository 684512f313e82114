"""Algorithms 1 and 3 of paper 3 as printed, with declared inputs, for public data.

    g_i = grad f_i(w) / max(1, G / C),      w <- w - (eta/B) (sum_{i in batch} g_i + xi)
    xi ~ N(0, C^2 sigma^2 I)

    G = |grad f_i(w)|                              Algorithm 1 (gradient clipping), line 5
    G = sqrt(beta_1 (f(w) - f_lb) + beta_2)        Algorithm 3, line 4: one number for all rows
    G = sqrt(beta_1 (f_i(w) - f_lb) + beta_2)      Algorithm 3 as section 5's text reads it

(beta_1, beta_2, f_lb) are taken on trust, which is why nothing here is certified: what is claimed
is a `PublishedClaim`. The certified forms are `winsor.rules.Flat` and ``winsor.rules.Value`` with a
growth condition that comes with its proof.

The noise may be injected, to compare with another implementation line by line.

References
----------
Fang, Li, Fan, Li: Improved convergence of differential private SGD with gradient clipping, ICLR
2023, Algorithms 1 and 3, Corollary 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.contrib.value.wgc import WeakGrowth
from winsor.core.checks import all_positive, at_least, choice, whole
from winsor.core.contract import ConfigurationError

Losses = Callable[[Tensor], Tensor]
"""w -> (n,) losses f_i(w) of all rows, differentiable."""
READINGS = ("f(w)", "f_i", "norm")


@dataclass(frozen=True)
class PrintedRun:
    """The inputs of line 1. ``reading`` is "f(w)" (Algorithm 3 as printed), "f_i" (its text) or
    "norm" (Algorithm 1, which needs no growth condition)."""

    steps: int
    max_grad_norm: float
    noise_multiplier: float
    batch_size: float
    lr: float
    growth: WeakGrowth | None = None
    lower: float = 0.0
    reading: str = "f(w)"

    def __post_init__(self) -> None:
        whole("steps", self.steps)
        all_positive(max_grad_norm=self.max_grad_norm, batch_size=self.batch_size, lr=self.lr)
        at_least("noise_multiplier", self.noise_multiplier, 0)
        choice("reading", self.reading, READINGS)
        if (self.growth is None) != (self.reading == "norm"):
            raise ConfigurationError(
                "growth must be given for Algorithm 3 and left out for Algorithm 1 "
                f'(reading="norm"). Got growth={self.growth!r} with {self.reading!r} instead.'
            )

    @property
    def noise_std(self) -> float:
        """C sigma, the deviation of each coordinate of xi."""
        return self.max_grad_norm * self.noise_multiplier

    def iterates(
        self,
        start: Tensor,
        losses: Losses,
        *,
        generator: torch.Generator | None = None,
        batches: Sequence[Tensor] | None = None,
        noise: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """(T + 1, d) iterates w_0 .. w_T. Batches are Poisson, unless given as row numbers; noise
        of deviation ``noise_std`` is drawn, unless given. Line 8 returns one of them at random."""
        w = start.detach().clone()
        seen = [w]
        for t in range(self.steps):
            w = w.clone().requires_grad_()
            values = losses(w)
            rows = _drawn(self.batch_size / len(values), len(values), generator, batches, t)
            total = self._clipped_sum(values, rows, w)
            if noise is None:
                total += self.noise_std * torch.randn(w.shape, generator=generator, dtype=w.dtype)
            else:
                total += noise[t]
            w = w.detach() - self.lr / self.batch_size * total
            seen.append(w)
        return torch.stack(seen)

    def _clipped_sum(self, values: Tensor, rows: Tensor, w: Tensor) -> Tensor:
        """The sum over the batch of lines 4 and 5."""
        if not len(rows):
            return torch.zeros_like(w)
        each = [torch.autograd.grad(values[i], w, retain_graph=True)[0] for i in rows.tolist()]
        gradients, values = torch.stack(each), values.detach()
        if self.growth is None:
            sizes = gradients.norm(dim=1)
        elif self.reading == "f(w)":
            sizes = self.growth.bound(values.mean(), self.lower).expand(len(rows))
        else:
            sizes = self.growth.bound(values[rows], self.lower)
        return (1 / (sizes / self.max_grad_norm).clamp_min(1.0)) @ gradients


def _drawn(
    rate: float,
    n: int,
    generator: torch.Generator | None,
    batches: Sequence[Tensor] | None,
    step: int,
) -> Tensor:
    if batches is not None:
        return torch.as_tensor(batches[step], dtype=torch.long)
    return torch.nonzero(torch.rand(n, generator=generator) < rate)[:, 0]
