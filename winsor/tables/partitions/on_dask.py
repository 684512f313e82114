"""Partitions on a Dask cluster: each is summed where it is, and sums come back in order.

A worker that dies has its partitions computed again by another one. A sum depends on its partition
and on public values only, so nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from winsor.core.contract import ConfigurationError

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class DaskMap:
    """A map for `Partitions.of_loaders`: loaders are sent to the workers of ``client``."""

    client: Client

    def __call__(self, f: Callable[[Any], Any], loaders: Iterable[Any]) -> Iterator[Any]:
        # Not pure: equal loaders are partitions of their own, and f holds released values.
        return iter(self.client.gather(self.client.map(f, list(loaders), pure=False)))


@dataclass(frozen=True)
class DelayedMap:
    """The same for delayed partitions, which are made on the workers and stay there."""

    client: Client

    def __call__(self, f: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        from dask import delayed

        sums = [delayed(given, pure=False)(f, part) for part in parts]
        return iter(self.client.gather(self.client.compute(sums)))


def given(f: Callable[[Callable[[], Any]], Any], rows: Any) -> Any:
    """Return what ``f`` says of a loader that returns ``rows``: runs on a worker."""
    return f(lambda: rows)


def delayed_parts(collection: Any, columns: list[Any] | None) -> tuple[list[Any], int]:
    """Return row partitions of a Dask array or data frame as delayed ones, and how many columns."""
    if hasattr(collection, "to_delayed") and hasattr(collection, "columns"):
        chosen = list(collection.columns) if columns is None else columns
        missing = [name for name in chosen if name not in list(collection.columns)]
        if missing or not chosen:
            raise ConfigurationError(
                f"columns must be names of the data frame, at least one. Missing: {missing}."
            )
        return list(collection[chosen].to_delayed()), len(chosen)
    shape: tuple[int, ...] = getattr(collection, "shape", ())
    blocks: tuple[int, ...] = getattr(collection, "numblocks", ())
    if not hasattr(collection, "to_delayed") or len(shape) != 2 or blocks[1] != 1:
        raise ConfigurationError(
            "collection must be a Dask data frame, or a Dask array of shape (rows, columns) in "
            f"chunks of whole rows. Got {type(collection).__name__} of shape {shape} in blocks "
            f"{blocks} instead. Use array.rechunk({{1: -1}})."
        )
    if columns is not None:
        raise ConfigurationError(
            f"columns must be None for an array: take them before. Got {columns!r} instead."
        )
    return list(collection.to_delayed().ravel()), int(shape[1])
