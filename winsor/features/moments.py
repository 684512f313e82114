"""What transforms by released moments have in common: a budget, a ledger, numbers that are kept.

`fit` pays before noise is drawn, for all of its releases; the numbers that a transform consists of
are public from then on. ``state_dict`` gives them, and ``load_state_dict`` puts them back beside
the ledger that paid for them, so that a run that goes on releases nothing twice.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from winsor.core.checks import as_delta, as_relation
from winsor.core.contract import (
    ConfigurationError,
    Guarantee,
    Neighbouring,
    ProtocolError,
    Sensitivity,
)
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier

Array = NDArray[np.float64]


class ReleasedMoments(ABC):
    """A transform of rows by moments that are released with noise.

    A subclass fits with `_paid` and `_certified`, and names its public numbers in ``kept``.
    """

    kept: tuple[str, ...] = ()
    """Attributes that the transform consists of: tensors, numbers, lists of them."""
    ledger_: Ledger
    guarantee_: Guarantee

    def __init__(
        self,
        epsilon: float | None,
        delta: float | None,
        noise_multiplier: float | None,
        relation: str | Neighbouring,
        seed: int | None,
        allow_large_delta: bool,
        ledger: str | os.PathLike[str] | None,
    ) -> None:
        if (epsilon is None) == (noise_multiplier is None):
            raise ConfigurationError(
                "give either epsilon or noise_multiplier. Got "
                f"epsilon={epsilon!r}, noise_multiplier={noise_multiplier!r} instead."
            )
        self.epsilon, self.delta, self.noise_multiplier = epsilon, delta, noise_multiplier
        self.relation = as_relation(relation)
        self.seed, self.allow_large_delta, self.ledger = seed, allow_large_delta, ledger

    @abstractmethod
    def fit(self, features: Tensor) -> Self:
        """Pay, and release the moments of ``features``, once."""

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """The rows, transformed by what was released."""

    def _paid(
        self, n: int, sensitivity: Sensitivity, releases: tuple[int, int], bound_to: tuple[Any, ...]
    ) -> Receipt:
        """The right to ``releases`` (how many, of how many numbers each); a seed's noise is bound
        to what it covers, for seeds are reused: other rows or settings, other noise."""
        steps, size = releases
        delta = as_delta(self.delta, n, self.allow_large_delta)
        multiplier = self.noise_multiplier
        if multiplier is None:
            target = Target(self.epsilon, delta, None, self.relation)
            multiplier = noise_multiplier([Payment(FullBatch(n), sensitivity, steps)], target)
        key = key_for(self.seed, None, *bound_to, multiplier)
        settings = {"method": type(self).__name__, "n": n, "numbers": size, "releases": steps}
        self._door = PrepaidDoor(Ledger(settings, self.ledger), self.relation, key)
        return self._door.pay(Gaussian(multiplier), FullBatch(n), sensitivity, steps, (size,))

    def _certified(self, n: int) -> Self:
        """After the last release: what it cost."""
        delta = as_delta(self.delta, n, self.allow_large_delta)
        self.ledger_ = self._door.ledger
        self.guarantee_ = self._door.guarantee(delta, (f"n = {n} is public",))
        del self._door  # it holds the key
        return self

    def _refuse_unfitted(self) -> None:
        if not hasattr(self, "guarantee_"):
            name = type(self).__name__
            raise ProtocolError(f"{name} must be fitted before it is used: .fit(features).")

    def state_dict(self) -> dict[str, Any]:
        """The public numbers of a fitted transform."""
        self._refuse_unfitted()
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: Mapping[str, Any], ledger: Ledger) -> None:
        """As fitted, with numbers that ``ledger`` has paid for."""
        n = int(ledger.config["n"])
        if ledger.config.get("method") != type(self).__name__ or not len(ledger):
            raise ConfigurationError(
                f"the ledger must have paid for a {type(self).__name__}. Got one of "
                f"{ledger.config.get('method')!r} with {len(ledger)} releases instead."
            )
        for name in self.kept:
            setattr(self, name, state[name])
        delta = as_delta(self.delta, n, self.allow_large_delta)
        self.ledger_ = ledger
        self.guarantee_ = guarantee([ledger], delta, self.relation, [str(FullBatch(n))])
