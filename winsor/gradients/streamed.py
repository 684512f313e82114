"""A backward pass that is read while it runs, and that lets go of the graph as it goes.

Each operation with parameters is visited when its output-gradient arrives: a rule bounds what the
rows have there, and `weight_gradients.kept` takes what the weighted sum will need. Everything else
that the forward pass had saved is freed at once, as in plain training, so that the pass holds about
as much at its end as the forward pass did: an output-gradient for each input of a normalisation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from winsor.core.contract import ProtocolError
from winsor.gradients.autograd import gradients, last_gradients, without_graph
from winsor.gradients.graph import Graph, Step
from winsor.gradients.weight_gradients import Kept, kept, outlives_the_graph

Visit = Callable[[Step, Kept], Tensor]
"""From a step and what is kept of it to a value of each row."""


class StreamedBackward:
    """The pass over one graph, run once: ``kept`` and ``found`` of every step with parameters."""

    def __init__(self, graph: Graph, n: int) -> None:
        for step in graph.steps:
            if step.weights and not outlives_the_graph(step):
                raise ProtocolError(
                    f"a pass that frees its graph must know how to finish every layer. Got {step}. "
                    "Use ForwardView.cross, which keeps the graph."
                )
        self.graph = graph
        self.kept: list[Kept] = []
        self.found: list[Tensor] = []
        self.certified = False
        """As for `forward_view.Backward`."""
        self._n = n
        self._seeds: dict[Step, Tensor] = {}

    @property
    def seeds(self) -> list[Tensor]:
        """The exact loss gradient at each output of the model."""
        return [self._seeds[step] for step in self.graph.outputs]

    @without_graph
    def run(
        self, starts: Sequence[Any], seeds: Sequence[Tensor], visit: Visit, keep: bool = False
    ) -> None:
        """Go from ``seeds`` at ``starts`` (tensors or edges) down to the lowest steps."""
        outputs = set(self.graph.outputs)
        watched = [step for step in self.graph.steps if step.weights or step in outputs]
        # The engine hands an output-gradient to a step that it is about to differentiate, and
        # returns it for a step that it was asked for: the lowest ones, below which nothing is left.
        lowest = [step for step in watched if not step.inputs]
        handles = [
            step.node.register_prehook(partial(self._arrived, step, visit))
            for step in watched
            if step.inputs
        ]
        try:
            found = (gradients if keep else last_gradients)(
                starts, seeds, [step.edge for step in lowest]
            )
        finally:
            for handle in handles:
                handle.remove()
        for step, e in zip(lowest, found, strict=True):
            if e is not None:
                self._arrived(step, visit, (e,))

    def _arrived(self, step: Step, visit: Visit, gradients: tuple[Any, ...]) -> None:
        e = gradients[0]  # a normalisation has further outputs, which nobody differentiates
        if not step.users:
            self._seeds[step] = e
        if step.weights:
            piece = kept(step, e, self._n)
            self.kept.append(piece)
            self.found.append(visit(step, piece))

    @without_graph
    def sum(self, weights: Tensor, last: bool = False) -> dict[str, Tensor]:
        """Return sum_i w_i g_i of all parameters that take part; the ``last`` sum uses up what was
        kept, from the outputs down, which is the order from the small layers to the large ones."""
        pieces: list[Any] = list(self.kept)
        total: dict[str, Tensor] = {}
        shared = self._shared() if last else set[int]()
        if last:
            self.kept = []
        for place, piece in enumerate(pieces):
            spent = last and piece.e is not None and _storage(piece.e) not in shared
            total.update(piece.sum(weights, spent))
            if last:
                pieces[place] = None
            del piece
        return total

    def _shared(self) -> set[int]:
        """Find where gradients lie that several steps share (a residual sum hands one to both of
        its sides), or that a repetition starts from."""
        places = Counter(_storage(piece.e) for piece in self.kept if piece.e is not None)
        twice = {place for place, count in places.items() if count > 1}
        return twice | {_storage(seed) for seed in self._seeds.values()}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
