"""What transforms by released moments have in common: a budget, a ledger, numbers that are kept.

`fit` pays before noise is drawn, for all of its releases; the numbers that a transform consists of
are public from then on. ``state_dict`` gives them, and ``load_state_dict`` puts them back beside
the ledger that paid for them, so that a run that goes on releases nothing twice.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winsor.core.arithmetic.rows import clip_rows
from winsor.core.checks import as_delta, as_relation
from winsor.core.contract import ConfigurationError, Guarantee, ProtocolError, Sensitivity
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import Receipt
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment
from winsor.planning.shares import noise_of, one_of, single_payment

Array = NDArray[np.float64]

MEAN_SHARE = 0.25
"""w: means bear far more noise than variances do."""
LEVELS, MOST = 16, 127
"""A coordinate of usual size is 16 after rounding, the longest 127."""


class ReleasedMoments(ABC):
    """A transform of rows by moments that are released with noise.

    A subclass fits with `_paid` and `_certified`, and names its public numbers in ``kept``.
    """

    kept: tuple[str, ...] = ()
    """Attributes that the transform consists of: tensors, numbers, lists of them."""
    epsilon: float | None
    delta: float | None
    noise_multiplier: float | None
    seed: int | None
    allow_large_delta: bool
    ledger: str | os.PathLike[str] | None
    ledger_: Ledger
    guarantee_: Guarantee

    def _store(self, given: dict[str, Any]) -> None:
        """Check and keep what the constructors of all transforms take."""
        one_of(given["epsilon"], given["noise_multiplier"])
        for name in ("epsilon", "delta", "noise_multiplier", "seed", "allow_large_delta", "ledger"):
            setattr(self, name, given[name])
        self.relation = as_relation(given["relation"])

    @abstractmethod
    def fit(self, features: Tensor) -> Self:
        """Pay, and release the moments of ``features``, once."""

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """Transform the rows by what was released."""

    def _paid(
        self, n: int, sensitivity: Sensitivity, releases: tuple[int, int], bound_to: tuple[Any, ...]
    ) -> Receipt:
        """The right to ``releases`` (how many, of how many numbers each).

        Noise from a seed is bound to what it covers, for seeds are reused: other rows or settings,
        other noise.
        """
        steps, size = releases
        delta, plan = self._delta(n), Payment(FullBatch(n), sensitivity, steps)
        noise = noise_of(plan, self.epsilon, self.noise_multiplier, delta, self.relation)
        key = key_for(self.seed, None, *bound_to, noise)
        settings = {"method": type(self).__name__, "n": n, "numbers": size, "releases": steps}
        ledger = Ledger({**settings, "relation": self.relation.value}, self.ledger)
        self._door, receipt = single_payment(plan, size, noise, self.relation, key, ledger)
        return receipt

    def _delta(self, n: int) -> float:
        return as_delta(self.delta, n, self.allow_large_delta)

    def _certified(self, n: int) -> Self:
        """Certify what was released."""
        self.ledger_ = self._door.ledger
        self.guarantee_ = self._door.guarantee(self._delta(n), (f"n = {n} is public",))
        del self._door  # it holds the key
        return self

    def _refuse_unfitted(self) -> None:
        if not hasattr(self, "guarantee_"):
            name = type(self).__name__
            raise ProtocolError(f"{name} must be fitted before it is used: .fit(features).")

    def state_dict(self) -> dict[str, Any]:
        """Return the public numbers of a fitted transform."""
        self._refuse_unfitted()
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: Mapping[str, Any], ledger: Ledger) -> None:
        """Put back the numbers of a fitted transform, which ``ledger`` has paid for."""
        n = int(ledger.config["n"])
        if ledger.config.get("method") != type(self).__name__ or not len(ledger):
            raise ConfigurationError(
                f"the ledger must have paid for a {type(self).__name__}. Got one of "
                f"{ledger.config.get('method')!r} with {len(ledger)} releases instead."
            )
        for name in self.kept:
            setattr(self, name, state[name])
        self.ledger_ = ledger
        self.guarantee_ = guarantee([ledger], self._delta(n), self.relation, [str(FullBatch(n))])


# -------------------------------------------------------------------------- second moments of rows


def whole_numbers(rows: Tensor, bound: float) -> Tensor:
    """Return rows cut to norm ``bound``, which becomes `LEVELS` sqrt(d), in whole numbers; a row
    with odd values is zero."""
    d = rows.shape[1]
    length = LEVELS * math.sqrt(d)
    rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
    found = (rows * (length / bound)).clamp(-MOST, MOST).trunc()
    return torch.from_numpy(clip_rows(found.double().numpy(), length)).trunc()


def packed(moments: Tensor) -> Tensor:
    """Return a symmetric matrix (or its upper triangle), which is overwritten, as a vector of the
    same norm."""
    weighed = moments.mul_(math.sqrt(2))
    weighed.diagonal().div_(math.sqrt(2))
    return weighed[tuple(torch.triu_indices(len(moments), len(moments)))]


def symmetric(pairs: Array, d: int) -> Tensor:
    """Return the matrix of pairs of coordinates, each once and weighed by sqrt(2)."""
    upper = torch.zeros(d, d, dtype=torch.float64)
    upper[tuple(torch.triu_indices(d, d))] = torch.from_numpy(pairs)
    diagonal = upper.diagonal().clone()
    upper.fill_diagonal_(0.0)
    return (upper + upper.T) / math.sqrt(2) + torch.diag(diagonal)
