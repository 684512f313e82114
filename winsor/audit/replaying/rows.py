"""Access to the rows of a dataset, with one of them held back.

Membership of the other rows stays what it is: the row in question is moved to the end of every
batch that it is in (the order of a batch carries no information, see `rules/draws.py`), and in the
run without it, it is left out. Batches of a fixed size cannot lack a row: there it stays, and the
release counts as one in which the row was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

from winsor.core.sampling.samplers import FixedSize, Indices, Sampler
from winsor.core.sampling.units import UnitRows
from winsor.tables.design import Design
from winsor.tables.linear.batches import BlockPoisson
from winsor.tables.means import clipped
from winsor.tables.means.groups import Groups


class Rows:
    """Which row is watched, whether it is held back, and which draws had it."""

    def __init__(self, row: int | None, held_back: bool, crowd: int = 0) -> None:
        self.row = row
        self.held_back = held_back
        self.crowd = crowd
        """The number of other rows that a batch is filled up to; 0 leaves it as it is."""
        self.drawn: dict[tuple[str, int], bool] = {}
        """(sampler, step) -> whether the row was drawn."""
        self.since: list[bool] = []
        """The same for the draws since the last release."""
        self.samplers: dict[str, Sampler] = {}
        self.units: UnitRows | None = None
        """Where samplers draw units: the one that is watched is the row's, with all its rows."""
        self.on_held_back: list[Callable[[], None]] = []

    def arranged(self, indices: Indices, droppable: bool = True) -> Indices:
        """Return ``indices`` with the row at the end, or without it."""
        if self.row is None and len(indices):
            last = int(indices[-1])
            self.row = last if self.units is None else int(self.units.of(last)[0])
        watched = self.row
        if self.units is not None and self.row is not None:
            watched = self.units.unit_of(self.row)
        here = indices == watched
        self.since.append(bool(here.any()))
        others = indices[~here]
        if self.crowd and droppable and len(others):
            others = np.resize(others, self.crowd)
        if self.held_back and droppable:
            self.tell()
            return others
        return np.concatenate([others, indices[here]])

    def tell(self) -> None:
        """Tell every listener that the row was held back."""
        for listener in self.on_held_back:
            listener()

    # ------------------------------------------------------------------------- the taps

    def indices(self, original: Callable[..., Indices]) -> Callable[..., Indices]:
        """Wrap `Sampler.indices`."""

        def indices(sampler: Sampler, key: bytes, step: int) -> Indices:
            found = self.arranged(original(sampler, key, step), not isinstance(sampler, FixedSize))
            self.samplers[repr(sampler)] = sampler
            self.drawn[repr(sampler), step] = self.since[-1]
            return found

        return indices

    def unit_rows(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap `UnitRows.__init__`."""

        def build(units: UnitRows, *arguments: Any, **options: Any) -> None:
            original(units, *arguments, **options)
            self.units = units

        return build

    def batches(self, original: Callable[..., Iterator[Indices]]) -> Callable[..., Any]:
        """Wrap `BlockPoisson.batches`."""

        def batches(sampler: BlockPoisson, key: bytes, first: int, steps: int) -> Iterator[Indices]:
            self.samplers[repr(sampler)] = sampler
            for found in original(sampler, key, first, steps):
                yield self.arranged(found)

        return batches

    def chunks(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Design.chunks`."""

        def chunks(design: Design, *size: int) -> Iterator[Any]:
            if not self._gone(design.n):
                yield from original(design, *size)
                return
            self.tell()
            others = np.flatnonzero(np.arange(design.n) != self.row)
            yield others, design.rows(others)

        return chunks

    def members(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Groups.members`."""

        def members(groups: Groups, key: bytes, round_: int) -> Any:
            return [self.arranged(group) for group in original(groups, key, round_)]

        return members

    def clipped_sum(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the sum of a clipped mean."""

        def clipped_sum(rows: Any, point: Any, radius: float) -> Any:
            if not self._gone(len(rows)):
                return original(rows, point, radius)
            self.tell()
            others = np.flatnonzero(np.arange(len(rows)) != self.row)
            return original(rows[others], point, radius)

        return clipped_sum

    def _gone(self, n: int) -> bool:
        if self.row is None:
            self.row = n // 2
        return self.held_back


def with_own(cls: type, name: str) -> list[type]:
    """Return ``cls`` and its subclasses, the user's included, that define ``name`` themselves."""
    found, waiting = [], [cls]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if name in vars(one) and one not in found:
            found.append(one)
    return found


@contextmanager
def patched(taps: Iterable[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Put what each tap makes of the original in the place of an attribute of its owner."""
    with ExitStack() as stack:
        for owner, name, tap in taps:
            stack.enter_context(mock.patch.object(owner, name, tap(getattr(owner, name))))
        yield


def watched(rows: Rows) -> AbstractContextManager[None]:
    """Let ``rows`` see, and arrange, every draw."""
    samplers = [cls for cls in with_own(Sampler, "indices") if cls is not Sampler]
    return patched(
        [
            *((cls, "indices", rows.indices) for cls in samplers),
            (UnitRows, "__init__", rows.unit_rows),
            (BlockPoisson, "batches", rows.batches),
            (Design, "chunks", rows.chunks),
            (Groups, "members", rows.members),
            (clipped, "clipped_sum", rows.clipped_sum),
        ]
    )
