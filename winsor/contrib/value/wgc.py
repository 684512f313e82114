"""The weak growth condition: gradients bounded by function values.

    |grad f_i(w)|^2 <= beta_1 (f_i(w) - inf f_i) + beta_2    for all w

Fang et al. 2023, Definition 3.1. These are the constants (beta_1, beta_2) of the models for which
the paper calls them easy, and appendix D's for ReLU networks. All are per record: beta_1 depends on
|x_i|, so it may scale record i and nothing else. A beta_1 from the largest |x| of the dataset is a
private quantity that moves every record's weight.

``Value(growth=...)`` clips by these conditions (`growth.py` says when that is certified); without
``growth`` it uses the tighter bounds of `winsor/rules/value_bounds`.

References
----------
Fang, Li, Fan, Li: Improved convergence of differential private SGD with gradient clipping, ICLR
2023, sections 3, 5 and 6.1, appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.contrib.value.bounds.kind import RowBlocks, refuse
from winsor.contrib.value.bounds.network import linear_chain, summed_squares
from winsor.contrib.value.bounds.spectral import OUTWARDS, OperatorNorms
from winsor.contrib.value.growth import Growth, GrowthProof
from winsor.contrib.value.view import ForwardView
from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError
from winsor.gradients.arithmetic import squares
from winsor.gradients.view import View

LOGISTIC = 0.4074
"""sup_f (1 - exp(-f))^2 / f, reached near f = 1.2564: the smallest beta_1 of log(1 + exp(-m)).
Smoothness alone, Lemma 3.2, gives 1/2."""


@dataclass(frozen=True)
class WeakGrowth(Growth):
    """(beta_1, beta_2) of one function, or of one function per row as tensors.

    With a ``proof`` it can be clipped by: Algorithm 3 with its declared inputs. Without one it is
    a formula only.
    """

    beta_1: float | Tensor
    beta_2: float | Tensor = 0.0
    proof: GrowthProof | None = None

    def bound(self, losses: Tensor, lower: float = 0.0) -> Tensor:
        """Return sqrt(beta_1 (f - lower) + beta_2) >= |grad f|, for ``lower`` <= inf f."""
        return (self.beta_1 * (losses - lower).clamp_min(0.0) + self.beta_2).sqrt()

    @property
    def statement(self) -> str:
        """The argument of the proof that came with the condition."""
        return self._proof().statement

    def squares(self, view: ForwardView, norms: OperatorNorms, lower: float) -> Tensor:
        """Return the larger of the declared bound and the proven one, row by row."""
        proven = self._proof().squares(view, norms)
        return torch.maximum(self.bound(view.losses().double(), lower).square(), proven)

    def bounds_of_rows(self, view: View, lower: float) -> Tensor:
        """Return the larger of the declared bound and the norm, which needs no other proof."""
        norms = view.norms()
        return torch.maximum(self.bound(view.losses(), lower).to(norms.dtype), norms)

    def _proof(self) -> GrowthProof:
        if self.proof is None:
            raise ConfigurationError(
                f"growth must come with a proof to clip by. Got WeakGrowth({self.beta_1!r}, "
                f"{self.beta_2!r}) without one instead: a record that breaks the declaration would "
                "not be bounded. Give proof=LayerBounds() (`winsor.contrib.value.growth`), use "
                "NetworkGrowth(), or run it as published, on public data, with "
                "`winsor_papers.value.algorithm_3`."
            )
        return self.proof


@dataclass(frozen=True)
class NetworkGrowth(Growth):
    """Appendix D's condition from the layers themselves: one of ours, proven for every row.

        beta_1 = c |x_i|^2 sum_l prod_{j != l} |W_j|^2,   beta_2 = 0

    for a chain of linear layers without biases, activations of slope at most 1 between them. c is
    ``constant``: a bound on |d loss / d logits|^2 over f_i - f_lb. The paper has 8; 0.8148 (twice
    ``LOGISTIC``) is the best for cross-entropy, 2 is exact for halved squared errors.

    Whatever c and f_lb are, a row whose loss grows faster than declared is bounded by its exact
    loss gradient instead, so a wrong constant costs nothing but a tighter one.
    """

    constant: float = 8.0

    def __post_init__(self) -> None:
        positive("constant", self.constant)

    @property
    def statement(self) -> str:
        """Appendix D's inequality, with the constant."""
        return (
            f"|grad f_i|^2 <= max({self.constant:g} (f_i - f_lb), |d loss/d logits|^2) |x_i|^2 "
            "sum_l prod_{j != l} |W_j|^2 for layers without biases (appendix D)"
        )

    def squares(self, view: ForwardView, norms: OperatorNorms, lower: float) -> Tensor:
        """Return (n,) squared bounds from a recorded pass of a chain of linear layers."""
        rows = RowBlocks(view.size, norms)
        layers = linear_chain(view, rows)
        for layer in layers:
            if layer.bias is not None:
                refuse(
                    layer.step, "has a bias, for which appendix D is no bound (leave growth out)"
                )
        with torch.no_grad():
            sizes = [norms.matrix(layer.name, layer.weight) for layer in layers]
            x = layers[0].input()
            summed_squares(view, norms)
            (seed,) = view.seeds
            return self.squares_of_chain(x, sizes, view.losses(), rows.squares(seed), lower)

    def squares_of_chain(
        self, x: Tensor, sizes: Sequence[float], losses: Tensor, seeds: Tensor, lower: float = 0.0
    ) -> Tensor:
        """Return them from the rows, the layers' norms, losses and |d loss / d logits|^2."""
        declared = relu_network(x, sizes, self.constant).bound(losses.double(), lower)
        exact = seeds.double() * _squares(x, False) * _sum_of_products(sizes)
        return torch.maximum(declared.square(), exact) * OUTWARDS


