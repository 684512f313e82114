"""l2 + l-inf clipping: no record moves the sum by more than C, and none by much in one coordinate.

    v_i = min(1, C / |g_i|) g_i,     then each coordinate of v_i is cut to [-C/sqrt(p), C/sqrt(p)]

Xiao et al. 2022 (ModelMix), Algorithm 2.

When to use
-----------
With the ModelMix mechanism, whose event shrinks with the coordinate bound. With plain Gaussian
noise it buys nothing: the event only sees C.

Cost
----
Rows whose largest coordinate is within the bound are cut nowhere and are never formed; for a linear
layer that is seen from the factors of the gradient (`RecordedView.cut_sum`). The others are formed,
a cacheful at a time. Real gradients rarely concentrate on few coordinates, so p in the tens or
hundreds cuts little. Layers applied at many places of a row (convolutions) are formed to be seen.

Guarantee
---------
Both cuts depend on row i only and neither lengthens a vector: the L2 shift stays C (2C for a
replaced record), and every coordinate of a record's contribution is at most C/sqrt(p).

References
----------
Xiao, Xiang, Wang, Devadas: ModelMix, 2022, Algorithm 2 and Corollary 4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from winsor.core.checks import positive, whole
from winsor.core.contract import Bounded, ConfigurationError, Tree
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.view import Need, View
from winsor.rules.rule import ROUNDING, RowwiseRule, State, Sums, clip_weights


@dataclass(frozen=True)
class LInf(RowwiseRule):
    """Clip rows to ``max_grad_norm`` in L2, then coordinates to ``max_grad_norm / sqrt(p)``."""

    max_grad_norm: float
    p: int = 25

    needs = Need.ROWS
    proof = "both cuts depend on row i only and shorten it; |v_i| <= C (ModelMix, Alg. 2)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        whole("p", self.p)

    @property
    def coordinate_bound(self) -> float:
        return self.max_grad_norm / math.sqrt(self.p)

    def init(self, parameters: Tree, expected_size: float) -> State:
        coordinates = sum(tensor.numel() for tensor in parameters.values())
        if self.p > coordinates:
            raise ConfigurationError(
                f"p must be at most the number of trained coordinates, {coordinates}. Got "
                f"{self.p} instead. A larger p only shortens every gradient: lower max_grad_norm."
            )
        return {}

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """The L2 part; the coordinate cut depends on more than the norm."""
        return clip_weights(norms, self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        return self.max_grad_norm

    def contributions(self, view: View, state: State) -> Sums:
        if isinstance(view, RecordedView):
            weights = clip_weights(view.norms(), self.max_grad_norm)
            return {"grad": view.cut_sum(weights, self.coordinate_bound / (1 + ROUNDING))}
        return {"grad": view.map_sum(self._clip_rows)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        parts = super().bounded(sums, state)
        return {"grad": replace(parts["grad"], coordinate_bound=self.coordinate_bound)}

    def _clip_rows(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        norms = torch.stack(
            [
                torch.linalg.vector_norm(t.unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64)
                for t in rows.values()
            ]
        ).norm(dim=0)  # float64: squares of huge coordinates must not overflow
        weights = clip_weights(norms, self.max_grad_norm)
        bound = self.coordinate_bound / (1 + ROUNDING)
        return {
            name: (t * weights.to(t.dtype).view(-1, *[1] * (t.dim() - 1))).clamp(-bound, bound)
            for name, t in rows.items()
        }


EXAMPLES = (LInf(1.0, 4), LInf(0.5, 1), LInf(20.0, 8))
