"""How batches are drawn from the dataset, and what that does for privacy.

The sampler is the only home of the sampling rate q: it draws the batch with it and amplifies the
event with it, so the two cannot differ. q is an explicit input, never read off a data loader.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedRelation
from winsor.core.events.thresholded import OverflowDpEvent
from winsor.core.noise.protocol import LocalEvent
from winsor.core.randomness import subkey

Indices = NDArray[np.int64]


class Sampler(ABC):
    """Draws the batch of a step, and turns the event given the batch into the event of the step."""

    n: int
    overflow = 0.0
    """Chance that a step draws more rows than it has slots; its event pays for it."""

    @property
    @abstractmethod
    def expected_size(self) -> float:
        """Public size of a batch; every normalisation uses it."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability that a given record is in the batch."""

    @abstractmethod
    def indices(self, key: bytes, step: int) -> Indices:
        """The rows of step ``step``: a function of (key, step) only."""

    @staticmethod
    def coins(key: bytes, step: int) -> np.random.Generator:
        """The generator that draws the batch of ``step``."""
        return np.random.Generator(np.random.Philox(key=subkey(key, "batch"), counter=step << 128))

    @abstractmethod
    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """The event of one step seen from the whole dataset."""

    @property
    def block(self) -> int:
        """Steps that are paid for together, with the first of them (`BlockSampler`)."""
        return 1

    def event(self, local: LocalEvent, relation: Neighbouring, step: int) -> dp_event.DpEvent:
        """What the ledger records at ``step``."""
        return self._paid(self.amplify(local, relation))

    def _paid(self, event: dp_event.DpEvent) -> dp_event.DpEvent:
        lost = self.block * self.overflow
        return dp_event.ComposedDpEvent([event, OverflowDpEvent(lost)]) if lost else event

    def alike(self, step: int) -> range:
        """The steps around ``step`` for which `event` is the same."""
        return range(sys.maxsize)

    def history(
        self, local: LocalEvent, relation: Neighbouring, steps: int
    ) -> list[tuple[dp_event.DpEvent, int]]:
        """What ``steps`` steps from the first on cost."""
        return [(self._paid(self.amplify(local, relation)), steps)]

    @property
    def public_n(self) -> bool:
        """Return whether the number of records is public. It is, if the rate follows from it."""
        return True

    def config(self) -> dict[str, Any]:
        """Return the settings that the ledger's header holds."""
        rows = {"n": self.n} if self.public_n else {"expected_size": self.expected_size}
        return {"sampler": type(self).__name__, **rows, "rate": self.rate}

    def __str__(self) -> str:
        rows = f"n={self.n}" if self.public_n else f"expected size {self.expected_size:g}"
        return f"{type(self).__name__}({rows}, rate={self.rate:.6g})"


