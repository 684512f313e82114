"""The runs of a lockstep whose model is `two_layer_cnn`: what `lockstep.py` asks of a stack.

Runs share the batch. Its way through the network is each run's own, but a short one: convolutions
by `cnn_rows.py`, which forms the gradients of a row while they are in the cache, and linear layers
by their factors, |g_i| = |e_i| |h_i|. So a run keeps 9,360 numbers of each row, and sums them with
the weights that its rule wants; no second pass over the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from winsor_reproductions.dc_dpsgd.cnn_rows import SIZES, Rows, as_parameters, fastest
from winsor_reproductions.dc_dpsgd.descent import DescentTask

from winsor.grads.directions import Basis, Kronecker, bases
from winsor.grads.view import Directions
from winsor.models.networks import two_layer_cnn
from winsor.tree import FlatTree, Layout

HIDDEN, LAST = "9", "11"
"""Names of the linear layers."""


def is_cnn(model: nn.Module) -> bool:
    return repr(model) == repr(two_layer_cnn())


class CnnStack:
    """The parameters of all runs, (runs, parameters), each in the order of the model."""

    def __init__(self, task: DescentTask, runs: int, seed: int) -> None:
        torch.manual_seed(seed)
        self._task, self._model = task, task.model()
        assert is_cnn(self._model)
        self.layout = Layout(dict(self._model.named_parameters()))
        with torch.no_grad():  # the seed is theirs in common, and so is the start
            self.flat = self.layout.joined(self.layout.like).flat.repeat(runs, 1)
        self._rows = fastest()

    def parameters(self, run: int) -> dict[str, nn.Parameter]:
        """Those of one run: its part of the stack, so that an optimiser moves both."""
        return {name: nn.Parameter(part) for name, part in self._parts(run).items()}

    def _parts(self, run: int) -> FlatTree:
        return self.layout.over(self.flat[run])

    def model(self, run: int) -> nn.Module:
        """The model with the weights of one run; valid until the next call."""
        self._model.load_state_dict(dict(self._parts(run)))
        return self._model

    def forward(self, x: Tensor, y: Tensor, progress: float) -> CnnBatch:
        """What the runs see of a batch."""
        return CnnBatch(self, x.contiguous(), y, progress)

    def look(self, run: int, batch: CnnBatch) -> CnnView:
        """A run's own way through the network and back."""
        parts, flat = self._parts(run), self.flat[run]
        w3, w4 = parts[f"{HIDDEN}.weight"], parts[f"{LAST}.weight"]
        h = self._rows.features(batch.x, flat)
        z = torch.addmm(parts[f"{HIDDEN}.bias"], h, w3.T)
        a = z.relu()
        logits = torch.addmm(parts[f"{LAST}.bias"], a, w4.T)
        with torch.enable_grad():
            losses = self._task.loss(logits.requires_grad_(), batch.y, batch.progress)
            (e4,) = torch.autograd.grad(losses.sum(), logits)
        e3 = (e4 @ w4).mul_(z > 0)
        rows, squares = self._rows.gradients(e3 @ w3)
        linear = Linear(e3, h), Linear(e4, a)
        return CnnView(self.layout, self._rows, losses.detach(), rows, squares, linear)


class CnnBackward:
    """Leaves the gradient of the mean loss at the parameters of a model, as `backward` would."""

    def __init__(self, task: DescentTask, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        with torch.random.fork_rng(devices=[]):  # whose draws belong to the training
            self._stack = CnnStack(task, 1, seed=0)

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, progress: float) -> None:
        self._stack.flat[0] = self._stack.layout.joined(list(self._parameters.values())).flat
        view = self._stack.forward(x, y, progress).view(0)
        mean = view.weighted_sum(torch.full((len(y),), 1 / len(y)))
        for name, parameter in self._parameters.items():
            parameter.grad = mean[name]


