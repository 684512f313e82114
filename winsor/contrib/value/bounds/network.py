"""Bounds on every row's gradient norm over a whole network, from its recorded graph.

Walk the steps from the outputs towards the inputs with d(step) >= |d loss / d output of step|:

* crossed steps: the output-gradient e is known exactly; their parameters add ``given(e)``;
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
and the weights only. It is not finite where squared activations or gradients overflow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from winsor.contrib.value.bounds import KINDS, kind_of
from winsor.contrib.value.bounds.kind import Factor, Kind, RowBlocks, refuse
from winsor.contrib.value.bounds.spectral import OUTWARDS, OperatorNorms, spectral_norm
from winsor.contrib.value.bounds.stateless import CONTRACTIONS
from winsor.contrib.value.view import Crosses, ForwardView
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import Kept, kept

FLOOR = 1e-12
"""Added to G^2: more than what is lost where squares of tiny gradients underflow."""


def gradient_squares(view: ForwardView, crosses: Crosses, norms: OperatorNorms) -> Tensor:
    """Return (n,) upper bounds on squared norms of the rows' gradients, by what is crossed."""
    rows = RowBlocks(view.size, norms)
    backward = view.cross(crosses)
    with torch.no_grad():
        terms: list[Tensor] = []
        reach: dict[Step, Tensor] = {}
        for step in view.graph.steps:
            kind = kind_of(step, rows)  # refuses what has no proof
            e = backward.known.get(step)
            if e is not None:
                if step.weights:
                    terms.append(_given(step, kind, kept(step, e, rows.n), rows))
                if step not in backward.crossed:
                    reach[step] = rows.gradients(e).sqrt()
            elif step in reach and step.weights:
                root = torch.as_tensor(_own(step, kind, rows)).sqrt()
                terms.append((reach[step] * root).square())
            if step in reach:
                _hand_down(step, kind, rows, reach)
        if not backward.frontier:
            view.certify()
        return _added(terms, view)


def streamed_squares(view: ForwardView, norms: OperatorNorms) -> Tensor:
    """Return (n,) upper bounds on squared norms of the rows' gradients, everything crossed.

    Every step is checked before the first is differentiated: the graph is gone afterwards.
    """
    rows = RowBlocks(view.size, norms)
    kinds = {step: kind_of(step, rows) for step in view.graph.steps}
    with torch.no_grad():
        terms = view.stream(lambda step, piece: _given(step, kinds[step], piece, rows))
        view.certify()
        return _added(terms, view)


def _added(terms: list[Tensor], view: ForwardView) -> Tensor:
    if not terms:
        return view.losses().new_full((view.size,), FLOOR)
    return functools.reduce(torch.add, terms) + FLOOR


def _given(step: Step, kind: Kind, piece: Kept, rows: RowBlocks) -> Tensor:
    assert kind.given is not None  # kind_of refuses weights elsewhere
    return kind.given(step, piece, rows)


def _own(step: Step, kind: Kind, rows: RowBlocks) -> Factor:
    assert kind.own is not None  # kind_of refuses weights elsewhere
    return kind.own(step, rows)


def _hand_down(step: Step, kind: Kind, rows: RowBlocks, reach: dict[Step, Tensor]) -> None:
    for position, below in step.inputs.items():
        factor = kind.back(step, position, rows)
        part = reach[step] if isinstance(factor, float) and factor == 1.0 else reach[step] * factor
        reach[below] = reach[below] + part if below in reach else part


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
        (seed,) = view.seeds
        return squares_of_chain(
            layers, rows.squares(layers[0].input()), view.losses(), seed.reshape(view.size, -1),
            norms,
        )  # fmt: skip


def squares_of_chain(
    layers: Sequence[Layer], inputs: Tensor, losses: Tensor, seed: Tensor, norms: OperatorNorms
) -> Tensor:
    """Return these bounds from the rows' squared lengths, losses and d loss / d logits."""
    formula = math.sqrt(2) * -torch.expm1(-losses.double())
    v = torch.maximum(formula, torch.linalg.vecdot(seed, seed).double().sqrt())
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
    return (total * OUTWARDS).float() * (1 + 1e-6) + FLOOR


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


def _outputs(view: ForwardView, norms: OperatorNorms) -> Tensor:
    return streamed_squares(view, norms)


FORMS: dict[str, Squares] = {
    "value": chain_squares,
    "forward": _forward,
    "outputs": _outputs,
}
