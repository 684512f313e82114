"""The engine that leaves the model's forward pass as it is and reads autograd's graph afterwards.

It remembers the inputs of the last forward pass and the graph nodes of its output. Everything else
happens in `view.py`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from winsor.contrib.value.view import ForwardView, Parameters, RecordedForward
from winsor.core.contract import LossError, ProtocolError, UnsupportedModel
from winsor.gradients.buffers import Layout
from winsor.gradients.engine import FORWARD
from winsor.gradients.graph import Graph
from winsor.gradients.recorder import PatchedForward
from winsor.gradients.support import refuse_unsupported


class ForwardEngine:
    """One forward, one backward; rules bound the norms that they need.

    With ``keeps_graph`` a pass may be looked at more than once (to compare bounds, or with exact
    gradients); it then takes the memory of the whole graph to the end.
    """

    name = "forward"

    def __init__(self, model: nn.Module, parameters: Parameters, keeps_graph: bool = False) -> None:
        self._model = model
        self._keeps_graph = keeps_graph
        self._parameters = dict(parameters)
        self._names = {id(p): name for name, p in parameters.items()}
        self._layout = Layout(parameters)
        self._own: Any = None
        self._attached = False
        self._verified = False
        self._call: RecordedForward | None = None
        self.on = False

    def attach(self) -> None:
        """Record the model's forward passes; refuse models without a proven bound."""
        if self._attached:
            return
        refuse_unsupported(self._model)
        _refuse_tied(self._model, self._parameters)
        _refuse_narrow(self._parameters)
        self._own = self._model.__dict__.get("forward")
        if isinstance(self._own, PatchedForward):
            raise ProtocolError(
                "the model is already attached to an engine. Detach the other run first: two "
                "engines on one model would record each other."
            )
        plain = self._model.forward

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._call = RecordedForward(plain, args, kwargs)
            return self._call.output

        # A patch is cheaper than hooks: a module with hooks takes PyTorch's slow way to forward.
        self._model.__dict__["forward"] = PatchedForward(self._model, cast(Any, self), recorded)
        self._attached = True

    def detach(self) -> None:
        """Give the model its own forward back."""
        if self._attached:
            del self._model.__dict__["forward"]
            if self._own is not None:
                self._model.__dict__["forward"] = self._own
        self._attached, self._call, self.on = False, None, False

    def recording(self, on: bool) -> None:
        """Switch recording on or off, and forget the last pass."""
        self.on, self._call = on, None

    def view(self, losses: Tensor) -> ForwardView:
        """Return the view of the recorded pass whose ``losses`` these are."""
        call, self._call = self._call, None
        if call is None:
            raise ProtocolError(
                "the model itself must be called, with recording on, before its losses are "
                "viewed. Got losses without a recorded forward pass: call model(x), not a part "
                "of the model, inside `for batch in private.batches()`."
            )
        view = ForwardView(losses, call, self._parameters, self._names, self._layout)
        view.keeps_graph = self._keeps_graph
        if not self._verified and len(losses) > 1:
            _refuse_mixed_rows(losses, view.graph)
            self._verified = True
        return view

    def explain(self) -> str:
        """Return what this engine does, in a line."""
        return "engine forward: one forward, one backward, norms bounded instead of computed"


def _refuse_mixed_rows(losses: Tensor, graph: Graph) -> None:
    """Each loss must depend on its own row of the outputs. Seen once, on the first real batch.

    Below the outputs, every operation is checked on every step by the rule that bounds it.
    """
    n = len(losses)
    generator = torch.Generator().manual_seed(0)  # leave the user's random stream alone
    on = torch.rand(n, generator=generator) < 0.5
    on[:2] = torch.tensor([True, False])
    edges = [step.edge for step in graph.outputs]
    for g in torch.autograd.grad(losses, edges, on.to(losses), retain_graph=True):
        if g.shape[0] % n or g.reshape(n, -1)[~on].nan_to_num(0.0, 0.0, 0.0).count_nonzero():
            raise LossError(
                "losses must hold one value per row that depends on this row of the model's output "
                f"only. Got an output of shape {tuple(g.shape)} for {n} losses, or a loss that "
                "looks at other rows (normalised or weighted over the batch)."
            )


def _refuse_tied(model: nn.Module, parameters: Parameters) -> None:
    wanted = {id(p): name for name, p in parameters.items()}
    seen: set[int] = set()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen and id(parameter) in wanted:
            raise UnsupportedModel(
                f"{name} must not be tied to {wanted[id(parameter)]}: a bound per layer does not "
                "bound their common gradient. Use the rule Flat or Automatic."
            )
        seen.add(id(parameter))


def _refuse_narrow(parameters: Parameters) -> None:
    for name, p in parameters.items():
        if p.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModel(
                f"{name} must be float32 or float64: sums of squares in narrower numbers are no "
                f"bounds. Got {p.dtype} instead. Use the rule Flat or Automatic."
            )


FORWARD.append(ForwardEngine)