@dataclass(frozen=True, eq=False)
class Linear:
    """Gradients of a linear layer's rows: e_i h_i' for the weight, e_i for the bias."""

    e: Tensor
    h: Tensor

    def squares(self) -> Tensor:
        return self.e.square().sum(1) * (self.h.square().sum(1) + 1)

    def without(self, bad: Tensor) -> Linear:
        zero = torch.tensor(0.0)
        return Linear(*(torch.where(bad[:, None], zero, part) for part in (self.e, self.h)))


class CnnBatch:
    """A batch that the runs have in common."""

    def __init__(self, stack: CnnStack, x: Tensor, y: Tensor, progress: float) -> None:
        self.x, self.y, self.progress = x, y, progress
        self._stack = stack

    def view(self, run: int) -> CnnView:
        return self._stack.look(run, self)

    def add_up(self) -> None:
        """Nothing is left to do: a view sums when it is asked, before the next one is made."""


class CnnView:
    """The `View` of one run, valid until that of the next."""

    def __init__(
        self,
        layout: Layout,
        maker: Rows,
        losses: Tensor,
        rows: Tensor,
        squares: Tensor,
        linear: tuple[Linear, Linear],
    ) -> None:
        self._layout, self._maker, self._linear = layout, maker, linear
        self._losses, self._rows = losses, rows
        self.size = len(losses)
        self._lengths = (squares + linear[0].squares() + linear[1].squares()).sqrt_()
        bad = ~self._lengths.isfinite()
        self.neutralised = int(bad.sum())
        if self.neutralised:
            self._lengths[bad], self._rows[bad] = 0.0, 0.0
            self._losses = torch.where(bad, torch.tensor(0.0), losses)
            self._linear = linear[0].without(bad), linear[1].without(bad)

    def losses(self) -> Tensor:
        return self._losses

    def norms(self) -> Tensor:
        return self._lengths

    def sketch(self, directions: Directions) -> Tensor:
        return sketcher(directions)(self._maker, self._rows, *self._linear)

    def weighted_sum(self, weights: Tensor, last: bool = False) -> FlatTree:
        del last
        tree = self._layout.empty()
        leaves = iter(tree.values())
        for part in as_parameters(weights @ self._rows):
            next(leaves).copy_(part)
        for layer in self._linear:
            scaled = layer.e * weights[:, None]
            torch.mm(scaled.T, layer.h, out=next(leaves))
            torch.sum(scaled, 0, out=next(leaves))
        return tree


@functools.lru_cache(maxsize=4)
def sketcher(directions: Directions) -> Sketcher:
    like = {name: p.detach() for name, p in two_layer_cnn().named_parameters()}
    return Sketcher(bases(directions, like))


class Sketcher:
    """Inner products of gradients in the order of `cnn_rows` with directions of the library."""

    def __init__(self, found: Mapping[str, Basis]) -> None:
        first, *three, second, b, gamma, beta = (found[name] for name in list(found)[: len(SIZES)])
        assert isinstance(first, Kronecker) and isinstance(second, Kronecker)
        taps = second.v.view(16, 16, -1).transpose(0, 1).flatten(0, 1)  # channels of input last
        self._convolutions = [(0, first.v, first.u, first.k), (4, taps, second.u, second.k)]
        vectors = [*three, b, gamma, beta, found[f"{HIDDEN}.bias"], found[f"{LAST}.bias"]]
        widths = (16,) * 3 + (32,) * 3 + (32, 10)
        self._along = torch.cat(
            [basis.rows(torch.eye(width)) for basis, width in zip(vectors, widths, strict=True)]
        )
        self._linear = [found[f"{name}.weight"] for name in (HIDDEN, LAST)]

    def __call__(self, maker: Rows, rows: Tensor, *linear: Linear) -> Tensor:
        """(n, k)."""
        _, *three, _, b, gamma, beta = rows.split(SIZES, 1)
        inner = torch.cat([*three, b, gamma, beta, *(layer.e for layer in linear)], 1) @ self._along
        for place, v, u, k in self._convolutions:
            inner += (maker.along(rows, place, v) @ u).mT.flatten(1)[:, :k]
        for layer, basis in zip(linear, self._linear, strict=True):
            assert isinstance(basis, Kronecker)
            inner += basis.factors(layer.e[:, None], layer.h[:, None])
        return inner
