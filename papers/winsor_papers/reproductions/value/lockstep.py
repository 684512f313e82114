"""Runs of paper 3 side by side: one batch of rows moves the weights of every run.

    H = relu(W_1 X'), Z = W_2 H     of every run; the first layer is one product for all of them
    E_2 = dl/dZ,  E_1 = W_2' E_2    output-gradients, so that without biases
    |g_i|^2 = |E_2i|^2 |H_i|^2 + |E_1i|^2 |x_i|^2
    W <- W - rate/m (sum_i w_i g_i + noise)

What differs between the methods are the weights w_i of the rows, and these come from winsor: its
rules for the private ones, `printed_scale` for Algorithm 3 as printed. Given the batches and the
noise of a private training, the weights of a run are that training's up to rounding
(`tests/papers/reproductions/value/test_lockstep.py`).

Nothing here is private: batches and noise come from whoever calls, and there is no ledger. It is
for public rows, where most of a small step would be spent in Python. Rows and sums are float32, for
speed; winsor's are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from winsor.contrib.value.bounds.network import squares_of_chain
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import NetworkGrowth, relu_network
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule, clip_weights
from winsor_papers.value.claim import printed_scale

Noise = Callable[[Tensor], Tensor]
"""Standard normal numbers in the shape of a tensor; they are used before the next call."""


@dataclass(frozen=True)
class AsPrinted:
    """Algorithm 3 with the mean loss of the batch: no rule, for it bounds nothing."""

    max_grad_norm: float


@dataclass(frozen=True)
class Run:
    """One of the runs of a lockstep; without a way to clip it is plain SGD."""

    clip: Rule | AsPrinted | None
    noise_multiplier: float
    lr: float
    std: float = 0.0
    """Of the noise in a coordinate of the sum of gradients."""


@dataclass(frozen=True)
class BiasFree:
    """One run's layer, as `squares_of_chain` wants it."""

    name: str
    weight: Tensor
    bias: Tensor | None = field(default=None, init=False)


@dataclass(frozen=True)
class Seen:
    """What a batch looks like to all runs: (runs, n), or as it says."""

    lengths: Tensor
    """(n,) squared lengths of the rows."""
    losses: Tensor
    seeds: Tensor
    """(runs, n, classes) d loss / d logits."""
    norms: Tensor
    """Of the per-sample gradients."""


