"""Automatic clipping: every per-sample gradient is normalised instead of clipped.

    AUTO-S:  w_i = C / (|g_i| + gamma)         Bu et al. 2023
    NSGD:    w_i = C / (|g_i| + r),  r >= 0    Yang et al. 2022; r = 0 is AUTO-V
    PSAC:    w_i = C / (|g_i| + r / (|g_i| + r))   Xia et al. 2023

AUTO-S and NSGD share a formula. They differ in how they are meant: AUTO-S keeps gamma at 0.01 and
tunes nothing; NSGD treats r as a trade-off between bias (small r forgets all magnitudes) and noise
(large r shrinks what is released below C), and may switch it off.

DP-PSAC normalises, but does not blow up small gradients. As |g| -> 0 its weight tends to C, where
AUTO-S's tends to C / gamma: a row whose gradient is almost zero no longer shouts as loudly as one
that matters. The weight is largest near |g| = sqrt(r) - r and falls off on both sides: it is not
monotone.

When to use
-----------
When no sensible clipping threshold is known: C then only rescales the learning rate (for SGD), so
one knob disappears. Less suitable late in training, when small gradients of well-fitted rows are
blown up to the same length as those of rows that still teach something.
PSAC: when training reaches small gradients (long runs, well-fitted rows). r in 0.01 to 0.1 works
widely; r close to 1 makes w nearly C / (|g| + 1) at the origin.

Cost
----
That of flat clipping: one norm per row and one weighted sum.

Guarantee
---------
|w_i g_i| = C |g_i| / (|g_i| + gamma) <= C, for PSAC C |g_i| / (|g_i| + r/(|g_i| + r)) < C, and w_i
depends on row i only: one record moves the sum by at most C when added or removed, by at most 2C
when replaced.

References
----------
Bu, Wang, Zha, Karypis: Automatic clipping, NeurIPS 2023. Yang, Zhang, Chen, Liu: Normalized/clipped
SGD with perturbation for differentially private non-convex optimization, 2022. C is kept explicit
here (the papers absorb it into the learning rate), and a row of norm zero with r = 0 contributes
zero. Xia, Shen, Yao, Fu, Xu, Xu, Fu: Differentially private learning with per-sample adaptive
clipping, AAAI 2023.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError
from winsor.rules.rule import NormRule, weights_of_quotient


class _Normalising(NormRule):
    """The weights that AUTO-S and NSGD share. Subclasses give the regulariser."""

    proof = "w_i depends on row i only and |w_i g_i| = C|g_i|/(|g_i|+r) <= C (Bu et al. 2023)"

    @property
    @abstractmethod
    def added(self) -> float:
        """The constant that is added to every norm."""

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return C / (|g| + r) for each norm."""
        return weights_of_quotient(self.max_grad_norm, norms + self.added)


@dataclass(frozen=True)
class Automatic(_Normalising):
    """AUTO-S: scale each per-sample gradient by ``max_grad_norm / (norm + gamma)``."""

    max_grad_norm: float = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("gamma", self.gamma)

    @property
    def added(self) -> float:
        """The paper's gamma."""
        return self.gamma


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
    def added(self) -> float:
        """The paper's r."""
        return self.regulariser


@dataclass(frozen=True)
class PSAC(NormRule):
    """Per-sample adaptive clipping to ``max_grad_norm`` with regulariser ``r``."""

    max_grad_norm: float = 1.0
    r: float = 0.1
    proof = "w_i depends on row i only and |w_i g_i| = C|g_i|/(|g_i|+r/(|g_i|+r)) < C (Xia 2023)"

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        positive("r", self.r)

    def weight_of_norm(self, norms: Tensor) -> Tensor:
        """Return C / (|g| + r / (|g| + r)) for each norm."""
        return weights_of_quotient(self.max_grad_norm, norms + self.r / (norms + self.r))


EXAMPLES = (
    Automatic(1.0, 0.01),
    Automatic(0.1, 1.0),
    NSGD(1.0, 0.1),
    NSGD(2.0, 0.0),
    PSAC(1.0, 0.1),
    PSAC(0.5, 0.01),
    PSAC(1.0, 1.0),
)
