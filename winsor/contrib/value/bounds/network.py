"""Bounds on every row's gradient norm over a whole network, from its recorded graph.

Walk the steps from the outputs towards the inputs with d(step) >= |d loss / d output of step|:

* crossed steps: the output-gradient e is used; their parameters add ``given(e)``;
* where crossing stops, d = |e|;
* below: d(x) = sum over the users of x of b(user) d(user), and parameters add a^2 d^2.

    G^2 = sum_crossed given(e)  +  sum_below a^2 d^2

The value form: bound gradients from the loss value, the input norm and the weights (appendix D).

For z_j = W_j h_{j-1} + b_j, h_j = phi(z_j) with phi(0) = 0 and slope at most 1, and H layers:

    u_0 = |x|,   u_j = S(W_j) u_{j-1} + |b_j| >= |h_j|
    G^2 = v^2 sum_l (u_{l-1}^2 + [bias]) prod_{j>l} S(W_j)^2,    v >= |d loss / d logits|

For cross-entropy the loss gradient is p - e_y and f = -log p_y, so |p - e_y|^2 <= (1 - p_y)^2 +
(1 - p_y)^2: v = sqrt(2) (1 - exp(-f)). Without biases this is the paper's bound with a smaller
constant. The entries of p - e_y sum to zero, so W_H may be centred over classes:

    W_H^T d = (W_H - 1 mu^T)^T d + mu sum(d),    mu = mean row of W_H

which is kept as an equation, sum(d) included. Likewise v is the larger of the formula and the exact
|d|: for cross-entropy that is the formula, and for any other loss the bound still holds.

Guarantee
---------
G is at least the norm of the row's gradient over all trainable parameters, and depends on this row
and the weights only, in exact arithmetic. `summed_squares`, everything crossed, is at least the
norm of the numbers that are summed, in float64: `Value` takes the larger of it and any other form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from typing import Protocol

import torch
from torch import Tensor

from winsor.contrib.value.bounds import KINDS, kind_of
from winsor.contrib.value.bounds.kind import Factor, Kind, RowBlocks, refuse
from winsor.contrib.value.bounds.spectral import OUTWARDS, OperatorNorms, spectral_norm
from winsor.contrib.value.bounds.stateless import CONTRACTIONS
from winsor.contrib.value.view import ForwardView
from winsor.gradients.arithmetic import squares
from winsor.gradients.graph import Step, region
from winsor.gradients.weight_gradients import Kept

Crosses = Callable[[Step], bool]


def gradient_squares(view: ForwardView, crosses: Crosses, norms: OperatorNorms) -> Tensor:
    """Return (n,) upper bounds on squared norms of the rows' gradients, by what is crossed."""
    rows, crossed = RowBlocks(view.size, norms), region(view.graph, crosses)
    frontier = {
        step
        for step in view.graph.steps
        if step not in crossed and all(user in crossed for user in step.users)
    }
    kinds = {step: kind_of(step, rows) for step in view.graph.steps}
    below = [step for step in view.graph.steps if step not in crossed]
    with torch.no_grad():  # before the pass, which frees what the forward pass had saved
        own = {s: _own(s, kinds[s], rows) for s in below if s.weights and s not in frontier}
        back = {
            (step, at): kinds[step].back(step, at, rows) for step in below for at in step.inputs
        }
        total = summed_squares(view, norms, frontier)
        passed = view.streamed(frontier)
        assert passed is not None
        terms, reach = [torch.zeros_like(total)], dict[Step, Tensor]()
        for step in view.graph.steps:
            if step in frontier and step in passed.lengths:
                reach[step] = passed.lengths[step].sqrt()
            if step in passed.found and (step in crossed or step in frontier):
                terms.append(passed.found[step])
            elif step in reach and step in own:
                terms.append((reach[step] * torch.as_tensor(own[step]).double().sqrt()).square())
            for at, user in step.inputs.items() if step in reach else ():
                part = reach[step] * back[step, at]
                reach[user] = reach[user] + part if user in reach else part
        return torch.stack(terms).sum(0)


def summed_squares(
    view: ForwardView, norms: OperatorNorms, watched: Set[Step] = frozenset()
) -> Tensor:
    """Return (n,) upper bounds on squared norms of the rows' gradients, everything crossed.

    Every step is checked before the first is differentiated: the graph is gone afterwards.
    """
    passed = view.streamed(watched)
    if passed is None:
        rows = RowBlocks(view.size, norms)
        kinds = {step: kind_of(step, rows) for step in view.graph.steps}
        with torch.no_grad():
            passed = view.stream(
                lambda step, piece: _given(step, kinds[step], piece, rows), watched
            )
    return passed.total


def _given(step: Step, kind: Kind, piece: Kept, rows: RowBlocks) -> Tensor:
    assert kind.given is not None  # kind_of refuses weights elsewhere
    return kind.given(step, piece, rows)


