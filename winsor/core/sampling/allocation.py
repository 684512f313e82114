"""Epochs: every row is seen exactly once in each, at a step of its own. No torch here.

Allocation   each row goes to one of t steps by its own coin; the coins hide where, which amplifies
Loader       rows in an order that need not be secret, cut into batches; nothing is amplified

Both draw an epoch as a function of (key, epoch), so a resumed run continues the very epoch it was
in. Sorting an epoch's rows by step costs O(n) once; each batch is then a slice.

References
----------
Feldman & Shenfeld 2025 (arXiv 2502.08202), Chua et al. 2024 (arXiv 2412.16802).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import dp_event
from numpy.typing import NDArray

from winsor.core.contract import (
    ConfigurationError,
    Neighbouring,
    UnsupportedEvent,
    UnsupportedRelation,
)
from winsor.core.events.allocation import AllocationDpEvent
from winsor.core.events.joint import GaussianEvent
from winsor.core.noise.protocol import LocalEvent
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import BlockSampler, Indices


def _whole(name: str, value: Any, high: int | None = None) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not good or (high is not None and value > high):
        top = "" if high is None else f", at most {high}"
        raise ConfigurationError(
            f"{name} must be a whole number, at least 1{top}. Got {value!r} instead."
        )
    return int(value)


@dataclass(frozen=True)
class Allocation(BlockSampler):
    """In every epoch each row goes to one of ``steps_per_epoch`` steps, uniformly, by its own coin.

    Batches vary in size like those of Poisson sampling; no row is missed or repeated in an epoch.

    Guarantee
    ---------
    One `AllocationDpEvent` for each epoch that is begun, under add/remove, for Gaussian noise whose
    multiplier is the same at all steps of the epoch. A row's coin is independent of all others, so
    adding a row changes no other row's step.

    >>> sampler = Allocation.of_batch_size(n=60_000, batch_size=1024)
    >>> sampler.steps_per_epoch, round(sampler.expected_size, 2)
    (59, 1016.95)
    """

    n: int
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _whole("n", self.n)
        _whole("steps_per_epoch", self.steps_per_epoch, self.n)

    @staticmethod
    def of_batch_size(n: int, batch_size: float) -> Allocation:
        """The whole number of steps that comes nearest to ``batch_size`` rows on average."""
        _whole("n", n)
        if not 0 < batch_size <= n:
            raise ConfigurationError(
                f"batch_size must be above 0 and at most n = {n}. Got {batch_size!r} instead."
            )
        return Allocation(n, min(n, max(1, round(n / batch_size))))

    @property
    def block(self) -> int:
        """Number of steps that are paid for with the first of them."""
        return self.steps_per_epoch

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return self.n / self.steps_per_epoch

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows, starts = _allocated(key, epoch, self.n, self.steps_per_epoch)
        return rows[starts[place] : starts[place + 1]]

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """The event of one epoch."""
        if relation is not Neighbouring.ADD_OR_REMOVE_ONE:
            raise UnsupportedRelation(
                f"random allocation is certified for {Neighbouring.ADD_OR_REMOVE_ONE} only. Got "
                f"{relation} instead, for which no bound is proven. Use Poisson sampling."
            )
        if not isinstance(event, GaussianEvent):
            raise UnsupportedEvent(
                "random allocation is certified for Gaussian noise only. Got "
                f"{type(event).__name__} instead. Use Poisson sampling for other noise."
            )
        return AllocationDpEvent(self.steps_per_epoch, event.add_remove)


@dataclass(frozen=True)
class Loader(BlockSampler):
    """The rows in some order, ``batch_size`` at a time: what a plain data loader does.

    The order is that of the data, or reshuffled for each epoch (``shuffle``). The last batch of an
    epoch is smaller, and every batch is still divided by ``batch_size``. With ``drop_last`` the
    rows that do not fill a batch are left out of the epoch.

    Guarantee
    ---------
    A row is in one batch of an epoch, so the epoch costs what one release costs without sampling
    (parallel composition): nothing is amplified, and nothing rests on the order being secret. The
    number n and the order are public; add/remove reads "one row's contribution present or absent,
    in its place". (Were a row taken out of the sequence, all later rows would change batches.)

    >>> sampler = Loader(n=10, batch_size=4)
    >>> sampler.block, [len(sampler.indices(b"key of the run", step)) for step in range(4)]
    (3, [4, 4, 2, 4])
    """

    n: int
    batch_size: int
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        _whole("n", self.n)
        _whole("batch_size", self.batch_size, self.n)

    @property
    def block(self) -> int:
        """Number of steps that are paid for with the first of them."""
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    @property
    def expected_size(self) -> float:
        """Expected number of rows in a batch; sums are divided by it."""
        return float(self.batch_size)

    def indices(self, key: bytes, step: int) -> Indices:
        """Return the rows of the batch of ``step``, a function of key and step."""
        epoch, place = divmod(step, self.block)
        rows = _ordered(key, epoch, self.n) if self.shuffle else np.arange(self.n, dtype=np.int64)
        return rows[place * self.batch_size : (place + 1) * self.batch_size]

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> dp_event.DpEvent:
        """The event of one epoch: that of the one release the row is in."""
        return event.whole(relation)

    def config(self) -> dict[str, Any]:
        """Return the settings that the ledger's header holds."""
        return super().config() | {
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }


@lru_cache(maxsize=4)  # one epoch at a time, and whoever looks ahead
def _allocated(key: bytes, epoch: int, n: int, steps: int) -> tuple[Indices, NDArray[np.int64]]:
    """The rows of an epoch, those of its first step first, and where each step begins."""
    place = stream(key, "allocation", epoch).integers(0, steps, n, dtype=np.int64)
    rows = np.argsort(place, kind="stable").astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(np.bincount(place, minlength=steps))])
    rows.setflags(write=False)
    return rows, starts.astype(np.int64)


@lru_cache(maxsize=4)
def _ordered(key: bytes, epoch: int, n: int) -> Indices:
    rows = stream(key, "loader", epoch).permutation(n).astype(np.int64)
    rows.setflags(write=False)
    return rows
