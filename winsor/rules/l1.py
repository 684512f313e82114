"""L1 clipping: no record moves the sum by more than C in L1, hence Laplace noise is enough.

    v_i = min(1, C / |g_i|_1) g_i,     then each coordinate of v_i is cut to [-C/p, C/p]

Xiao et al. 2022 (ModelMix), Theorem 4.2, second half; the cut is their Algorithm 2 in L1.

When to use
-----------
With ``mechanism="laplace"`` or ``ModelMix(..., noise="laplace")``, for models with few parameters:
one release can then be private without any delta. The L1 norm of a dense gradient in d dimensions
is about sqrt(d) times its L2 norm, so beyond some tens of coordinates Gaussian noise with L2
clipping is far better.

Cost
----
L1 norms of linear layers come from the factors of the gradient, and only rows that are cut are
formed, as for `LInf`.

Guarantee
---------
Both cuts depend on row i only and neither lengthens a vector: the L1 shift stays C (2C for a
replaced record), and every coordinate of a record's contribution is at most C/p. Hence the L2 shift
is at most C/sqrt(p): |v|_2^2 <= max_j |v_j| |v|_1. Gaussian noise uses that.

References
----------
Xiao, Xiang, Wang, Devadas: ModelMix, 2022, Theorem 4.2 and Remark C.1. The paper has no coordinate
cut for the Laplace case; p = 1 is its algorithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.checks import positive, whole
from winsor.core.contract import Bounded, ConfigurationError, Sensitivity, Tree
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.view import Need, View
from winsor.rules.rule import ROUNDING, RowwiseRule, State, Sums, clip_weights


@dataclass(frozen=True)
class L1(RowwiseRule):
    """Clip rows to ``max_grad_norm`` in L1, then coordinates to ``max_grad_norm / p``."""

    max_grad_norm: float
    p: int = 1

    needs = Need.ROWS
    proof = "both cuts depend on row i only and shorten it; |v_i|_1 <= C, |v_i|_2 <= C/sqrt(p)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        whole("p", self.p)

    @property
    def coordinate_bound(self) -> float:
        return self.max_grad_norm / self.p

    def init(self, parameters: Tree, expected_size: float) -> State:
        coordinates = sum(tensor.numel() for tensor in parameters.values())
        if self.p > coordinates:
            raise ConfigurationError(
                f"p must be at most the number of trained coordinates, {coordinates}. Got "
                f"{self.p} instead. A larger p only shortens every gradient: lower max_grad_norm."
            )
        return {}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """As a function of the L1 norm; the coordinate cut depends on more."""
        return clip_weights(norms, self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        """In L2."""
        return self.max_grad_norm / math.sqrt(self.p)

    def contributions(self, view: View, state: State) -> Sums:
        if isinstance(view, RecordedView):
            found = view.lengths(1)
            norms = sum(found.values(), start=view.norms().double() * 0)
            weights = clip_weights(norms, self.max_grad_norm).to(view.norms().dtype)
            return {"grad": view.cut_sum(weights, self.coordinate_bound / (1 + ROUNDING))}
        return {"grad": view.map_sum(self._clip_rows)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        l2 = self.clipped_norm(state)
        sensitivity = Sensitivity.per_sample(l2, self.proof, l1=self.max_grad_norm)
        bound = None if self.p == 1 else self.coordinate_bound
        return {"grad": Bounded(sums["grad"], sensitivity, coordinate_bound=bound)}

    def _clip_rows(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        norms = torch.stack(
            [
                torch.linalg.vector_norm(t.unsqueeze(-1).flatten(1), 1, dim=1, dtype=torch.float64)
                for t in rows.values()
            ]
        ).sum(dim=0)
        weights = clip_weights(norms, self.max_grad_norm)
        bound = self.coordinate_bound / (1 + ROUNDING)
        return {
            name: (t * weights.to(t.dtype).view(-1, *[1] * (t.dim() - 1))).clamp(-bound, bound)
            for name, t in rows.items()
        }


EXAMPLES = (L1(1.0), L1(0.5, p=4), L1(20.0, p=2))
