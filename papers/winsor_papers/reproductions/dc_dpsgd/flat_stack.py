"""The weights of all runs of a lockstep, each in one piece: what every network's stack begins with.

A stack says how runs see a batch that they share (`lockstep.py`). The library's optimiser, mixing
and projection work on parameters that are views of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from winsor.core.buffers import FlatTree
from winsor.gradients.buffers import Layout
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask


class FlatStack:
    """The parameters of all runs, (runs, parameters), each in the order of the model."""

    def __init__(self, task: DescentTask, runs: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.task, self._model = task, task.model()
        self.layout = Layout(dict(self._model.named_parameters()))
        with torch.no_grad():  # the seed is theirs in common, and so is the start
            self.flat = self.layout.joined(self.layout.like).flat.repeat(runs, 1)

    def alongside(self, x: Tensor) -> tuple[Tensor, ...]:
        """What `forward` is given of every row beside it, the same whatever the weights are."""
        del x
        return ()

    def parameters(self, run: int) -> dict[str, nn.Parameter]:
        """Those of one run: its part of the stack, so that an optimiser moves both."""
        return {name: nn.Parameter(part) for name, part in self.parts(run).items()}

    def parts(self, run: int) -> FlatTree:
        return self.layout.over(self.flat[run])

    def model(self, run: int) -> nn.Module:
        """The model with the weights of one run; valid until the next call."""
        self._model.load_state_dict(dict(self.parts(run)))
        return self._model
