"""Bound every row's gradient norm over a whole network from its recorded graph.

Walk the steps from the outputs towards the inputs with d(step) >= |d loss / d output of step|:

* crossed steps: the output-gradient e is known exactly; their parameters add ``given(e)``;
* where crossing stops, d = |e|;
* below: d(x) = sum over the users of x of b(user) d(user), and parameters add a^2 d^2.

    G^2 = sum_crossed given(e)  +  sum_below a^2 d^2

Guarantee
---------
G is at least the norm of the row's gradient over all trainable parameters, and depends on this row
and the weights only. It is not finite where squared activations or gradients overflow.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from winsor.contrib.value.bounds import kind_of
from winsor.contrib.value.bounds.kind import Factor, Kind, RowBlocks
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.view import Crosses, ForwardView
from winsor.gradients.graph import Step
from winsor.gradients.weight_gradients import Kept, kept

FLOOR = 1e-12
"""Added to G^2: more than what is lost where squares of tiny gradients underflow."""


def gradient_squares(view: ForwardView, crosses: Crosses, norms: OperatorNorms) -> Tensor:
    """(n,) upper bounds on the squared norms of the rows' gradients, by what is crossed."""
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
    """(n,) upper bounds on the squared norms of the rows' gradients, everything crossed.

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