class Lockstep:
    """The weights of the runs, all of which start at ``model``: linear layers and ReLU."""

    def __init__(self, model: nn.Module, runs: Sequence[Run], batch_size: float) -> None:
        self.runs = tuple(runs)
        self.layers = [p.detach().repeat(len(runs), 1, 1) for p in model.parameters()]
        """(runs, outputs, inputs) each."""
        self._memories: list[dict[str, object]] = [{} for _ in runs]
        self._scales = torch.tensor([-run.lr / batch_size for run in runs])
        self._limits = torch.tensor([_limit(run.clip) for run in runs])
        self.clipped = torch.zeros(len(runs))
        """Gradients longer than the bound of gradient clipping since the last `frequencies`."""
        self.rows = 0

    @torch.no_grad()
    def advance(self, x: Tensor, y: Tensor, noise: Noise) -> None:
        """One step of every run on the same rows."""
        inputs, gradients, seen = self._backward(x, y)
        self.clipped += (seen.norms > self._limits[:, None]).sum(1)
        self.rows += len(y)
        weights = torch.stack([self._weights(place, seen) for place in range(len(self.runs))])
        weights = weights.to(x).mul_(self._scales[:, None])
        for layer, held, e in zip(self.layers, inputs, gradients, strict=True):
            e *= weights[:, None, :]
            if held is x:
                layer.view(-1, layer.shape[2]).addmm_(e.view(-1, len(y)), x)
            else:
                layer.baddbmm_(e, held.mT)
        for place, run in enumerate(self.runs):
            if run.std:
                for layer in self.layers:
                    drawn = noise(layer[place])
                    layer[place].add_(drawn, alpha=run.std * float(self._scales[place]))

    def _forward(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """The inputs of the layers, rows last but for ``x`` itself, and the logits."""
        inputs, held = [x], x
        for depth, layer in enumerate(self.layers):
            if depth:
                held = torch.bmm(layer, held)
            else:
                held = (layer.view(-1, layer.shape[2]) @ x.T).view(*layer.shape[:2], len(x))
            if depth < len(self.layers) - 1:
                inputs.append(held.relu_())
        return inputs, held

    def _backward(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[Tensor], Seen]:
        """The inputs and the output-gradients of the layers, and what clipping needs of them."""
        inputs, logits = self._forward(x)
        logs = torch.log_softmax(logits, 1)
        own = y.expand(len(self.runs), 1, -1)
        losses = -logs.gather(1, own)[:, 0]
        e = logs.exp_().scatter_add_(1, own, torch.full(own.shape, -1.0))
        seeds = e.mT.contiguous()
        lengths = x.square().sum(1)
        gradients, squares = [e], torch.zeros_like(losses)
        for depth in reversed(range(len(self.layers))):
            held = lengths if depth == 0 else inputs[depth].square().sum(1)
            squares += gradients[0].square().sum(1) * held
            if depth:
                below = torch.bmm(self.layers[depth].mT, gradients[0])
                gradients.insert(0, below.mul_(inputs[depth] > 0))
        return inputs, gradients, Seen(lengths, losses, seeds, squares.sqrt_())

    def _weights(self, place: int, seen: Seen) -> Tensor:
        """(n,) what the rows count for in a run."""
        clip, losses, seed = self.runs[place].clip, seen.losses[place], seen.seeds[place]
        if clip is None:
            return torch.ones_like(losses)
        if isinstance(clip, Flat):
            return clip.weight_of_norm(seen.norms[place])
        x = seen.lengths.double().sqrt()[:, None]  # as long as the rows, and shorter to square
        if isinstance(clip, AsPrinted):
            growth = relu_network(x, self._sizes(place))
            return printed_scale(losses, growth, clip.max_grad_norm)
        assert isinstance(clip, Value), clip
        norms = OperatorNorms(self._memories[place])
        if clip.growth is not None:
            assert isinstance(clip.growth, NetworkGrowth)
            sizes = [norms.matrix(one.name, one.weight) for one in self._of(place)]
            squares = clip.growth.squares_of_chain(
                x, sizes, losses, torch.linalg.vecdot(seed, seed), clip.lower
            )
            return clip_weights(squares.sqrt(), clip.max_grad_norm)
        if clip.form == "value":
            squares = squares_of_chain(self._of(place), seen.lengths, losses, seed, norms)
            return clip_weights(squares.sqrt(), clip.max_grad_norm)
        # the outputs' bound of a linear layer is its norm, and the rule takes the way of `Flat`
        return Flat(clip.max_grad_norm).weight_of_norm(seen.norms[place])

    def _of(self, place: int) -> list[BiasFree]:
        return [BiasFree(str(depth), layer[place]) for depth, layer in enumerate(self.layers)]

    def _sizes(self, place: int) -> list[float]:
        """Spectral norms up to single precision: where nothing is certified, none is rounded up."""
        if len(self.layers) == 1:
            return [1.0]  # of a single layer, no product of the others has a factor
        grams = [
            w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            for w in (layer[place] for layer in self.layers)
        ]
        return [math.sqrt(float(torch.linalg.eigvalsh(gram)[-1])) for gram in grams]

    def frequencies(self) -> list[float]:
        """Per cent of the gradients that were longer than the bound since this was asked."""
        found = (100 * self.clipped / max(1, self.rows)).tolist()
        self.clipped.zero_()
        self.rows = 0
        return [float(share) for share in found]

    @torch.no_grad()
    def accuracies(self, x: Tensor, y: Tensor) -> list[float]:
        """Per cent of the rows that each run classifies as ``y``."""
        right = torch.zeros(len(self.runs))
        for rows, labels in zip(x.split(1000), y.split(1000), strict=True):
            right += (self._forward(rows)[1].argmax(1) == labels).sum(1)
        return [100 * float(count) / len(y) for count in right]


def _limit(clip: Rule | AsPrinted | None) -> float:
    """The threshold whose crossings are counted: that of gradient clipping."""
    return clip.max_grad_norm if isinstance(clip, Flat) else math.inf
