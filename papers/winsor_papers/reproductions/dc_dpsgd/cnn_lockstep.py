"""The runs of a lockstep whose model is `two_layer_cnn`: what `lockstep.py` asks of a stack.

Runs share the batch. Its way through the network is each run's own, but a short one: `cnn_rows.py`
forms the gradients of a row while they are in the cache, those of linear layers as their factors,
|g_i| = |e_i| |h_i|. So a run keeps 9,360 numbers of each row, and sums them with the weights that
its rule wants; no second pass over the batch. Rows and sums are float32, as in `lockstep.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from winsor.core.buffers import FlatTree
from winsor.gradients.buffers import Layout
from winsor.gradients.directions import Basis, Kronecker, bases
from winsor.gradients.view import Directions
from winsor.models.networks import two_layer_cnn
from winsor_papers.reproductions.dc_dpsgd.cnn_rows import (
    SIZES,
    Gradients,
    Maker,
    Margins,
    as_parameters,
    fastest,
)
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.dc_dpsgd.flat_stack import FlatStack

HIDDEN, LAST = "9", "11"
"""Names of the linear layers."""


def is_cnn(task: DescentTask) -> bool:
    """Whether this is the network, with a loss, that `cnn_rows.py` knows."""
    known = Margins.of(task.loss, 0.0) is not None
    return known and repr(task.model()) == repr(two_layer_cnn())


class CnnStack(FlatStack):
    """What runs of the network see of a batch."""

    def __init__(self, task: DescentTask, runs: int, seed: int) -> None:
        super().__init__(task, runs, seed)
        self._maker = fastest()

    def forward(self, x: Tensor, y: Tensor, progress: float) -> CnnBatch:
        """What the runs see of a batch."""
        loss = Margins.of(self.task.loss, progress)
        assert loss is not None
        return CnnBatch(self, x, y, loss)

    def look(self, run: int, batch: CnnBatch) -> CnnView:
        """A run's own way through the network and back."""
        found = self._maker.gradients(batch.x, batch.y, self.flat[run], batch.loss)
        return CnnView(self.layout, self._maker, found)


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
            parameter.grad = mean[name].to(parameter.dtype)


class CnnBatch:
    """A batch that the runs have in common."""

    def __init__(self, stack: CnnStack, x: Tensor, y: Tensor, loss: Margins) -> None:
        self.x, self.y, self.loss = x, y, loss
        self._stack = stack

    def view(self, run: int) -> CnnView:
        return self._stack.look(run, self)

    def add_up(self) -> None:
        """Nothing is left to do: a view sums when it is asked, before the next one is made."""


class CnnView:
    """The `View` of one run, valid until that of the next."""

    def __init__(self, layout: Layout, maker: Maker, found: Gradients) -> None:
        self._layout, self._maker = layout, maker
        self._losses, self._rows, self._linear = found.losses, found.rows, found.linear
        self.size = len(found.losses)
        self._lengths = found.squares.double().sqrt_()
        bad = ~self._lengths.isfinite()
        self.neutralised = int(bad.sum())
        if self.neutralised:
            parts = (part for pair in found.linear for part in pair)
            for part in (self._lengths, self._rows, self._losses, *parts):
                part[bad] = 0.0

    def losses(self) -> Tensor:
        return self._losses

    def norms(self) -> Tensor:
        return self._lengths

    def sketch(self, directions: Directions) -> Tensor:
        return sketcher(directions)(self._maker, self._rows, *self._linear).double()

    def weighted_sum(self, weights: Tensor, last: bool = False) -> FlatTree:
        del last
        weights = weights.to(self._rows)
        found = as_parameters(weights @ self._rows)
        for e, h in self._linear:
            scaled = e * weights[:, None]
            found += [scaled.T @ h, scaled.sum(0)]
        return self._layout.packed(found)


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
        ).float()
        self._linear = [found[f"{name}.weight"] for name in (HIDDEN, LAST)]

    def __call__(self, maker: Maker, rows: Tensor, *linear: tuple[Tensor, Tensor]) -> Tensor:
        """(n, k)."""
        _, *three, _, b, gamma, beta = rows.split(SIZES, 1)
        inner = torch.cat([*three, b, gamma, beta, *(e for e, _ in linear)], 1) @ self._along
        for place, v, u, k in self._convolutions:
            inner += (maker.along(rows, place, v) @ u).mT.flatten(1)[:, :k]
        for (e, h), basis in zip(linear, self._linear, strict=True):
            assert isinstance(basis, Kronecker)
            inner += basis.factors(e[:, None], h[:, None])
        return inner
