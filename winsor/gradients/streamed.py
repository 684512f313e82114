"""A backward pass that is read while it runs, and that lets go of the graph as it goes.

Each operation with parameters is visited when its output-gradient arrives: a rule bounds what the
rows have there, and `weight_gradients.kept` takes what the weighted sum will need. Everything else
that the forward pass had saved is freed at once, as in plain training, so that the pass holds about
as much at its end as the forward pass did: an output-gradient for each input of a normalisation.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import ProtocolError
from winsor.gradients.arithmetic import squares
from winsor.gradients.autograd import gradients, last_gradients, without_graph
from winsor.gradients.graph import Graph, Step
from winsor.gradients.weight_gradients import Kept, kept, outlives_the_graph

Visit = Callable[[Step, Kept], Tensor]
"""From a step and what is kept of it to a float64 number of each row, which is not finite where
anything that is kept of the row is not."""


class StreamedBackward:
    """The pass over one graph, run once: what was ``found`` at every step with parameters, and
    squared ``lengths`` of the output-gradients that arrive at steps which are ``watched``."""

    def __init__(self, graph: Graph, n: int, watched: Set[Step] = frozenset()) -> None:
        for step in graph.steps:
            if step.weights and not outlives_the_graph(step):
                raise ProtocolError(
                    f"a pass that frees its graph must know how to finish every layer. Got {step}. "
                    "Use the rule Flat or Automatic."
                )
        self.graph, self.watched = graph, watched
        self.found: dict[Step, Tensor] = {}
        self.lengths: dict[Step, Tensor] = {}
        self.total: Tensor
        """(n,) sums of what was found; not finite for a row of which anything is not."""
        self._kept: list[Kept] = []
        self._n = n
        self._seeds: dict[Step, Tensor] = {}

    @property
    def seeds(self) -> list[Tensor]:
        """The exact loss gradient at each output of the model."""
        return [self._seeds[step] for step in self.graph.outputs]

    @without_graph
    def run(self, losses: Tensor, visit: Visit, keep: bool = False) -> None:
        """Go from the sum of ``losses`` down to the lowest steps."""
        read = self.watched | set(self.graph.outputs)
        read |= {step for step in self.graph.steps if step.weights}
        # The engine hands an output-gradient to a step that it is about to differentiate, and
        # returns it for a step that it was asked for: the lowest ones, below which nothing is left.
        steps = [step for step in self.graph.steps if step in read]
        lowest = [step for step in steps if not step.inputs]
        handles = [
            step.node.register_prehook(partial(self._arrived, step, visit))
            for step in steps
            if step.inputs
        ]
        try:
            found = (gradients if keep else last_gradients)(
                [losses], [torch.ones_like(losses)], [step.edge for step in lowest]
            )
        finally:
            for handle in handles:
                handle.remove()
        for step, e in zip(lowest, found, strict=True):
            if e is not None:
                self._arrived(step, visit, (e,))
        zeros = torch.zeros(self._n, dtype=torch.float64, device=losses.device)
        self.total = torch.stack([zeros, *self.found.values()]).sum(0)

    def _arrived(self, step: Step, visit: Visit, gradients: tuple[Any, ...]) -> None:
        e = gradients[0]  # a normalisation has further outputs, which nobody differentiates
        if not step.users:
            self._seeds[step] = e
        if step in self.watched:
            self.lengths[step] = squares(e.reshape(self._n, -1))
        if step.weights:
            piece = kept(step, e, self._n)
            self._kept.append(piece)
            self.found[step] = visit(step, piece)

    @without_graph
    def sum(self, weights: Tensor, rows: Tensor, last: bool = False) -> dict[str, Tensor]:
        """Return sum_i w_i g_i of all parameters that take part, over ``rows``; the ``last`` sum
        lets go of what was kept, from the outputs down."""
        pieces, total = list(self._kept), dict[str, Tensor]()
        if last:
            self._kept = []
        while pieces:
            total.update(pieces.pop(0).sum(weights, rows))
        return total
