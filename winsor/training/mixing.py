"""Where rows mix: the first place at which a row looks different in another batch.

Two batches hold the same row. Every module reports what it receives and returns for that row, in
the order in which that happens; up to the place where rows mix, the two reports agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from winsor.training.rehearsal import Rehearsal


@dataclass(frozen=True)
class Tolerance:
    """How far values of one row may lie apart when nothing but rounding parts them."""

    relative: float
    absolute: float

    def same(self, one: Tensor, other: Tensor) -> bool:
        """As vectors. Entries that are not finite in either must be so in both."""
        if one.shape != other.shape:
            return False
        one, other = one.detach().double(), other.detach().double()
        broken = ~(one.isfinite() & other.isfinite())
        if broken.any():
            if not torch.equal(one[broken].nan_to_num(7e77), other[broken].nan_to_num(7e77)):
                return False
            one, other = one[~broken], other[~broken]
        size = max(float(one.norm()), float(other.norm()))
        return float((one - other).norm()) <= self.relative * size + self.absolute


@dataclass(frozen=True)
class Seat:
    """One row's place in a batch."""

    samples: Sequence[Any]
    position: int

    def of(self, x: Tensor) -> Tensor:
        return x.detach()[self.position].clone()


@dataclass(frozen=True)
class _Event:
    """What one module received or returned for the row."""

    module: str
    leaving: bool
    values: list[Tensor]


@dataclass
class _Report:
    """The row in the batch, and then from module to module."""

    batch: list[Tensor] = field(default_factory=list)
    events: list[_Event] = field(default_factory=list)


def name_the_place(
    rehearsal: Rehearsal, one: Seat, other: Seat, tolerance: Tolerance, seed: int
) -> str:
    """In words: the module, the stretch between two modules, the collate function or the loss."""
    close = Tolerance(tolerance.relative / 10, tolerance.absolute / 10)
    here, there = (_reported(rehearsal, seat, seed) for seat in (one, other))
    if not _agree(here.batch, there.batch, close):
        return "in the collate function: the row is not the same in the two batches"
    last: _Event | None = None
    for a, b in itertools.zip_longest(here.events, there.events):
        if a is None or b is None or (a.module, a.leaving) != (b.module, b.leaving):
            return f"after {_told(last)}: which module comes next depends on the batch"
        if not _agree(a.values, b.values, close):
            return _between(last, a)
        last = a
    return f"in the loss function, after {_told(last)}"


def _between(last: _Event | None, now: _Event) -> str:
    if last is None:
        return f"before {now.module} is called: in the loss function, or in what it is given"
    if last.module == now.module and now.leaving and not last.leaving:
        return f"in {now.module}"
    if now.leaving:
        return f"in the forward of {now.module}, after {_told(last)}"
    if not last.leaving:
        return f"in the forward of {last.module}, before {now.module}"
    return f"between {_told(last)} and {now.module}"


def _told(event: _Event | None) -> str:
    return "the model" if event is None else event.module


def _agree(one: list[Tensor], other: list[Tensor], tolerance: Tolerance) -> bool:
    """Values of another shape (a padded length) or number cannot be compared: no difference yet."""
    if len(one) != len(other):
        return True
    pairs = zip(one, other, strict=True)
    return all(a.shape != b.shape or tolerance.same(a, b) for a, b in pairs)


def _reported(rehearsal: Rehearsal, seat: Seat, seed: int) -> _Report:
    report = _Report()

    @contextmanager
    def watch(batch: Any) -> Iterator[None]:
        report.batch = _row(batch, seat)
        with _listening(rehearsal.model, seat, report.events):
            yield

    rehearsal.play(seat.samples, (), seed, watch=watch)
    return report


@contextmanager
def _listening(model: nn.Module, seat: Seat, events: list[_Event]) -> Iterator[None]:
    handles = []
    for path, module in model.named_modules():
        name = f"{path or 'the model itself'} ({type(module).__name__})"

        def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            events.append(_Event(name, False, _row((args, kwargs), seat)))

        def leave(_: nn.Module, args: Any, result: Any, name: str = name) -> None:
            events.append(_Event(name, True, _row(result, seat)))

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _row(values: Any, seat: Seat) -> list[Tensor]:
    """What belongs to the row: of every tensor whose first dimension is the batch."""
    n = len(seat.samples)
    tensors = (x for x in tree_leaves(values) if isinstance(x, Tensor) and x.dim())
    return [seat.of(x) for x in tensors if len(x) == n]
