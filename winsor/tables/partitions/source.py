"""A table in partitions, sums over all of them, and several passes over the same rows.

    Partitions.of_dataset(pyarrow.dataset.dataset("rows/"), ["age", "income"])   one by one, here
    Partitions.of_loaders([load_a, load_b, ...], columns=2, map=pool.map)        where the map says
    Partitions.of_loaders([load_a, load_b, ...], columns=2, client=client)       on a Dask cluster
    Partitions.of_dask(dask.dataframe.read_parquet("rows/"), client)             the same

A loader is a function without arguments that returns (rows, columns) numbers. Partitions are summed
in float64 and added up in their order with what rounding lost, so that the total does not depend on
where the cuts between partitions are, to about 1e-15 of its size.

A method that looks twice is calibrated for n rows, so every pass must find as many. The first one
also takes a digest of the rows, which a key from a seed belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import summed
from winsor.core.contract import ConfigurationError, ProtocolError
from winsor.planning.cells import as_numbers
from winsor.tables.inputs import as_rows
from winsor.tables.partitions.on_dask import DaskMap, DelayedMap, delayed_parts
from winsor.tables.ranges.zoom import counts_between

if TYPE_CHECKING:
    from distributed import Client
    from pyarrow.dataset import Dataset

Array = NDArray[np.float64]
Loader = Callable[[], ArrayLike]
Map = Callable[[Callable[[Loader], Any], Sequence[Loader]], Iterable[Any]]

AT_ONCE = 1 << 16
"""Rows of a dataset that are in memory at a time."""


@dataclass(frozen=True)
class OnPartition:
    """What a worker is sent: load one partition and sum a function of its rows."""

    bounded: Callable[[Array], Array]
    columns: int

    def __call__(self, load: Loader) -> tuple[int, Array | None]:
        """How many rows, and the sum of their bounded values; nothing else leaves a partition."""
        held = load()
        if len(held) == 0:  # type: ignore[arg-type]
            return 0, None
        rows, _ = as_rows(held)
        if rows.shape[1] != self.columns:
            raise ConfigurationError(
                f"every partition must have {self.columns} columns. Got {rows.shape[1]} instead."
            )
        with np.errstate(all="ignore"):
            return len(rows), self.bounded(rows)


class Partitions:
    """Rows that are never in one place."""

    def __init__(self, loaders: Callable[[], Iterable[Loader]], columns: int, map_: Map) -> None:
        self.columns = columns
        self._loaders = loaders
        self._map = map_

    @staticmethod
    def of_loaders(
        loaders: Sequence[Loader],
        columns: int,
        map: Map | None = None,
        client: Client | None = None,
    ) -> Partitions:
        """Make one partition for each loader. ``map`` says where they are loaded (default: here),
        or ``client`` (of `dask.distributed`) on whose workers."""
        if map is not None and client is not None:
            raise ConfigurationError("give map or client, not both.")
        if not loaders or not all(callable(load) for load in loaders):
            raise ConfigurationError(
                "loaders must be functions without arguments that return rows, at least one. Got "
                f"{type(loaders).__name__} of {len(loaders)} instead."
            )
        where = map if client is None else DaskMap(client)
        return Partitions(lambda: loaders, columns, where or _here)

    @staticmethod
    def of_dask(
        collection: Any, client: Client, columns: Sequence[Any] | None = None
    ) -> Partitions:
        """Return the partitions of a Dask data frame (``columns`` by name; default: all), or of an
        array in chunks of whole rows. Rows stay on the workers of ``client``; their sums do not."""
        parts, count = delayed_parts(collection, None if columns is None else list(columns))
        return Partitions(lambda: parts, count, DelayedMap(client))

    @staticmethod
    def of_dataset(dataset: Dataset, columns: Sequence[str]) -> Partitions:
        """Return the batches of a pyarrow dataset, one at a time in memory."""
        missing = sorted(set(columns) - set(dataset.schema.names))
        if missing or not columns:
            raise ConfigurationError(
                f"columns must be names of the dataset, at least one. Missing: {missing}."
            )

        def loaders() -> Iterator[Loader]:
            for batch in dataset.to_batches(columns=list(columns), batch_size=AT_ONCE):
                yield _Batch(batch, tuple(columns))

        return Partitions(loaders, len(columns), _here)

    def sum(self, bounded: Callable[[Array], Array]) -> tuple[int, Array]:
        """Return number of rows, and the sum of ``bounded(rows)`` over all partitions."""
        counts: list[int] = []

        def parts() -> Iterator[Array]:
            for count, part in self._map(OnPartition(bounded, self.columns), self._loaders()):  # type: ignore[arg-type]
                counts.append(int(count))
                if part is not None:
                    yield part

        total = summed(parts())
        if not any(counts):
            raise ConfigurationError("the partitions must have rows. Got none in any of them.")
        return sum(counts), total


@dataclass(frozen=True)
class _Batch:
    """One batch of a dataset as rows."""

    batch: Any
    columns: tuple[str, ...]

    def __call__(self) -> Array:
        found = [self.batch.column(name).to_numpy(zero_copy_only=False) for name in self.columns]
        return np.column_stack([as_numbers(column) for column in found])


def _here(f: Callable[[Loader], Any], loaders: Iterable[Loader]) -> Iterator[Any]:
    return (f(load) for load in loaders)


_WORDS = 4
_BITS = 16  # sums of so many bits of 2^37 rows are exact in float64


class Passes:
    """The rows of ``partitions`` as often as a method needs them."""

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self.columns = partitions.columns
        self.n, self.digest = partitions.sum(row_digest)

    def sum(self, bounded: Callable[[Array], Array]) -> Array:
        """Return the sum of ``bounded(rows)``, over as many rows as the first pass has seen."""
        n, total = self.partitions.sum(bounded)
        if n != self.n:
            raise ProtocolError(
                f"partitions must hold the same rows in every pass. Got {n} rows after {self.n}. "
                "Write the table down before, or load it from something that does not change."
            )
        return total

    def counted(self, edges: Sequence[Array], width: int) -> Array:
        """Count the rows between the edges of each column, for `Zoom.release_counts`."""
        return self.sum(CellCounts(tuple(edges), width))


@dataclass(frozen=True)
class CellCounts:
    """(columns, width) counts of some rows."""

    edges: tuple[Array, ...]
    width: int

    def __call__(self, rows: Array) -> Array:
        return counts_between(rows, self.edges, self.width)


def row_digest(rows: Array) -> Array:
    """Return sums of hashes of rows: the same wherever the cuts between partitions are."""
    bits = np.ascontiguousarray(rows, dtype=np.float64).view(np.uint64)
    mixed = np.zeros(len(bits), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in range(bits.shape[1]):  # in turn, so that swapped columns are other rows
            mixed = (mixed ^ bits[:, column]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
    lowest = np.uint64((1 << _BITS) - 1)
    words = [(mixed >> np.uint64(_BITS * word)) & lowest for word in range(_WORDS)]
    return np.array([word.sum(dtype=np.uint64) for word in words], dtype=np.float64)
