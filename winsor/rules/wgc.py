"""The weak growth condition: gradients bounded by function values.

    |grad f_i(w)|^2 <= beta_1 (f_i(w) - inf f_i) + beta_2    for all w

Fang et al. 2023, Definition 3.1. These are the constants (beta_1, beta_2) of the models for which
the paper calls them easy, and appendix D's for ReLU networks. All are per record: beta_1 depends on
|x_i|, so it may scale record i and nothing else. A beta_1 from the largest |x| of the dataset is a
private quantity that moves every record's weight.

`Value` uses the tighter bounds of `winsor/rules/value_bounds`; these functions are for analysis,
for closed-form models and for the paper's own experiments.

References
----------
Fang, Li, Fan, Li: Improved convergence of differential private SGD with gradient clipping, ICLR
2023, sections 3, 5 and 6.1, appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from winsor.checks import positive
from winsor.contract import ConfigurationError

LOGISTIC = 0.4074
"""sup_f (1 - exp(-f))^2 / f, reached near f = 1.2564: the smallest beta_1 of log(1 + exp(-m)).
Smoothness alone, Lemma 3.2, gives 1/2."""


@dataclass(frozen=True)
class WeakGrowth:
    """(beta_1, beta_2) of one function, or of one function per row as tensors."""

    beta_1: float | Tensor
    beta_2: float | Tensor = 0.0

    def bound(self, losses: Tensor, lower: float = 0.0) -> Tensor:
        """sqrt(beta_1 (f - lower) + beta_2) >= |grad f|, for ``lower`` <= inf f."""
        return (self.beta_1 * (losses - lower).clamp_min(0.0) + self.beta_2).sqrt()


def smooth(lipschitz: float | Tensor) -> WeakGrowth:
    """Lemma 3.2: an L-smooth function that is bounded below is (2L, 0)-WGC."""
    return WeakGrowth(2 * lipschitz)


def linear_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """f(w) = (x.w - y)^2 / 2 for each row of ``x``: |grad f|^2 = 2 |x|^2 f, with equality."""
    return WeakGrowth(2 * _squares(x, intercept))


def logistic_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """f(w) = log(1 + exp(-y x.w)), y = -1 or 1, for each row of ``x``.

    |grad f| = |x| sigmoid(-m) = |x| (1 - exp(-f)), so beta_1 = 0.4074 |x|^2 is the best constant.
    """
    return WeakGrowth(LOGISTIC * _squares(x, intercept))


def softmax_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """Cross-entropy of a linear model with any number of classes, for each row of ``x``.

    |grad f| = |x| |p - e_y| <= |x| sqrt(2) (1 - exp(-f)), so beta_1 is twice the logistic one.
    """
    return WeakGrowth(2 * LOGISTIC * _squares(x, intercept))


def relu_network(x: Tensor, spectral_norms: Sequence[float]) -> WeakGrowth:
    """Appendix D: beta_1 = 8 |x|^2 sum_i prod_{j != i} |W_j|^2, for a network without biases.

    The weights are part of beta_1, so this holds at the current w only. With biases it is no
    bound: at x = 0 it is zero and the gradient is not.
    """
    return WeakGrowth(8 * _squares(x, False) * _sum_of_products(spectral_norms))


def relu_network_bound(x: Tensor, spectral_norms: Sequence[float], losses: Tensor) -> Tensor:
    """Appendix D's last line: 2 |x| sqrt(sum_i prod_{j != i} |W_j|^2 min(1, 2 f))."""
    squares = _squares(x, False) * _sum_of_products(spectral_norms)
    return 2 * (squares * (2 * losses).clamp(0.0, 1.0)).sqrt()


def clipping_frequency(norms: Iterable[Tensor], threshold: float) -> float:
    """Share of gradients that clipping at ``threshold`` shortens, as in the paper's figure 1.

    ``norms`` are the per-sample norms (or bounds on them) of the batches of an epoch. The result
    is an exact function of private data: look at it for public or synthetic data, never release it.

    >>> import torch
    >>> clipping_frequency([torch.tensor([0.5, 2.0]), torch.tensor([3.0, 0.1])], 1.0)
    0.5
    """
    positive("threshold", threshold)
    clipped = total = 0
    for batch in norms:
        clipped += int((batch > threshold).sum())
        total += batch.numel()
    if not total:
        raise ConfigurationError("norms must hold at least one gradient norm. Got none.")
    return clipped / total


def _squares(x: Tensor, intercept: bool) -> Tensor:
    return x.reshape(len(x), -1).square().sum(1) + float(intercept)


def _sum_of_products(norms: Sequence[float]) -> float:
    if not norms:
        raise ConfigurationError("spectral_norms must name at least one layer. Got none.")
    return sum(math.prod(s * s for j, s in enumerate(norms) if j != i) for i in range(len(norms)))