def smooth(lipschitz: float | Tensor) -> WeakGrowth:
    """Return (2L, 0): an L-smooth function that is bounded below satisfies it (Lemma 3.2)."""
    return WeakGrowth(2 * lipschitz)


def linear_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """Return the condition of f(w) = (x.w - y)^2 / 2: |grad f|^2 = 2 |x|^2 f, with equality."""
    return WeakGrowth(2 * _squares(x, intercept))


def logistic_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """Return the condition of f(w) = log(1 + exp(-y x.w)), y = -1 or 1, for each row of ``x``.

    |grad f| = |x| sigmoid(-m) = |x| (1 - exp(-f)), so beta_1 = 0.4074 |x|^2 is the best constant.
    """
    return WeakGrowth(LOGISTIC * _squares(x, intercept))


def softmax_regression(x: Tensor, intercept: bool = False) -> WeakGrowth:
    """Return the condition of a linear model's cross-entropy, for each row of ``x``.

    |grad f| = |x| |p - e_y| <= |x| sqrt(2) (1 - exp(-f)), so beta_1 is twice the logistic one.
    """
    return WeakGrowth(2 * LOGISTIC * _squares(x, intercept))


def relu_network(x: Tensor, spectral_norms: Sequence[float], constant: float = 8.0) -> WeakGrowth:
    """Return appendix D's beta_1 = 8 |x|^2 sum_i prod_{j != i} |W_j|^2, without biases.

    The weights are part of beta_1, so this holds at the current w only. With biases it is no
    bound: at x = 0 it is zero and the gradient is not.
    """
    return WeakGrowth(constant * _squares(x, False) * _sum_of_products(spectral_norms))


def relu_network_bound(x: Tensor, spectral_norms: Sequence[float], losses: Tensor) -> Tensor:
    """Return appendix D's last line: 2 |x| sqrt(sum_i prod_{j != i} |W_j|^2 min(1, 2 f))."""
    squares = _squares(x, False) * _sum_of_products(spectral_norms)
    return 2 * (squares * (2 * losses).clamp(0.0, 1.0)).sqrt()


def clipping_frequency(norms: Iterable[Tensor], threshold: float) -> float:
    """Return the share of gradients that ``threshold`` shortens, as in the paper's figure 1.

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
    return squares(x) + float(intercept)


def _sum_of_products(norms: Sequence[float]) -> float:
    if not norms:
        raise ConfigurationError("spectral_norms must name at least one layer. Got none.")
    return sum(math.prod(s * s for j, s in enumerate(norms) if j != i) for i in range(len(norms)))