class BlockSampler(Sampler):
    """A sampler whose steps are paid for in blocks: an epoch, or a round of groups.

        steps     0 1 2 ... t-1 | t t+1 ...
        ledger    E . .      .  | E .           E: what the whole block costs;  .: nothing more

    A row takes part in one step of each block at most, and `amplify` gives what that costs for the
    block as a whole. It is recorded with the block's *first* step, before any of its noise is
    drawn: whenever a run ends, is killed or is resumed, the ledger has paid for every block that
    was begun.

    Guarantee
    ---------
    For every T, the events of steps 0 .. T-1 certify these T steps, provided that the event given
    the batch is the same at each step of a block (`UnsoundRelease` is raised by who releases
    otherwise).
    """

    @property
    @abstractmethod
    def block(self) -> int:
        """Steps that are paid for together."""

    @property
    def rate(self) -> float:
        """The average share of the steps that a given row takes part in."""
        return 1 / self.block

    def event(self, local: LocalEvent, relation: Neighbouring, step: int) -> dp_event.DpEvent:
        """What the ledger records at ``step``."""
        paid = super().event(local, relation, step)  # asked for every time: refusals never change
        return paid if step % self.block == 0 else dp_event.NoOpDpEvent()

    def alike(self, step: int) -> range:
        """The steps around ``step`` for which `event` is the same."""
        first = step - step % self.block
        if step == first:
            return range(step, step + 1)
        return range(first + 1, first + self.block)

    def history(
        self, local: LocalEvent, relation: Neighbouring, steps: int
    ) -> list[tuple[dp_event.DpEvent, int]]:
        """What ``steps`` steps from the first on cost: all blocks that were begun."""
        return [(self._paid(self.amplify(local, relation)), -(-steps // self.block))]


def _check_n(n: int) -> None:
    if not (isinstance(n, int) and n >= 1):
        raise ConfigurationError(
            f"n must be a positive whole number of records. Got {n!r} instead."
        )


def _check_size(n: int, size: float) -> None:
    if not (math.isfinite(size) and 0 < size <= n):
        raise ConfigurationError(
            f"batch_size must be above 0 and at most n = {n}. Got {size!r} instead. "
            "Use FullBatch to take all records at each step."
        )


@dataclass(frozen=True, repr=True)
class Poisson(Sampler):
    """Each record joins each batch independently with probability q. The size varies.

    Sizes are drawn as Binomial(n, q) and then a uniform subset of that size: the same law as n
    coin flips, in time proportional to the batch.

    >>> Poisson.of_batch_size(n=60_000, batch_size=600).rate
    0.01
    """

    n: int
    q: float
    size: float | None = None
    """A public size to divide by, where n is not public: q and it are then given, not computed."""

    def __post_init__(self) -> None:
        _check_n(self.n)
        if not (math.isfinite(self.q) and 0 < self.q <= 1):
            raise ConfigurationError(f"q must be in (0, 1]. Got {self.q!r} instead.")

    @property
    def public_n(self) -> bool:
        """Return whether the sampling rate makes the number of rows public."""
        return self.size is None

    @staticmethod
    def of_batch_size(n: int, batch_size: float) -> Poisson:
        """Return the sampler whose batches have ``batch_size`` rows on average."""
        _check_n(n)
        _check_size(n, batch_size)
        return Poisson(n, batch_size / n)

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return self.n * self.q if self.size is None else self.size

    @property
    def rate(self) -> float:
        """Probability that a given row is in a given batch."""
        return self.q

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        generator = self.coins(key, step)
        size = int(generator.binomial(self.n, self.q))
        return generator.choice(self.n, size, replace=False, shuffle=True)

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event of a step whose batch this sampler draws."""
        return event.poisson(self.q, relation)


@dataclass(frozen=True)
class FixedSize(Sampler):
    """A uniform subset of exactly ``size`` records. Proven for replace-one, where n is public.

    >>> len(FixedSize(n=1000, size=50).indices(b"key of the run", step=0))
    50
    """

    n: int
    size: int

    def __post_init__(self) -> None:
        _check_n(self.n)
        _check_size(self.n, self.size)
        if not isinstance(self.size, int):
            raise ConfigurationError(f"size must be a whole number. Got {self.size!r} instead.")

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return float(self.size)

    @property
    def rate(self) -> float:
        """Probability that a given row is in a given batch."""
        return self.size / self.n

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        return self.coins(key, step).choice(self.n, self.size, replace=False, shuffle=True)

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event of a step whose batch this sampler draws."""
        if relation is not Neighbouring.REPLACE_ONE:
            raise UnsupportedRelation(
                "FixedSize sampling is certified for replace_one only: adding a record changes the "
                f"size of the dataset, which fixed-size batches treat as public. Got {relation} "
                "instead. Use Poisson sampling for add_or_remove_one."
            )
        return event.fixed_size(self.n, self.size, relation)


@dataclass(frozen=True)
class FullBatch(Sampler):
    """Every record at every step. Under add/remove, ``n`` is the nominal size used as divisor.

    >>> FullBatch(1000).expected_size
    1000.0
    """

    n: int

    def __post_init__(self) -> None:
        _check_n(self.n)

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return float(self.n)

    @property
    def rate(self) -> float:
        """Probability that a given row is in a given batch."""
        return 1.0

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        return np.arange(self.n, dtype=np.int64)

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event of a step whose batch this sampler draws."""
        return event.whole(relation)
