"""One private fit of a linear model: the problem, the options of a method, the solution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError
from winsor.planning.shares import Session
from winsor.tables.design import Design
from winsor.tables.linear.scaled import Scaling
from winsor.tables.losses import Loss

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearTask:
    """Minimise the mean loss plus alpha |w|^2 / 2 over theta, from ``start``."""

    design: Design
    y: Array
    loss: Loss
    alpha: float
    start: Array
    row_bound: float | None
    """Public bound on |(x, 1)| in the design's units, if the user gave one."""

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.design.n)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.start.size

    def reach(self) -> float:
        """Return the public bound on |(x, 1)|, from which parameters follow."""
        if self.row_bound is None:
            raise ConfigurationError(
                "feature_bound must be given for this method, whose parameters follow from it. Got "
                "None instead. Give a public bound on the norm of a row (longer ones are cut in "
                "their influence), the parameters by hand, or another method, such as "
                'method="flat".'
            )
        return self.row_bound

    @property
    def curvature(self) -> float:
        """Curvature in the score, for default step sizes; a loss with a kink counts as one rounded
        at 1."""
        return self.loss.curvature if np.isfinite(self.loss.curvature) else 1.0

    def smoothness(self) -> float:
        """Return L of the mean loss: curvature in the score times the squared row bound."""
        if not np.isfinite(self.loss.curvature):
            raise ConfigurationError(
                "the loss must be smooth for this method's theorem. Got a loss with a kink "
                f'({type(self.loss).__name__}) instead. Use method="averaged" (Theorem 7), or give '
                "the parameters by hand."
            )
        return self.loss.curvature * self.reach() ** 2

    def hoelder(self, exponent: float, radius: float) -> float:
        """Return M_nu of the mean loss on a ball of radius 7R: |grad f(x) - grad f(y)| <= M |x -
        y|^nu.

        Gradients differ by at most L|x - y| and by at most twice their bound G, so by at most
        (L|x - y|)^nu (2G)^(1-nu); and |x - y| <= 14R there, so by at most L (14R)^(1-nu)|x - y|^nu.
        """
        if exponent == 1:
            return self.smoothness()
        reach = self.reach()
        steep, bound = self.loss.curvature * reach**2, 2 * self.loss.slope * reach
        choices = [steep * (14 * radius) ** (1 - exponent)]
        if np.isfinite(bound):
            choices.append(steep**exponent * bound ** (1 - exponent))
        return float(min(choices))

    def deviation(self) -> float:
        """Return a bound on the standard deviation of per-sample gradients, for losses that have
        one."""
        if not np.isfinite(self.loss.slope):
            raise ConfigurationError(
                "deviation must be given for a squared loss: its gradients have no bound. Got None "
                "instead. Give the size of a typical per-sample gradient, or use a Huber loss."
            )
        return self.loss.slope * self.reach()


@dataclass(frozen=True)
class Solution:
    """Parameters in the design's units, and how many private steps they took.

    ``trajectory`` holds (step, parameters) pairs along the way, if they were recorded.

    ``updates`` counts those of the iterative mean (Algorithm 3 of paper 2) over all steps.
    """

    theta: Array
    steps: int
    updates: int | None = None
    trajectory: tuple[tuple[int, Array], ...] = ()


class Method(BaseEstimator, ABC):
    """How to fit a linear model privately. Subclasses are dataclasses whose fields are options.

    A scikit-learn object only so that ``method__learning_rate`` works in `GridSearchCV`.
    """

    continues = False
    """True if `partial_fit` may go on from the present parameters with further records."""

    @abstractmethod
    def solve(self, task: LinearTask, session: Session) -> Solution:
        """Fit ``task`` with what ``session`` may spend."""

    def _check(self, *names: str) -> None:
        """Each of these options must be None or a positive finite number."""
        for name in names:
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))


@dataclass(frozen=True)
class BoundedTask(LinearTask):
    """A `LinearTask` with ``bounds`` (d, 2) in the design's units, NaN where they are not known."""

    bounds: Array = field(default_factory=lambda: np.empty((0, 2)))
    target_range: tuple[float, float] | None = None
    """Public, in raw units: of the targets here most lie in [-1, 1], then."""
    learn_threshold: bool = False
    """The Huber threshold is to follow the scale of y."""


@dataclass(frozen=True)
class BoundedSolution(Solution):
    """A `Solution` found on winsorised columns, which predictions then winsorise too."""

    scaling: Scaling | None = None
    statistics: Any = None
    """Released sufficient statistics: `winsor.tables.linear.sufficient.Statistics`, or None."""
