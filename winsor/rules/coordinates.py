"""Coordinate clipping: rows in l2 or l1, then each coordinate, so that no record moves one by much.

    LInf:  v_i = min(1, C / |g_i|) g_i,     then each coordinate is cut to [-C/sqrt(p), C/sqrt(p)]
    L1:    v_i = min(1, C / |g_i|_1) g_i,   then each coordinate is cut to [-C/p, C/p]

Xiao et al. 2022 (ModelMix), Algorithm 2, and Theorem 4.2, second half; the cut of L1 is their
Algorithm 2 in L1. Under L1 no record moves the sum by more than C in L1, hence Laplace noise is
enough.

When to use
-----------
LInf: with the ModelMix mechanism, whose event shrinks with the coordinate bound. With plain
Gaussian noise it buys nothing: the event only sees C.
L1: with ``mechanism="laplace"`` or ``ModelMix(..., noise="laplace")``, for models with few
parameters: one release can then be private without any delta. The L1 norm of a dense gradient in d
dimensions is about sqrt(d) times its L2 norm, so beyond some tens of coordinates Gaussian noise
with L2 clipping is far better.

Cost
----
Rows whose largest coordinate is within the bound are cut nowhere and are never formed; for a linear
layer that is seen from the factors of the gradient (`gradients/recorded_view.py`), and so are L1
norms.
The others are formed, a cacheful at a time. Real gradients rarely concentrate on few coordinates,
so p in the tens or hundreds cuts little. Layers applied at many places of a row (convolutions) are
formed to be seen.

Guarantee
---------
LInf: both cuts depend on row i only and neither lengthens a vector: the L2 shift stays C (2C for a
replaced record), and every coordinate of a record's contribution is at most C/sqrt(p).
L1: both cuts depend on row i only and neither lengthens a vector: the L1 shift stays C (2C for a
replaced record), and every coordinate of a record's contribution is at most C/p. Hence the L2 shift
is at most C/sqrt(p): |v|_2^2 <= max_j |v_j| |v|_1. Gaussian noise uses that.

References
----------
Xiao, Xiang, Wang, Devadas: ModelMix, 2022, Algorithm 2, Corollary 4.1, Theorem 4.2 and Remark C.1.
The paper has no coordinate cut for the Laplace case; p = 1 is its algorithm.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from winsor.core.arithmetic.slack import bound_with_slack
from winsor.core.checks import positive, whole
from winsor.core.contract import Bounded, ConfigurationError, Sensitivity, Tree
from winsor.gradients.arithmetic import lengths_of_rows
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.view import Need, View
from winsor.rules.rule import RowwiseRule, State, Sums, clip_weights


class _TwiceCut(RowwiseRule):
    """The two cuts that `LInf` and `L1` share. Subclasses give the norm and the second bound."""

    max_grad_norm: float
    p: int
    order: ClassVar[int]
    needs = Need.ROWS

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        whole("p", self.p)

    @property
    @abstractmethod
    def coordinate_bound(self) -> float:
        """The bound on each coordinate of a row."""

    @abstractmethod
    def weights(self, view: RecordedView) -> Tensor:
        """Return (n,) weights of the first cut."""

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return an empty state; refuse a cut that would only shorten every row."""
        coordinates = sum(tensor.numel() for tensor in parameters.values())
        if self.p > coordinates:
            raise ConfigurationError(
                f"p must be at most the number of trained coordinates, {coordinates}. Got "
                f"{self.p} instead. A larger p only shortens every gradient: lower max_grad_norm."
            )
        return {}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return the weights of the first cut; the coordinate cut depends on more than the norm."""
        return clip_weights(norms, self.max_grad_norm)

    def contributions(self, view: View, state: State) -> Sums:
        """Return the sum of the rows after both cuts."""
        if isinstance(view, RecordedView):
            bound = bound_with_slack(self.coordinate_bound)
            return {"grad": view.cut_sum(self.weights(view), bound)}
        return {"grad": view.map_sum(self._clip_rows)}

    def _clip_rows(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        lengths = torch.stack([lengths_of_rows(t, self.order) for t in rows.values()])
        norms = lengths.sum(dim=0) if self.order == 1 else lengths.square().sum(dim=0).sqrt()
        weights = clip_weights(norms, self.max_grad_norm)
        bound = bound_with_slack(self.coordinate_bound)
        return {
            name: (t * weights.view(-1, *[1] * (t.dim() - 1))).clamp(-bound, bound)
            for name, t in rows.items()
        }


@dataclass(frozen=True)
class LInf(_TwiceCut):
    """Clip rows to ``max_grad_norm`` in L2, then coordinates to ``max_grad_norm / sqrt(p)``."""

    max_grad_norm: float
    p: int = 25

    order = 2
    proof = "both cuts depend on row i only and shorten it; |v_i| <= C (ModelMix, Alg. 2)"

    @property
    def coordinate_bound(self) -> float:
        """C / sqrt(p)."""
        return self.max_grad_norm / math.sqrt(self.p)

    def weights(self, view: RecordedView) -> Tensor:
        """Return min(1, C/|g|) for each row."""
        return clip_weights(view.norms(), self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        """Return the bound on |v_i|."""
        return self.max_grad_norm

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum with its L2 bound and the bound on single coordinates."""
        parts = super().bounded(sums, state)
        return {"grad": replace(parts["grad"], coordinate_bound=self.coordinate_bound)}


@dataclass(frozen=True)
class L1(_TwiceCut):
    """Clip rows to ``max_grad_norm`` in L1, then coordinates to ``max_grad_norm / p``."""

    max_grad_norm: float
    p: int = 1

    order = 1
    proof = "both cuts depend on row i only and shorten it; |v_i|_1 <= C, |v_i|_2 <= C/sqrt(p)"

    @property
    def coordinate_bound(self) -> float:
        """C / p."""
        return self.max_grad_norm / self.p

    def weights(self, view: RecordedView) -> Tensor:
        """Return min(1, C/|g|_1) for each row."""
        found = view.lengths(1)
        norms = sum(found.values(), start=torch.zeros_like(view.norms()))
        return clip_weights(norms, self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        """Return the bound on |v_i| in L2."""
        return self.max_grad_norm / math.sqrt(self.p)

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        """Return the sum with its bounds in L2, in L1 and on single coordinates."""
        l2 = self.clipped_norm(state)
        sensitivity = Sensitivity.per_sample(l2, self.proof, l1=self.max_grad_norm)
        bound = None if self.p == 1 else self.coordinate_bound
        return {"grad": Bounded(sums["grad"], sensitivity, coordinate_bound=bound)}


EXAMPLES = (L1(1.0), L1(0.5, p=4), L1(20.0, p=2), LInf(1.0, 4), LInf(0.5, 1), LInf(20.0, 8))
