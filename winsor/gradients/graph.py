"""Read the graph that autograd recorded: which operations ran, on what, with which weights.

The recorded graph is the network as it was really executed. Nothing is traced or declared
beforehand, so branches, functional calls and residual sums need no special care, and a bound that
is derived from this graph holds for the very numbers of the step.

A `Step` is one recorded operation. Its saved tensors (``AddmmBackward0`` keeps the input and the
weight of a linear layer, ``ConvolutionBackward0`` also strides and padding, ...) are read by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from torch import Size, Tensor
from torch.autograd.graph import GradientEdge

from winsor.core.contract import LossError, UnsupportedModel

_LEAF = "torch::autograd::AccumulateGrad"


class Weight:
    """A trainable parameter where an operation uses it, as it is or ``transposed``."""

    __slots__ = ("name", "tensor", "transposed")

    def __init__(self, name: str, tensor: Tensor, transposed: bool) -> None:
        self.name = name
        self.tensor = tensor
        self.transposed = transposed


class Step:
    """One recorded operation: ``inputs`` and ``weights`` by argument position, and its users."""

    __slots__ = ("_shape", "inputs", "node", "op", "users", "weights")

    def __init__(self, node: Any) -> None:
        self.node = node
        self.op: str = node.name()
        self.inputs: dict[int, Step] = {}
        self.weights: dict[int, Weight] = {}
        self.users: list[Step] = []
        self._shape: Size | None = None

    @property
    def shape(self) -> Size:
        """Shape of the operation's output."""
        if self._shape is None:
            self._shape = self.node._input_metadata[0].shape
        return self._shape

    @property
    def edge(self) -> GradientEdge:
        """Place in the graph at which the output-gradient of this operation arrives."""
        return GradientEdge(self.node, 0)

    def saved(self, name: str) -> Any:
        """Read what autograd saved for this operation under ``name``."""
        return getattr(self.node, f"_saved_{name}")

    def __str__(self) -> str:
        """Name the layer by the path of its parameters where it has some, and the operation."""
        op = self.op.removesuffix("Backward0").removesuffix("Backward1")
        paths = sorted({w.name.rpartition(".")[0] or w.name for w in self.weights.values()})
        return f"{', '.join(paths)} ({op})" if paths else op


class Graph:
    """The steps between a model's outputs and its parameters, every step before its inputs."""

    def __init__(self, outputs: Sequence[Any], names: Mapping[int, str]) -> None:
        """``outputs``: autograd nodes; ``names``: id of a trainable parameter -> its name."""
        self._names = names
        self._owner: dict[str, Step] = {}
        self.steps: list[Step] = []
        self.outputs = [Step(node) for node in outputs]
        self._walk({step.node: step for step in self.outputs})
        for step in self.outputs:
            if step.users:
                raise UnsupportedModel(
                    "no output of the model may be computed from another output that the loss "
                    f"also uses. Got {step} used twice. Use the rule Flat or Automatic."
                )

    def _walk(self, found: dict[Any, Step]) -> None:
        """Take the latest operation first: autograd numbers them in order, inputs before users."""
        front = list(found.values())
        while front:
            step = front[0] if len(front) == 1 else max(front, key=_age)
            front.remove(step)
            self.steps.append(step)
            for position, (child, number) in enumerate(step.node.next_functions):
                if child is None or self._take_weight(step, position, child):
                    continue
                below = found.get(child)
                if below is None:
                    below = found[child] = Step(child)
                    front.append(below)
                if number or child._sequence_nr() >= step.node._sequence_nr():
                    _refuse_order(child)
                step.inputs[position] = below
                below.users.append(step)

    def _take_weight(self, step: Step, position: int, child: Any) -> bool:
        """Attach ``child`` to ``step`` if it is a parameter, or the transpose of one."""
        name = child.name()
        transposed = name == "TBackward0"
        if transposed:
            child = child.next_functions[0][0]
            name = "" if child is None else child.name()
        if name != _LEAF:
            return False
        leaf: Tensor = child.variable
        known = self._names.get(id(leaf))
        if known is None:  # frozen for us: a leaf whose gradient nobody releases
            return True
        if known in self._owner:
            raise UnsupportedModel(
                f"{known} must be used once in a forward pass for its gradient to be bounded "
                f"without per-sample work. Got two uses: {self._owner[known]} and {step} (tied "
                "weights, or a module called twice). Use the rule Flat or Automatic."
            )
        step.weights[position] = Weight(known, leaf, transposed)
        self._owner[known] = step
        return True


def _age(step: Step) -> int:
    return int(step.node._sequence_nr())


def _refuse_order(node: Any) -> NoReturn:
    raise UnsupportedModel(
        "the bounds of this engine know operations with one output, run by one thread. Got "
        f"{node.name()}, which is neither. Use the rule Flat or Automatic."
    )


def outputs_behind(losses: Tensor, outputs: Iterable[Any], names: Mapping[int, str]) -> list[Any]:
    """Find the model outputs that ``losses`` are computed from; refuse any other way to a
    parameter."""
    ends = set(outputs)
    found: dict[Any, None] = {}
    seen: set[Any] = set()
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in ends:
            found[node] = None
            continue
        if node.name() == _LEAF and id(node.variable) in names:
            raise LossError(
                "losses must depend on the parameters through the output of the model's last "
                f"forward pass only. Got another way to {names[id(node.variable)]}: a penalty on "
                "the weights (use the optimiser's weight_decay), an inner activation, or an "
                "earlier forward pass. Or use the rule Flat, which accepts any loss."
            )
        stack.extend(child for child, _ in node.next_functions)
    return list(found)


def region(graph: Graph, crosses: Callable[[Step], bool]) -> set[Step]:
    """Find the steps whose backward can be run before the rest: closed from the outputs downwards.

    A step outside the region has either all of its users inside (its output-gradient is then
    known) or none of them.
    """
    inside: set[Step] = set()
    for step in graph.steps:
        if crosses(step) and all(user in inside for user in step.users):
            inside.add(step)
    if len(inside) in (0, len(graph.steps)):
        return inside
    while True:
        mixed = {
            user
            for step in graph.steps
            if 0 < sum(user in inside for user in step.users) < len(step.users)
            for user in step.users
        }
        if not mixed & inside:
            return inside
        inside -= mixed
        for step in graph.steps:
            if step in inside and not all(user in inside for user in step.users):
                inside.discard(step)
