"""One forward and one backward pass, with weights per row that are known before the sums.

A rule reads the recorded graph (`graph.py`) and bounds each row's gradient norm while the backward
pass runs once, through all of it (`streamed.py`). Then

    sum_i w_i g_i

is finished from what the pass kept of each layer, in float64. No step is differentiated twice, no
forward pass is repeated (so dropout has one mask), and no per-sample gradient is formed of a layer
that has more weights than activations.

Guarantee
---------
What is summed of a row is what was bounded: a function of the numbers that were kept of this row.
Rows of which anything is not finite, and rows without a finite weight, contribute zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from winsor.core.contract import LossError, ProtocolError, Tree
from winsor.gradients.buffers import Layout
from winsor.gradients.graph import Graph, Step, outputs_behind
from winsor.gradients.streamed import StreamedBackward, Visit
from winsor.gradients.view import View

Parameters = Mapping[str, nn.Parameter]


class RecordedForward:
    """One forward pass of the model: its output, and the autograd nodes of the tensors in it."""

    def __init__(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.output = forward(*args, **kwargs)
        leaves = [self.output] if isinstance(self.output, Tensor) else tree_flatten(self.output)[0]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        self.nodes = [x.grad_fn for x in tensors if x.grad_fn is not None]


class ForwardView(View):
    """The view of one physical batch whose graph is still there."""

    has_norms = False

    def __init__(
        self,
        losses: Tensor,
        call: RecordedForward,
        parameters: Parameters,
        names: Mapping[int, str],
        layout: Layout,
    ) -> None:
        self._with_graph = losses
        self.raw_losses = losses.detach()
        self._parameters = parameters
        self._layout = layout
        self._passed: StreamedBackward | None = None
        self._neutralised = 0
        self.keeps_graph = False
        if self.size:
            nodes = outputs_behind(losses, call.nodes, names)
            if not nodes:
                raise LossError(
                    "losses must be computed from the output of the model that is trained. Got "
                    "losses without a graph to it. Call model(x) itself, once, not a part of it."
                )
            self.graph = Graph(nodes, names)

    def streamed(self, watched: Set[Step] = frozenset()) -> StreamedBackward | None:
        """Return the pass over the graph, if it was run with ``watched`` steps."""
        passed = self._passed
        return passed if passed is not None and watched <= passed.watched else None

    def stream(self, visit: Visit, watched: Set[Step] = frozenset()) -> StreamedBackward:
        """Run the pass, which frees the graph (unless the engine was asked to keep it): ``visit``
        the steps with parameters, and take lengths at ``watched`` steps.

        A view is streamed once: asked again, it returns what was found.
        """
        found = self.streamed(watched)
        if found is None:
            if self._passed is not None and not self.keeps_graph:
                raise ProtocolError(
                    "a pass that was streamed has let go of its graph. Ask for all steps at once, "
                    "or give the engine keeps_graph=True."
                )
            found = self._passed = StreamedBackward(self.graph, self.size, watched)
            found.run(self._with_graph, visit, self.keeps_graph)
        return found

    @property
    def seeds(self) -> Sequence[Tensor]:
        """The exact loss gradient at each output of the model."""
        return self._streamed().seeds

    def _streamed(self) -> StreamedBackward:
        return self._passed or self.stream(lambda _, piece: piece.lengths(self.size))

    @property
    def neutralised(self) -> int:
        """Number of rows that were replaced by zero."""
        return self._neutralised

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i. A row that is not finite, or has no finite weight, counts zero."""
        if not isinstance(weights, Tensor):
            self._refuse("weighted_sum with weights by parameter")
        if not self.size:
            return self._packed({})
        passed = self._streamed()
        rows = weights.isfinite() & self.raw_losses.isfinite() & passed.total.isfinite()
        rows &= weights != 0
        self._neutralised = self.size - int(rows.count_nonzero())
        weights = torch.where(rows, weights, 0.0).double()
        return self._packed(passed.sum(weights, rows, last))

    def total(self) -> Tree:
        """Return sum_i g_i."""
        return self.weighted_sum(torch.ones_like(self.raw_losses))

    def _packed(self, found: Mapping[str, Tensor]) -> Tree:
        leaves = [
            found[name] if name in found else torch.zeros_like(p, dtype=torch.float64)
            for name, p in self._parameters.items()
        ]
        return self._layout.packed(leaves)

    def _refuse(self, question: str) -> NoReturn:
        raise ProtocolError(
            f"the forward engine must not be asked for view.{question} of per-sample gradients: it "
            'exists to avoid them. Use engine="auto", which chooses by what the rule needs.'
        )
