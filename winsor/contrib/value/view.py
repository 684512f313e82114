"""One forward and one backward pass, with weights per row that are known before weight gradients.

A rule reads the recorded graph (`graph.py`), asks for the exact output-gradients of the steps it
wants to cross, and bounds each row's gradient norm from these and from the activations. Then

    sum_i w_i g_i

is finished: each crossed step turns its output-gradients, scaled by w, into weight gradients, and
one plain backward pass goes on from where the crossing stopped. No step is differentiated twice,
and no per-sample gradient is ever formed.

Rows that are not finite contribute zero. 0 * inf is NaN even inside autograd, so when a sum is not
finite the model is run again with the inputs of those rows replaced by zeros: what a row
contributes is a function of that row alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from winsor.core.contract import LossError, ProtocolError, Tree
from winsor.gradients.autograd import gradients, without_graph
from winsor.gradients.buffers import Layout
from winsor.gradients.graph import Graph, Step, outputs_behind, region
from winsor.gradients.streamed import StreamedBackward, Visit
from winsor.gradients.view import View, zeros_like_parameters
from winsor.gradients.weight_gradients import gradients_below, kept, scaled

Crosses = Callable[[Step], bool]
Parameters = Mapping[str, nn.Parameter]


class RecordedForward:
    """One forward pass of the model: what went in, what came out, and the random state before."""

    def __init__(self, forward: Callable[..., Any], args: Any, kwargs: Any, draws: bool) -> None:
        self._forward = forward
        self._args = args
        self._kwargs = kwargs
        self._random = torch.get_rng_state() if draws else None
        self.output = forward(*args, **kwargs)
        self.nodes = graph_nodes(self.output)

    def again(self, kept: Tensor) -> list[Any]:
        """Repeat with zeros in place of the rows that are not ``kept``; the same output nodes."""

        def clean(x: Any) -> Any:
            if not (isinstance(x, Tensor) and x.dim() and len(x) == len(kept)):
                return x
            return torch.where(kept.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros_like(x))

        args, kwargs = tree_map(clean, self._args), tree_map(clean, self._kwargs)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            if self._random is not None:
                torch.set_rng_state(self._random)
            return graph_nodes(self._forward(*args, **kwargs))


def graph_nodes(output: Any) -> list[Any]:
    """Return the autograd nodes of the tensors in ``output``."""
    leaves = [output] if isinstance(output, Tensor) else tree_flatten(output)[0]
    return [x.grad_fn for x in leaves if isinstance(x, Tensor) and x.grad_fn is not None]


class Backward:
    """A backward pass that is run through ``crossed`` steps first, and finished with weights."""

    def __init__(self, graph: Graph, crosses: Crosses) -> None:
        self.graph = graph
        self.crossed = region(graph, crosses)
        reached = [step for step in graph.steps if all(u in self.crossed for u in step.users)]
        self.frontier = [step for step in reached if step not in self.crossed]
        self._wanted = [s for s in reached if s.weights or not s.users or s not in self.crossed]
        self.known: dict[Step, Tensor] = {}
        self.certified = False
        """Set by a rule that has seen, in every row it gives a weight, that all activations and
        output-gradients which enter a weight gradient are finite. Then so is the weighted sum."""

    def run(self, starts: Sequence[Any], seeds: Sequence[Tensor]) -> None:
        """Find the output-gradients of the steps that matter, from ``seeds`` at ``starts``."""
        edges = [step.edge for step in self._wanted]
        found = gradients(starts, seeds, edges)
        self.known = {s: g for s, g in zip(self._wanted, found, strict=True) if g is not None}

    @property
    def seeds(self) -> list[Tensor]:
        """The exact loss gradient at each output of the model."""
        return [self.known[step] for step in self.graph.outputs]

    @without_graph
    def sum(self, weights: Tensor, last: bool = False) -> Tree:
        """Return sum_i w_i g_i of all parameters that take part."""
        found: Tree = {}
        for step, gradient in self.known.items():
            if step.weights and step in self.crossed:
                found.update(kept(step, gradient, len(weights)).sum(weights))
        if self.frontier:
            start = [scaled(self.known[step], weights) for step in self.frontier]
            found.update(gradients_below(self.frontier, start, self._below()))
        return found

    def _below(self) -> dict[str, Tensor]:
        steps = (step for step in self.graph.steps if step not in self.crossed)
        return {w.name: w.tensor for step in steps for w in step.weights.values()}


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
        self._call = call
        self._parameters = parameters
        self._names = names
        self._layout = layout
        self._crosses: Crosses = _nowhere
        self._backward: Backward | StreamedBackward | None = None
        self._neutralised = 0
        self.keeps_graph = False
        if self.size:
            nodes = outputs_behind(losses, call.nodes, self._names)
            if not nodes:
                raise LossError(
                    "losses must be computed from the output of the model that is trained. Got "
                    "losses without a graph to it. Call model(x) itself, once, not a part of it."
                )
            self.graph = Graph(nodes, self._names)
            self._order = [call.nodes.index(node) for node in nodes]

    def cross(self, crosses: Crosses) -> Backward:
        """Run the backward pass through the steps that ``crosses`` accepts. The graph is kept."""
        backward = self._backward
        if isinstance(backward, StreamedBackward):
            if not self.keeps_graph:
                raise ProtocolError(
                    "a pass that was streamed has let go of its graph. Ask for crossings first, or "
                    "give the engine keeps_graph=True."
                )
            backward = None
        if backward is None or crosses is not self._crosses:
            self._crosses = crosses
            self._backward = backward = Backward(self.graph, crosses)
            backward.run([self._with_graph], [torch.ones_like(self.raw_losses)])
        return backward

    def stream(self, visit: Visit) -> list[Tensor]:
        """Return what ``visit`` finds at each step with parameters, in one pass that frees the
        graph (unless the engine was asked to keep it).

        A view is streamed once: asked again, it returns what was found.
        """
        if not isinstance(self._backward, StreamedBackward):
            streamed = StreamedBackward(self.graph, self.size)
            seeds = [torch.ones_like(self.raw_losses)]
            streamed.run([self._with_graph], seeds, visit, keep=self.keeps_graph)
            self._backward, self._crosses = streamed, _nowhere
        return self._backward.found

    def certify(self) -> None:
        """Note that what enters the weighted sum is finite: see `Backward.certified`."""
        self._pass.certified = True

    @property
    def _pass(self) -> Backward | StreamedBackward:
        return self.cross(self._crosses) if self._backward is None else self._backward

    @property
    def seeds(self) -> Sequence[Tensor]:
        """The exact loss gradient at each output of the model."""
        return self._pass.seeds

    @property
    def neutralised(self) -> int:
        """Number of rows that were replaced by zero."""
        return self._neutralised

    def weighted_sum(self, weights: Tensor | Mapping[str, Tensor], last: bool = False) -> Tree:
        """Return sum_i w_i g_i. A row of weight 0 or of a non-finite gradient contributes zero."""
        if not isinstance(weights, Tensor):
            self._refuse("weighted_sum with weights by parameter")
        if not self.size:
            return zeros_like_parameters(self._parameters)
        backward = self._pass
        # Finite unless a loss is not, or a weight is 0 or NaN. (Or on overflow: no harm.)
        usual = math.isfinite(float((self.raw_losses / weights).sum()))
        if not usual:
            weights = (weights + 0 * self.raw_losses).nan_to_num(0.0, 0.0, 0.0)  # 0 * inf is NaN
            self._neutralised = self.size - int(weights.count_nonzero())
        total = self._packed(backward.sum(weights, last))
        if (backward.certified and usual) or _finite(total):
            return total
        return self._sum_of_finite_rows(weights, weights != 0)

    def _sum_of_finite_rows(self, weights: Tensor, kept: Tensor) -> Tree:
        """Repeat the pass without the rows that break it, found by halving."""
        backward = self._repeated(kept)
        total = self._packed(backward.sum(torch.where(kept, weights, 0.0), last=True))
        if _finite(total):
            return total
        rows = kept.nonzero()[:, 0]
        if len(rows) <= 1:
            self._neutralised += len(rows)
            return zeros_like_parameters(self._parameters)
        halves = []
        for half in torch.tensor_split(rows, 2):
            part = torch.zeros_like(kept)
            part[half] = True
            halves.append(self._sum_of_finite_rows(weights, part))
        return {name: halves[0][name] + halves[1][name] for name in self._parameters}

    def _repeated(self, rows: Tensor) -> Backward | StreamedBackward:
        """The forward pass once more with zeros in place of the other rows, and back in the way
        that this view went: what was bounded is then what is summed, to the last digit."""
        nodes = self._call.again(rows)
        graph = Graph([nodes[i] for i in self._order], self._names)
        starts, seeds = [step.edge for step in graph.outputs], _masked(self.seeds, rows)
        if isinstance(self._backward, StreamedBackward):
            streamed = StreamedBackward(graph, self.size)
            streamed.run(starts, seeds, lambda _, __: self.raw_losses)
            return streamed
        backward = Backward(graph, self._crosses)
        backward.run(starts, seeds)
        return backward

    def total(self) -> Tree:
        """Return sum_i g_i."""
        ones = torch.ones_like(self.raw_losses)
        if isinstance(self._backward, StreamedBackward):
            return self._packed(self._repeated(ones.bool()).sum(ones, last=True))
        backward = Backward(self.graph, _nowhere)
        backward.run([self._with_graph], [ones])
        return self._packed(backward.sum(ones))

    def _packed(self, found: Tree) -> Tree:
        everywhere = self._parameters.items()
        leaves = [found[n] if n in found else torch.zeros_like(p) for n, p in everywhere]
        return self._layout.packed(leaves)

    def _refuse(self, question: str) -> NoReturn:
        raise ProtocolError(
            f"the forward engine must not be asked for view.{question} of per-sample gradients: it "
            'exists to avoid them. Use engine="auto", which chooses by what the rule needs.'
        )


def _nowhere(step: Step) -> bool:
    """Cross no step: the weights apply at the outputs, and one plain backward pass follows."""
    return False


def _finite(tree: Tree) -> bool:
    """Infinities and NaN survive a sum; finite entries this small do not add up to infinity."""
    return math.isfinite(sum(float(g.sum()) for g in tree.values()))


def _masked(gradients: Sequence[Tensor], kept: Tensor) -> list[Tensor]:
    """Zero the rows that are not ``kept``, whatever they hold."""
    return [
        torch.where(kept[:, None], g.reshape(len(kept), -1), 0.0).view(g.shape) for g in gradients
    ]
