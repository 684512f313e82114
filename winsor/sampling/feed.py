"""From a sampler's indices to the fragments a training loop sees.

A logical batch (what privacy is accounted for) may be larger than memory allows; it is then fed as
physical fragments of at most ``max_physical_batch_size`` rows each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from winsor.contract import ConfigurationError
from winsor.sampling.samplers import Indices, Sampler


@dataclass(frozen=True)
class Fragment:
    """One physical batch: what the user's model sees, and where it stands in its logical batch."""

    batch: Any
    size: int
    first: bool
    last: bool


class Feed:
    """Loads the rows of each step. Which rows, is the sampler's business and the key's."""

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: Sampler,
        key: bytes,
        max_physical_batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        if max_physical_batch_size is not None and max_physical_batch_size < 1:
            raise ConfigurationError(
                "max_physical_batch_size must be at least 1 or None. Got "
                f"{max_physical_batch_size!r} instead."
            )
        self.dataset = dataset
        self.sampler = sampler
        self.key = key
        self.limit = max_physical_batch_size
        self.collate_fn = collate_fn
        self.num_workers = num_workers

    def steps(self, first: int, count: int) -> Iterator[Iterator[Fragment]]:
        """The fragments of ``count`` consecutive steps. An empty Poisson batch has none."""
        workers = self._workers(range(first, first + count)) if self.num_workers else None
        for step in range(first, first + count):
            yield self._fragments(step, workers)

    def _chunks(self, step: int) -> list[Indices]:
        rows = self.sampler.indices(self.key, step)
        if len(rows) == 0:
            return []
        if self.limit is None:
            return [rows]
        return np.array_split(rows, -(-len(rows) // self.limit))

    def _fragments(self, step: int, workers: Iterator[Any] | None) -> Iterator[Fragment]:
        chunks = self._chunks(step)
        for i, rows in enumerate(chunks):
            batch = self._load(rows) if workers is None else next(workers)
            yield Fragment(batch, len(rows), i == 0, i == len(chunks) - 1)

    def _load(self, rows: Indices) -> Any:
        if isinstance(self.dataset, TensorDataset) and self.collate_fn is None:
            index = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
            return tuple(tensor[index] for tensor in self.dataset.tensors)
        collate = self.collate_fn or default_collate
        return collate([self.dataset[int(i)] for i in rows])

    def _workers(self, steps: range) -> Iterator[Any]:
        chunks = [rows.tolist() for step in steps for rows in self._chunks(step)]
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=chunks,
            num_workers=self.num_workers,
            collate_fn=self.collate_fn,
        )
        return iter(loader)
