"""Cyclic Poisson sampling: the way of drawing that correlated noise needs. No torch here.

Rows are divided into b groups, each row by its own coin, once for the whole run. Step t samples
its batch from group t mod b, each row with probability b q: on average n q rows.

A row that takes part at some step cannot take part again in the next b - 1. Noise that is
correlated over b steps (`winsor.core.noise.banded`) then never covers one row twice.

References
----------
Choquette-Choo et al. 2023 (arXiv 2306.08153), Section 3: banded matrices and b-min-separation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.core.events.joint import BandedEvent
from winsor.core.noise.protocol import LocalEvent
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import BlockSampler, Indices


@dataclass(frozen=True)
class CyclicPoisson(BlockSampler):
    """Step t draws each row of group t mod ``bands`` with probability ``bands * q``.

    Guarantee
    ---------
    With noise C^-1 z, C lower-triangular with ``bands`` bands and columns of norm at most 1, the
    first T steps are ceil(T / bands) releases with Poisson sampling at rate ``bands * q`` and the
    noise z, under add/remove. Given a row's group, its likelihood ratio over a block of steps is
    (1 - bq) + bq LR, where LR is that of a Gaussian with total shift at most one; blocks do not
    overlap; and the coin that chose the group is averaged over.

    With one band this is Poisson sampling. With more, replace-one is refused: no bound is proven.

    >>> sampler = CyclicPoisson(n=1000, bands=4, q=0.05)
    >>> sampler.expected_size, sampler.block
    (50.0, 4)
    """

    n: int
    bands: int
    q: float

    def __post_init__(self) -> None:
        for name, value in (("n", self.n), ("bands", self.bands)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(
                    f"{name} must be a whole number, at least 1. Got {value!r} instead."
                )
        good = isinstance(self.q, int | float) and math.isfinite(self.q)
        if not (good and self.q > 0 and self.bands * self.q <= 1 + 1e-12):
            raise ConfigurationError(
                "q must be above 0 and at most 1/bands: a step draws from one group of bands, each "
                f"row with probability bands * q. Got q = {self.q!r} with {self.bands} bands "
                "instead. Use fewer bands or smaller batches."
            )

    @staticmethod
    def of_batch_size(n: int, batch_size: float, bands: int) -> CyclicPoisson:
        """Return the sampler whose batches have ``batch_size`` rows on average."""
        return CyclicPoisson(n, bands, batch_size / n)

    @property
    def block(self) -> int:
        """Number of steps that are paid for with the first of them."""
        return self.bands

    @property
    def rate(self) -> float:
        """Probability that a given row is in a given batch."""
        return self.q

    @property
    def group_rate(self) -> float:
        """Probability of a row of the step's group."""
        return min(1.0, self.bands * self.q)

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return self.n * self.q

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        group = _groups(key, self.n, self.bands)[step % self.bands]
        generator = stream(key, "cyclic batch", step)
        size = int(generator.binomial(len(group), self.group_rate))
        return group[generator.choice(len(group), size, replace=False, shuffle=True)]

    def group_of(self, key: bytes, row: int) -> int:
        """The group of a row, the same for the whole run. It is secret."""
        groups = enumerate(_groups(key, self.n, self.bands))
        return next(number for number, rows in groups if row in rows)

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """The event of ``bands`` consecutive steps."""
        if self.bands > 1 and relation is not Neighbouring.ADD_OR_REMOVE_ONE:
            raise UnsupportedRelation(
                "cyclic Poisson sampling with more than one band is certified for "
                f"{Neighbouring.ADD_OR_REMOVE_ONE} only. Got {relation} instead. Use bands=1, "
                "which is Poisson sampling."
            )
        if isinstance(event, BandedEvent):
            return event.separated(self.bands, self.group_rate, relation)
        return event.poisson(self.group_rate, relation)

    def config(self) -> dict[str, Any]:
        """Return the settings that the ledger's header holds."""
        return super().config() | {"bands": self.bands}

    def __str__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, rate={self.q:.6g}, {self.bands} groups)"


@lru_cache(maxsize=4)
def _groups(key: bytes, n: int, bands: int) -> tuple[Indices, ...]:
    """The rows of each group; groups may be empty."""
    place: NDArray[np.int64] = stream(key, "cyclic groups", 0).integers(0, bands, n)
    rows = np.argsort(place, kind="stable").astype(np.int64)
    ends = np.cumsum(np.bincount(place, minlength=bands))[:-1]
    return tuple(np.split(rows, ends))