def _own(step: Step, kind: Kind, rows: RowBlocks) -> Factor:
    assert kind.own is not None  # kind_of refuses weights elsewhere
    return kind.own(step, rows)


_LINEAR = ("AddmmBackward0", "MmBackward0")
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


class Layer(Protocol):
    """A linear layer, as far as its bound is concerned."""

    @property
    def name(self) -> str:
        """Name of the weight."""

    @property
    def weight(self) -> Tensor:
        """(outputs, inputs) weight."""

    @property
    def bias(self) -> Tensor | None:
        """(outputs,) bias, if there is one."""


class BoundedLayer:
    """One linear layer of the chain, from a recorded pass."""

    def __init__(self, step: Step) -> None:
        self.step = step
        position = 2 if step.op == "AddmmBackward0" else 1
        weight, bias = step.weights.get(position), step.weights.get(0)
        if weight is None:
            refuse(step, "has frozen weights, which the value form does not handle")
        self.name = weight.name
        self.weight = weight.tensor.detach()
        self.bias = bias.tensor.detach() if bias and step.op == "AddmmBackward0" else None
        if step.op == "AddmmBackward0" and bias is None:
            refuse(step, "has a frozen bias, which the value form does not handle")

    def input(self) -> Tensor:
        """Return what the layer was applied to."""
        x: Tensor = self.step.saved("mat1" if self.step.op == "AddmmBackward0" else "self")
        return x


def chain_squares(view: ForwardView, norms: OperatorNorms) -> Tensor:
    """Return (n,) appendix D's bounds on the squared norms of the rows' gradients."""
    rows = RowBlocks(view.size, norms)
    layers = linear_chain(view, rows)  # from the input to the logits
    with torch.no_grad():
        inputs = rows.squares(layers[0].input())
        summed_squares(view, norms)
        (seed,) = view.seeds
        return squares_of_chain(layers, inputs, view.losses(), seed.flatten(1), norms)


def squares_of_chain(
    layers: Sequence[Layer], inputs: Tensor, losses: Tensor, seed: Tensor, norms: OperatorNorms
) -> Tensor:
    """Return these bounds from the rows' squared lengths, losses and d loss / d logits."""
    formula = math.sqrt(2) * -torch.expm1(-losses.double())
    v = torch.maximum(formula, squares(seed).sqrt())
    sizes = [inputs.double().sqrt()]
    for layer in layers[:-1]:
        size = sizes[-1] * norms.matrix(layer.name, layer.weight)
        sizes.append(size if layer.bias is None else size + float(layer.bias.double().norm()))
    reach = v
    total = torch.zeros_like(v)
    for position in reversed(range(len(layers))):
        layer = layers[position]
        own = sizes[position].square() + float(layer.bias is not None)
        total += own * reach.square()
        if position:
            last = position == len(layers) - 1
            reach = (
                _last(layer, v, seed) if last else reach * norms.matrix(layer.name, layer.weight)
            )
    return total * OUTWARDS


def _last(layer: Layer, v: Tensor, seed: Tensor) -> Tensor:
    """|W_H^T d| with W_H centred over classes."""
    weight = layer.weight.double()
    mean = weight.mean(0)
    offset = seed.double().sum(1).abs() * float(mean.norm())
    return v * spectral_norm(weight - mean) + offset


def linear_chain(view: ForwardView, rows: RowBlocks) -> list[BoundedLayer]:
    """Return the linear layers from input to output; refuse anything but a plain chain."""
    layers: list[BoundedLayer] = []
    for step in view.graph.steps:
        kind_of(step, rows)
        if len(step.users) > 1 or len(step.inputs) > 1:
            refuse(step, 'is not part of a plain chain, which form="value" needs (try "outputs")')
        if step.op in _LINEAR:
            if rows.blocks(step) != 1:
                refuse(step, 'acts on several positions per row (try form="outputs")')
            layers.append(BoundedLayer(step))
        elif step.op not in CONTRACTIONS + _VIEWS:
            refuse(step, 'is not a layer of appendix D (try form="outputs")')
    if not layers or view.graph.steps[0] is not layers[0].step:
        refuse(view.graph.outputs[0], 'must be a linear layer for form="value" (try "outputs")')
    return layers[::-1]


Squares = Callable[[ForwardView, OperatorNorms], Tensor]


def above_convolutions(step: Step) -> bool:
    """Accept what is cheap to differentiate, down to the last convolution."""
    return step.op in KINDS and KINDS[step.op].local


def _forward(view: ForwardView, norms: OperatorNorms) -> Tensor:
    return gradient_squares(view, above_convolutions, norms)


FORMS: dict[str, Squares] = {
    "value": chain_squares,
    "forward": _forward,
    "outputs": summed_squares,
}
