"""From a sampler's indices to the fragments a training loop sees.

A logical batch (what privacy is accounted for) may be larger than memory allows; it is then fed as
physical fragments of at most ``max_physical_batch_size`` rows each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError
from winsor.core.randomness import stream
from winsor.core.sampling.samplers import Indices, Sampler
from winsor.core.sampling.units import UnitRows
from winsor.training.checks.trial_pass import same_randomness
from winsor.training.feeding.random_states import random_states
from winsor.training.feeding.slots import Slots
from winsor.training.feeding.workers import Asked, stream_batches


class Fragment(NamedTuple):
    """One physical batch: what the user's model sees, and where it stands in its logical batch."""

    batch: Any
    size: int
    first: bool
    last: bool
    unit_sizes: tuple[int, ...] | None = None
    """How many consecutive rows each unit has, where units are drawn."""
    slots: Indices | None = None
    """Which places hold rows, where shapes are fixed; ``size`` counts the others too."""


class Chunk(NamedTuple):
    """Rows that are loaded together."""

    rows: Indices
    unit_sizes: tuple[int, ...] | None = None
    slots: Indices | None = None


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
        units: UnitRows | None = None,
        part: Callable[[Indices], Indices] | None = None,
        slots: Slots | None = None,
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
        self.num_workers = whole("num_workers", num_workers, 0)
        self.units = units
        self.slots = slots
        self._like: Any = None  # a batch of one row: shapes and types
        self._buffers = RowBuffers()
        self._part = part
        """Of each logical batch: what this rank takes, where several share it."""
        self.drawn = 0
        """Rows (or units) of the latest step, of all ranks."""
        self._drawn: dict[int, int] = {}
        self._ahead: dict[int, list[Chunk]] = {}  # drawn for workers, not yet seen by the model
        self.random_at_start: dict[str, Any] = {}
        """The user's random streams before the first fragment of the latest step that has several:
        where a checkpoint from the middle of that step goes back to."""

    def steps(self, first: int, count: int) -> Iterator[Iterator[Fragment]]:
        """Yield the fragments of ``count`` consecutive steps. An empty Poisson batch has none."""
        self._ahead.clear()
        self._drawn.clear()
        workers = self._workers(range(first, first + count)) if self.num_workers else None
        for step in range(first, first + count):
            yield self._fragments(step, workers)

    def _chunks(self, step: int) -> list[Chunk]:
        rows = self.sampler.indices(self.key, step)
        self._drawn[step] = len(rows)
        if self._part is not None:
            rows = self._part(rows)
        if self.slots is not None:
            chosen = self.slots.chosen(rows, self.key, step)
            return [Chunk(rows, None, slots) for rows, slots in chosen]
        if len(rows) == 0:
            return []
        if self.units is not None:
            return list(self._unit_chunks(rows, self.units, step))
        if self.limit is None:
            return [Chunk(rows)]
        return [Chunk(part) for part in np.array_split(rows, -(-len(rows) // self.limit))]

    def _unit_chunks(self, drawn: Indices, units: UnitRows, step: int) -> Iterator[Chunk]:
        """Yield whole units, as many as the limit allows; a unit alone may exceed it."""
        if self.limit is None and (chosen := units.all_chosen(drawn)) is not None:
            yield Chunk(*chosen)
            return
        held: list[Indices] = []
        for unit in drawn.tolist():
            rows = units.chosen(unit, self.key, step)
            if held and self.limit is not None and sum(map(len, held)) + len(rows) > self.limit:
                yield _joined(held)
                held = []
            held.append(rows)
        yield _joined(held)

    def _fragments(self, step: int, workers: Iterator[Any] | None) -> Iterator[Fragment]:
        chunks = self._ahead.pop(step, None)
        if chunks is None:
            chunks = self._chunks(step)
        self.drawn = self._drawn.pop(step)
        if len(chunks) > 1:
            self.random_at_start = random_states()
        for i, (rows, sizes, slots) in enumerate(chunks):
            batch, size = None, len(rows)
            if size or slots is None:
                batch = self._load(rows) if workers is None else next(workers)
            if self.slots is not None and slots is not None:
                batch, size = self._padded(self.slots, batch, slots), self.slots.size
            yield Fragment(batch, size, i == 0, i == len(chunks) - 1, sizes, slots)

    def _padded(self, to: Slots, batch: Any, slots: Indices) -> Any:
        """Return a batch with all its slots. Its structure is that of a row, whose values are not
        used."""
        if self._like is None:
            with same_randomness(0):
                collate = self.collate_fn or default_collate
                loaded = self.num_workers > 0  # by workers, which collate
                self._like = collate([self.dataset[0]]) if loaded else self._load(np.zeros(1, int))
        return to.padded(batch, self._like, slots)

    def _load(self, rows: Indices) -> Any:
        if isinstance(self.dataset, TensorDataset) and self.collate_fn is None:
            index = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
            rows_of = self._buffers.rows_of
            return tuple([rows_of(i, part, index) for i, part in enumerate(self.dataset.tensors)])
        take = getattr(self.dataset, "take_rows", None)
        if take is not None and self.collate_fn is None:  # rows by index, all at once
            return take(rows)
        collate = self.collate_fn or default_collate
        return collate([self.dataset[int(i)] for i in rows])

    def _workers(self, steps: range) -> Iterator[Any]:
        asked = self._asked(steps)
        return stream_batches(self.dataset, asked, self.num_workers, self.collate_fn)

    def _asked(self, steps: range) -> Iterator[Asked]:
        """Yield what workers are told, drawn when they are ready for it."""
        for step in steps:
            chunks = self._ahead[step] = self._chunks(step)
            seeds = stream(self.key, "augmentation", step).integers(1 << 63, size=len(chunks))
            for seed, chunk in zip(seeds.tolist(), chunks, strict=True):
                if len(chunk.rows) == 0:  # slots, all of them empty: there is nothing to load
                    continue
                yield [seed, *chunk.rows.tolist()]


def _joined(held: list[Indices]) -> Chunk:
    return Chunk(np.concatenate(held), tuple(map(len, held)))


SHARED_BUFFER_BYTES = 1 << 24
"""Bytes from which a batch is put into a shared buffer."""
_MOST = 3  # buffers for each tensor of a dataset: one in use, one just left, one to spare


class RowBuffers:
    """Rows of a batch by one `index_select`, large ones into memory that nobody holds any more.

    A fresh tensor of some ten megabytes costs more in page faults than in copying, so large batches
    share a few buffers. A buffer is written to again only when its storage has no owner but this
    object: a batch that the user keeps, a view of it, an array made from it, or a graph that saved
    it each count as an owner, and then another buffer is taken.
    """

    def __init__(self) -> None:
        self._buffers: dict[int, list[Tensor]] = {}

    def rows_of(self, place: int, values: Tensor, index: Tensor) -> Tensor:
        """Return ``values[index]``; ``place`` names the tensor within its dataset."""
        large = values.nbytes * index.shape[0] >= SHARED_BUFFER_BYTES * values.shape[0]
        if not large or values.requires_grad or values.device.type != "cpu":
            return values.index_select(0, index)
        out = self._free(place, values, len(index))
        return torch.index_select(values, 0, index, out=out)

    def _free(self, place: int, values: Tensor, count: int) -> Tensor:
        known = self._buffers.setdefault(place, [])
        for buffer in known:
            if len(buffer) >= count and _owners(buffer) == _ALONE:
                return buffer[:count]
        if len(known) >= _MOST:
            del known[0]
        known.append(values.new_empty((count + count // 16, *values.shape[1:])))
        return known[-1][:count]


def _owners(buffer: Tensor) -> int:
    """Count how many tensors and others hold the memory of ``buffer``, itself included."""
    return int(torch._C._storage_Use_Count(buffer.untyped_storage()._cdata))


_ALONE = _owners(torch.empty(1))
