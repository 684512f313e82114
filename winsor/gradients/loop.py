"""The oracle: one backward pass per row. Obviously right, and slow.

    g_i = d losses[i] / d parameters,    for i = 1..n

Works for any model whose rows are independent. Every other engine is tested against this one.

Guarantee
---------
Row i of the view depends on row i alone, but for rounding: autograd runs over the whole batch, in
the parameters' type, and how it groups the places of row i depends on how many rows there are.
Where these cancel, rounding is all that is left. So a guarantee names the condition "what is
recorded of a row is a function of the row". A batch of one instead would not do: losses may reach
parameters past the model's output, and dropout would draw another mask. Infinities are no rounding:
0 * inf is NaN, so a batch that has some is run again once per row, every input row replaced by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from winsor.core.contract import ProtocolError
from winsor.gradients.recorder import refuse_without_graph
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Engine, View


@dataclass
class _Run:
    """One forward pass of the model: enough to repeat it."""

    args: Any
    kwargs: Any
    random: Tensor
    outputs: list[Tensor] = field(default_factory=list)


class LoopEngine(Engine):
    """Per-sample gradients by one `torch.autograd.grad` per row."""

    name = "loop"

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self._model = model
        self._parameters = dict(parameters)
        self._handles: list[Any] = []
        self._on = False
        self._runs: list[_Run] = []

    def attach(self) -> None:
        """Install hooks that note what goes into the model."""
        if not self._handles:
            before = self._model.register_forward_pre_hook(self._begin, with_kwargs=True)
            after = self._model.register_forward_hook(self._end, with_kwargs=True)
            self._handles = [before, after]

    def detach(self) -> None:
        """Remove every trace from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._runs = [], []

    def recording(self, on: bool) -> None:
        """Record the next forward passes, or stop doing so."""
        self._on, self._runs = on, []

    def _begin(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._on and torch.is_grad_enabled():
            self._runs.append(_Run(args, kwargs, torch.get_rng_state()))

    def _end(self, model: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if self._on and torch.is_grad_enabled() and self._runs:
            found = tree_flatten(result)[0]
            self._runs[-1].outputs = [x for x in found if isinstance(x, Tensor) and x.requires_grad]

    def view(self, losses: Tensor) -> View:
        """Run one backward pass per row and return the rows as a view."""
        if losses.grad_fn is None:
            refuse_without_graph()
        runs, self._runs = self._runs, []
        rows = {name: p.new_zeros((len(losses), *p.shape)) for name, p in self._parameters.items()}
        for i in range(len(losses)):
            self._store(rows, i, losses[i], None)
        if not all(row.isfinite().all() for row in rows.values()):
            self._alone(losses, runs, rows)
        return RowsView(rows, losses)

    def _store(self, rows: dict[str, Tensor], i: int, root: Any, seed: Any) -> None:
        found = torch.autograd.grad(
            root, list(self._parameters.values()), seed, retain_graph=True, allow_unused=True
        )
        for (name, row), g in zip(rows.items(), found, strict=True):
            row[i] = torch.zeros_like(self._parameters[name]) if g is None else g

    def _alone(self, losses: Tensor, runs: list[_Run], rows: dict[str, Tensor]) -> None:
        """Run each row again, in a batch that holds nothing but this row."""
        if not runs:
            raise ProtocolError(
                "a batch with non-finite rows can only be taken apart if its forward pass was "
                "recorded. Call attach() and recording(True) before the forward pass."
            )
        outputs = [out for run in runs for out in run.outputs]
        seeds = torch.autograd.grad(
            losses.sum(), outputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for i in range(len(losses)):
            repeated = [out for run in runs for out in self._repeat(run, i, len(losses))]
            only = [torch.zeros_like(seed) for seed in seeds]
            for seed, zero in zip(seeds, only, strict=True):
                zero[i] = seed[i]
            self._store(rows, i, repeated, only)

    def _repeat(self, run: _Run, i: int, n: int) -> list[Tensor]:
        def row_i(x: Any) -> Any:
            if isinstance(x, Tensor) and x.dim() and len(x) == n:
                return x[i : i + 1].expand_as(x).contiguous()
            return x

        on, self._on = self._on, False
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(run.random)  # the same dropout mask
                result = self._model(*tree_map(row_i, run.args), **tree_map(row_i, run.kwargs))
        finally:
            self._on = on
        return [x for x in tree_flatten(result)[0] if isinstance(x, Tensor) and x.requires_grad]

    def explain(self) -> str:
        """Say how each module is served."""
        return "engine loop: one backward pass per row (the oracle)"
