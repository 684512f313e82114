"""The runs of a lockstep whose model is `scattering_cnn`: what `lockstep.py` asks of a stack.

Runs share the batch, and what is known of its rows before any run begins: the inner products of the
patches x_p that the first convolution sees. From them the length of its gradient follows without
the gradient, |sum_p x_p e_p'|^2 = sum_pq <x_p, x_q> <e_p, e_q>. A run goes through the network and
back once, some hundred rows at a time, and keeps of every row what its gradients are made of:
inputs of the layers and gradients at their outputs. Lengths come from them without the gradients
(`small_convolutions.py`), and then the sum that the rule wants. Rows and sums are float32, as in
`lockstep.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from winsor.core.buffers import FlatTree
from winsor.gradients.buffers import Layout
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask, cross_entropy
from winsor_papers.reproductions.dc_dpsgd.flat_stack import FlatStack
from winsor_papers.reproductions.modelmix.scattering_problem import scattering_cnn
from winsor_papers.reproductions.modelmix.small_convolutions import (
    PLACES,
    Products,
    fastest,
    patches,
)

CHUNK = 256
"""Rows at a time: what is kept of them stays in the cache from layer to layer."""
WIDTHS = {"h1": (16, 16), "e1": (16, 16), "h2": (512,), "e2": (16, 32), "a": (32,), "e3": (32,),
          "e4": (10,)}  # fmt: skip
"""Of a row: inputs h1, h2, a of the second and of the linear layers; gradients e at outputs."""


def is_scattering_cnn(task: DescentTask) -> bool:
    """Whether this is the network, with the loss, that is known here."""
    return task.loss is cross_entropy and repr(task.model()) == repr(scattering_cnn())


class ScatteringStack(FlatStack):
    """What runs of the network see of a batch; there is room for one run's view at a time."""

    def __init__(self, task: DescentTask, runs: int, seed: int) -> None:
        super().__init__(task, runs, seed)
        self.products = fastest()
        self._room: dict[str, Tensor] = {}

    def alongside(self, x: Tensor) -> tuple[Tensor, ...]:
        """(n, places, places): inner products of the patches, with the one that meets the bias."""
        inner = x.new_empty(len(x), PLACES, PLACES)
        for some, to in zip(x.split(CHUNK), inner.split(CHUNK), strict=True):
            seen = patches(0, some)
            torch.matmul(seen.mT, seen, out=to).add_(1)
        return (inner,)

    def forward(self, x: Tensor, y: Tensor, inner: Tensor, progress: float) -> ScatteringBatch:
        """What the runs have in common."""
        del progress
        return ScatteringBatch(self, x.contiguous(), y, inner)

    def room(self, n: int) -> dict[str, Tensor]:
        """For n rows."""
        if not self._room or n > len(self._room["a"]):
            self._room = {name: torch.empty(n + n // 8, *w) for name, w in WIDTHS.items()}
        return {name: part[:n] for name, part in self._room.items()}


class ScatteringBatch:
    """A batch that the runs have in common."""

    def __init__(self, stack: ScatteringStack, x: Tensor, y: Tensor, inner: Tensor) -> None:
        self._stack, self._x, self._y, self._inner = stack, x, y, inner

    def view(self, run: int) -> ScatteringView:
        """A run's own way through the network and back."""
        stack, x, n = self._stack, self._x, len(self._x)
        kept, parameters = stack.room(n), list(stack.parts(run).values())
        squares, losses = x.new_empty(n), x.new_empty(n)
        for start in range(0, n, CHUNK):
            part = slice(start, start + CHUNK)
            some = {name: whole[part] for name, whole in kept.items()}
            losses[part] = _there(stack.products, parameters, x[part], self._y[part], some)
            squares[part] = _back(stack.products, parameters, self._inner[part], some)
        lengths = squares.double().sqrt_()
        return ScatteringView(stack.layout, stack.products, x, kept, lengths, losses)

    def add_up(self) -> None:
        """Nothing is left to do: a view sums when it is asked, before the next one is made."""


def by_places(weight: Tensor) -> Tensor:
    """The first linear weight, (32, 512), with its inputs in the order of the maps here: all
    channels of a place, then those of the next."""
    return weight.view(32, 32, 16).mT.reshape(32, 512)


def _there(
    products: Products, parameters: list[Tensor], x: Tensor, y: Tensor, kept: dict[str, Tensor]
) -> Tensor:
    """To the losses; ``kept`` gets the inputs of the layers, and the gradient at the logits."""
    w1, b1, w2, b2, w3, b3, w4, b4 = parameters
    _tanh(products.forward(0, x, w1, b1), kept["h1"])
    _tanh(products.forward(1, kept["h1"], w2, b2).flatten(1), kept["h2"])
    _tanh(torch.addmm(b3, kept["h2"], by_places(w3).T), kept["a"])
    logits = torch.addmm(b4, kept["a"], w4.T)
    torch.softmax(logits, 1, out=kept["e4"])
    kept["e4"].sub_(F.one_hot(y, logits.shape[1]))
    return F.cross_entropy(logits, y, reduction="none")


def _tanh(z: Tensor, out: Tensor) -> None:
    """To within 2e-7, in a fifth of the time that `torch.tanh` takes."""
    torch.mul(z, 2, out=out).sigmoid_().mul_(2).sub_(1)


def _back(
    products: Products, parameters: list[Tensor], inner: Tensor, kept: dict[str, Tensor]
) -> Tensor:
    """Squared lengths of the rows' gradients; ``kept`` gets the other gradients at outputs."""
    _, _, w2, _, w3, _, w4, _ = parameters
    h1, h2, a, e1, e2, e3, e4 = (kept[name] for name in ("h1", "h2", "a", "e1", "e2", "e3", "e4"))
    torch.mul(e4 @ w4, 1 - a * a, out=e3)
    torch.mul(e3 @ by_places(w3), 1 - h2 * h2, out=e2.flatten(1))
    torch.mul(products.back(e2, w2), 1 - h1 * h1, out=e1)
    squares = (e1 * (inner @ e1)).sum((1, 2)).clamp_(min=0) + products.squares(h1, e2)
    for e, h in ((e3, h2), (e4, a)):
        squares += e.square().sum(1) * (h.square().sum(1) + 1)
    return squares


class ScatteringView:
    """What a rule that asks for lengths sees of one run, valid until the view of the next."""

    def __init__(
        self, layout: Layout, products: Products, x: Tensor, kept: dict[str, Tensor],
        lengths: Tensor, losses: Tensor,
    ) -> None:  # fmt: skip
        self._layout, self._products, self._x, self._kept = layout, products, x, kept
        self.size = len(lengths)
        bad = ~lengths.isfinite()
        self.neutralised = int(bad.sum())
        if self.neutralised:
            self._x = x.masked_fill(bad[:, None, None, None], 0.0)
            for part in (lengths, losses, *kept.values()):
                part[bad] = 0.0
        self._lengths, self._losses = lengths, losses

    def losses(self) -> Tensor:
        return self._losses

    def norms(self) -> Tensor:
        return self._lengths

    def weighted_sum(self, weights: Tensor, last: bool = False) -> FlatTree:
        del last
        kept, weights = self._kept, weights.to(self._x)
        found: list[Tensor] = []
        found += self._products.summed(0, self._x, kept["e1"], weights)
        found += self._products.summed(1, kept["h1"], kept["e2"], weights)
        first = kept["e3"] * weights[:, None]
        by_channels = (first.T @ kept["h2"]).view(32, 16, 32).mT.reshape(32, 512)
        second = kept["e4"] * weights[:, None]
        found += [by_channels, first.sum(0), second.T @ kept["a"], second.sum(0)]
        return self._layout.packed(found)
