"""Automatic clipping: every per-sample gradient is normalised instead of clipped.

    AUTO-S:  w_i = C / (|g_i| + gamma)         Bu et al. 2023
    NSGD:    w_i = C / (|g_i| + r),  r >= 0    Yang et al. 2022; r = 0 is AUTO-V

The two share a formula. They differ in how they are meant: AUTO-S keeps gamma at 0.01 and tunes
nothing; NSGD treats r as a trade-off between bias (small r forgets all magnitudes) and noise
(large r shrinks what is released below C), and may switch it off.

When to use
-----------
When no sensible clipping threshold is known: C then only rescales the learning rate (for SGD), so
one knob disappears. Less suitable late in training, when small gradients of well-fitted rows are
blown up to the same length as those of rows that still teach something; see `psac.py`.

Cost
----
That of flat clipping: one norm per row and one weighted sum.

Guarantee
---------
|w_i g_i| = C |g_i| / (|g_i| + gamma) <= C, and w_i depends on row i only: one record moves the sum
by at most C when added or removed, by at most 2C when replaced.

References
----------
Bu, Wang, Zha, Karypis: Automatic clipping, NeurIPS 2023. Yang, Zhang, Chen, Liu: Normalized/clipped
SGD with perturbation for differentially private non-convex optimization, 2022. C is kept explicit
here (the papers absorb it into the learning rate), and a row of norm zero with r = 0 contributes
zero.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError
from winsor.gradients.sums import exact_or_zero
from winsor.gradients.view import View
from winsor.rules.rule import ROUNDING, PerSampleRule, State

SHORTEST = 1e-15
"""Rows shorter than this are scaled as if this long: below it, squares in float32 lose their digits
and a computed norm may fall short of the true one."""


def normalising_weights(norms: Tensor, threshold: float, regulariser: float) -> Tensor:
    """C / (|g| + r), finite also where |g| + r = 0."""
    return exact_or_zero(threshold / ((norms + regulariser) * (1 + ROUNDING)).clamp_min(SHORTEST))


class _Normalising(PerSampleRule):
    """What AUTO-S and NSGD share. Subclasses give the threshold and the regulariser."""

    proof = "w_i depends on row i only and |w_i g_i| = C|g_i|/(|g_i|+r) <= C (Bu et al. 2023)"

    @property
    @abstractmethod
    def constants(self) -> tuple[float, float]:
        """(C, r)"""

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        return normalising_weights(norms, *self.constants)

    def weights(self, view: View, state: State) -> Tensor:
        return self.weight_of_norm(view.norms())

    def clipped_norm(self, state: State) -> float:
        return self.constants[0]


@dataclass(frozen=True)
class Automatic(_Normalising):
    """AUTO-S: scale each per-sample gradient by ``max_grad_norm / (norm + gamma)``."""

    max_grad_norm: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("gamma", self.gamma)

    @property
    def constants(self) -> tuple[float, float]:
        return self.max_grad_norm, self.gamma


@dataclass(frozen=True)
class NSGD(_Normalising):
    """Normalised SGD: ``max_grad_norm / (norm + regulariser)``; regulariser 0 is pure direction."""

    max_grad_norm: float = 1.0
    regulariser: float = 0.1

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        if not (math.isfinite(self.regulariser) and self.regulariser >= 0):
            raise ConfigurationError(
                f"regulariser must be a finite number >= 0. Got {self.regulariser!r} instead."
            )

    @property
    def constants(self) -> tuple[float, float]:
        return self.max_grad_norm, self.regulariser


EXAMPLES = (Automatic(1.0, 0.01), Automatic(0.1, 1.0), NSGD(1.0, 0.1), NSGD(2.0, 0.0))
