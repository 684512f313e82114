"""Two neighbouring sets of records, and what the real rule makes of any batch of them.

`GradientRecords` are explicit per-sample gradients: rules see them through the real `RowsView`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winsor.audit.curve import PRESENT
from winsor.core.contract import Bounded, UnsoundRelease
from winsor.gradients.rows import RowsView
from winsor.rules.rule import Rule, State

Mask = NDArray[np.bool_]
Parts = dict[str, Bounded]
Shapes = Mapping[str, tuple[int, ...]]

MODEL: Shapes = {"body.weight": (4, 5), "body.bias": (4,), "head.weight": (2, 4)}
"""A model-shaped parameter space: several groups, 32 coordinates."""
LINE: Shapes = {"weight": (1,)}
"""One coordinate, for runs of many steps."""


class Records(Protocol):
    """Two datasets that differ in one record."""

    @property
    def name(self) -> str:
        """What the report calls the pair."""

    def count(self, dataset: int) -> int:
        """Return the number of records of one of the datasets."""

    def start(self, rule: Rule, expected_size: float) -> State:
        """Return the rule's state before the first step."""

    def output(self, rule: Rule, dataset: int, batch: Mask, state: State) -> Parts:
        """Return what the real rule hands to the door for this batch of the dataset."""


def _length(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1)


@dataclass(frozen=True, eq=False)
class GradientRecords:
    """Explicit gradients. The record in question comes last."""

    name: str
    common: Tensor  # (n, dimension)
    absent: Tensor  # (0, dimension), or (1, dimension) when a record is replaced
    present: Tensor  # (1, dimension)
    shapes: Shapes = field(default_factory=lambda: MODEL)
    loss: Callable[[Tensor], Tensor] = _length  # a long gradient has a large loss

    def rows(self, dataset: int) -> Tensor:
        """Return the gradients of one of the datasets, the record in question last."""
        return torch.cat([self.common, self.present if dataset == PRESENT else self.absent])

    def count(self, dataset: int) -> int:
        """Return the number of records of one of the datasets."""
        return len(self.rows(dataset))

    def start(self, rule: Rule, expected_size: float) -> State:
        """Return the state of a rule for parameters of these shapes."""
        parameters = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        return rule.init(parameters, expected_size)

    def output(self, rule: Rule, dataset: int, batch: Mask, state: State) -> Parts:
        """Return what the rule hands to the door for the records of ``batch``."""
        rows = self.rows(dataset)[torch.from_numpy(batch)]
        view = RowsView(as_tree(rows, self.shapes), self.loss(rows))
        return rule.bounded(rule.contributions(view, state), state)

    def turned(self) -> GradientRecords:
        """Return the pair with every gradient turned round."""
        return replace(self, common=-self.common, absent=-self.absent, present=-self.present)


def dimension(shapes: Shapes) -> int:
    """Return the number of coordinates of all shapes together."""
    return sum(math.prod(shape) for shape in shapes.values())


def as_tree(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Unfold (n, dimension) rows to a tree {name: (n, *shape)}."""
    pieces = torch.split(rows, [math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: piece.reshape(len(rows), *shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


# ------------------------------------------------------------------------------- stacks of runs


def stacked(outputs: Sequence[Parts]) -> Parts:
    """Return one `Bounded` per part, whose value has a leading dimension over ``outputs``.

    The bounds must be the same for every batch: noise or an event that depends on the data would
    itself be a leak.
    """
    first = outputs[0]
    for output in outputs[1:]:
        for name, part in output.items():
            if (part.sensitivity, part.share) != (first[name].sensitivity, first[name].share):
                raise UnsoundRelease(
                    f"the sensitivity of {name!r} must not depend on the rows. Got "
                    f"{part.sensitivity} and {first[name].sensitivity} for two batches."
                )
    return {
        name: replace(part, value=_stack([output[name].value for output in outputs]))
        for name, part in first.items()
    }


def _stack(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: torch.stack([value[name].detach() for value in values]) for name in values[0]}
    return torch.stack([torch.as_tensor(value).detach() for value in values])


def chosen(table: Parts, which: NDArray[np.int64]) -> Parts:
    """Return a fresh stack of runs: run r gets row ``which[r]`` of the table."""
    index = torch.from_numpy(which)

    def pick(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensor[index] for name, tensor in value.items()}
        return value[index]

    return {name: replace(part, value=pick(part.value)) for name, part in table.items()}


def flat(part: Any) -> Tensor:
    """Fold a stacked part to (runs, coordinates)."""
    leaves = list(part.values()) if isinstance(part, dict) else [part]
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1)
