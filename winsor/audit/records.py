"""Two neighbouring sets of records, and what the real rule makes of any batch of them.

`GradientRecords` are explicit per-sample gradients: rules see them through the real `RowsView`.
`ModelRecords` are rows of data for a real network, seen through a real engine; the rules that bound
gradients from the forward pass need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.audit.curve import PRESENT
from winsor.contrib.value.engine import ForwardEngine
from winsor.core.contract import Bounded, UnsoundRelease
from winsor.gradients import Engine, Need, make_engine, trainable_parameters
from winsor.gradients.rows import RowsView
from winsor.rules.rule import Rule, State, no_rows

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
    def name(self) -> str: ...
    def count(self, world: int) -> int: ...
    def start(self, rule: Rule, expected_size: float) -> State: ...
    def output(self, rule: Rule, world: int, batch: Mask, state: State) -> Parts:
        """What the real rule hands to the door for this batch of that world."""
        ...


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

    def rows(self, world: int) -> Tensor:
        return torch.cat([self.common, self.present if world == PRESENT else self.absent])

    def count(self, world: int) -> int:
        return len(self.rows(world))

    def start(self, rule: Rule, expected_size: float) -> State:
        parameters = {name: torch.zeros(shape) for name, shape in self.shapes.items()}
        return rule.init(parameters, expected_size)

    def output(self, rule: Rule, world: int, batch: Mask, state: State) -> Parts:
        rows = self.rows(world)[torch.from_numpy(batch)]
        view = RowsView(as_tree(rows, self.shapes), self.loss(rows))
        return rule.bounded(rule.contributions(view, state), state)

    def turned(self) -> GradientRecords:
        return replace(self, common=-self.common, absent=-self.absent, present=-self.present)


@dataclass(frozen=True, eq=False)
class ModelRecords:
    """Rows (inputs, labels) for a classifier. The record in question comes last and is added."""

    name: str
    model: nn.Module
    common: tuple[Tensor, Tensor]
    present: tuple[Tensor, Tensor]

    def count(self, world: int) -> int:
        return len(self.common[1]) + (len(self.present[1]) if world == PRESENT else 0)

    def start(self, rule: Rule, expected_size: float) -> State:
        return rule.init(dict(trainable_parameters(self.model)), expected_size)

    def output(self, rule: Rule, world: int, batch: Mask, state: State) -> Parts:
        parameters = trainable_parameters(self.model)
        if not batch.any():
            return rule.bounded(rule.contributions(no_rows(parameters), state), state)
        pairs = zip(self.common, self.present, strict=True)
        inputs, labels = (torch.cat([a, b] if world == PRESENT else [a]) for a, b in pairs)
        chosen = torch.from_numpy(batch)
        engine = _engine(self.model, rule.needs)
        engine.attach()
        engine.recording(True)
        try:
            losses = F.cross_entropy(self.model(inputs[chosen]), labels[chosen], reduction="none")
            view = engine.view(losses)
            return rule.bounded(rule.contributions(view, state), state)
        finally:
            engine.recording(False)
            engine.detach()


def _engine(model: nn.Module, needs: Need) -> Engine:
    """The engine that training would choose for a rule with these needs; bounds from the forward
    pass are audited as such, also on models of linear layers, where training takes the norms."""
    parameters = trainable_parameters(model)
    if Need.FORWARD in needs:
        return ForwardEngine(model, parameters)
    return make_engine(model, parameters, "auto", needs)


def dimension(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def as_tree(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """(n, dimension) -> {name: (n, *shape)}."""
    pieces = torch.split(rows, [math.prod(shape) for shape in shapes.values()], dim=1)
    return {
        name: piece.reshape(len(rows), *shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


# ------------------------------------------------------------------------------- stacks of runs


def stacked(outputs: Sequence[Parts]) -> Parts:
    """One `Bounded` per part whose value has a leading dimension over ``outputs``.

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
    """A fresh stack of runs: run r gets row ``which[r]`` of the table."""
    index = torch.from_numpy(which)

    def pick(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensor[index] for name, tensor in value.items()}
        return value[index]

    return {name: replace(part, value=pick(part.value)) for name, part in table.items()}


def flat(part: Any) -> Tensor:
    """(runs, coordinates) of a stacked part."""
    leaves = list(part.values()) if isinstance(part, dict) else [part]
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], dim=1)
