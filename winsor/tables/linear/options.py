"""What the options of all methods share: nested parameters for grid search, and a check."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sklearn.base import BaseEstimator

from winsor.core.checks import positive
from winsor.tables.linear.task import LinearTask, Session, Solution


class Method(BaseEstimator, ABC):
    """How to fit a linear model privately. Subclasses are dataclasses whose fields are options.

    A scikit-learn object only so that ``method__learning_rate`` works in `GridSearchCV`.
    """

    continues = False
    """True if `partial_fit` may go on from the present parameters with further records."""

    @abstractmethod
    def solve(self, task: LinearTask, session: Session) -> Solution: ...

    def _check(self, *names: str) -> None:
        """Each of these options must be None or a positive finite number."""
        for name in names:
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
