"""Layers for hostile rows (`hostile_rows.py`): a model whose recorded factors are what rows bring.

Trained weights are 0, 1 or -1 and losses are <out_i, e_i> with constants e_i, so that the factors
of a row's gradient are x_i and e_i exactly, wherever in a batch the row stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Kind:
    """Some layers, and the shapes of what one row brings. ``build`` gives modules whose forward
    takes the inputs and returns one output for each output-gradient."""

    build: Callable[[], nn.Module]
    fields: dict[str, tuple[int, ...]]
    channels_first: bool = False
    tokens: int = 0
    small: bool = False
    """True if 16,384 rows are no burden."""


class Each(nn.Module):
    """Layers that each take an input of their own, or all the first one."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        padded = [*inputs, *[inputs[0]] * (len(self.layers) - len(inputs))]
        found = [layer(x) for layer, x in zip(self.layers, padded, strict=True)]
        return [out[0] if isinstance(out, tuple) else out for out in found]


class Twice(nn.Module):
    """One layer that is called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [self.layer(x) for x in inputs]


class Tied(nn.Module):
    """Token embedding and output layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, tokens: Tensor) -> list[Tensor]:
        return [self.head(x), self.table(tokens)]


class Attention(nn.Module):
    """Uniform attention: query and key are zero, value and output are the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def settle(self) -> None:
        self.inner.in_proj_weight.data[8:] = torch.eye(4)
        self.inner.out_proj.weight.data.copy_(torch.eye(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.inner(x, x, x, need_weights=False)[0]]


class LowRank(nn.Module):
    """A frozen map with an adapter whose factors pick coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def settle(self) -> None:
        self.down.weight.data.copy_(torch.eye(2, 6))
        self.up.weight.data.copy_(torch.eye(5, 2))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.base(x) + self.up(self.down(x))]


class Positions(nn.Module):
    """An embedding of positions that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(2, 2), nn.Embedding(3, 5)

    def forward(self, x: Tensor) -> list[Tensor]:
        where = self.table(torch.arange(3))
        return [self.layer(x), where if where.dim() == 3 else where.expand(len(x), -1, -1)]


class Bare(nn.Module):
    """Parameters without a layer: torch.func serves them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x * self.scale + self.shift]


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 5, mode=mode)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        if len(inputs) == 1:
            return [self.bag(inputs[0])]
        return [self.bag(inputs[1], per_sample_weights=inputs[0])]


class Conv1D(nn.Module):
    """The layer of that name in Hugging Face transformers: weight stored as (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.zeros(nx, nf)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def one_layer(
    layer: Callable[[], nn.Module], x: tuple[int, ...], e: tuple[int, ...], **o: Any
) -> Kind:
    return Kind(lambda: Each(layer()), {"x": x, "e": e}, **o)


def linear_maps(inner: int, out: int, *places: int, bias: bool = True, small: bool = False) -> Kind:
    x, e = (*places, inner), (*places, out)
    return one_layer(lambda: nn.Linear(inner, out, bias=bias), x, e, small=small)


def convolutions(layer: Callable[[], nn.Module], x: tuple[int, ...], e: tuple[int, ...]) -> Kind:
    return one_layer(layer, x, e, channels_first=True)


KINDS: dict[str, Kind] = {
    "linear": linear_maps(5, 3, small=True),
    "linear without bias": linear_maps(3, 2, bias=False, small=True),
    "wide linear": linear_maps(70, 30, bias=False),
    "transposed linear": one_layer(lambda: Conv1D(3, 4), (4,), (3,), small=True),
    "places by rows": linear_maps(4, 4, 16),
    "places by Gram matrices": linear_maps(40, 40, 8),
    "many places": linear_maps(3, 4, 256, bias=False),
    "long Gram matrices": linear_maps(160, 160, 72, bias=False),
    "places, transposed": one_layer(lambda: Conv1D(24, 24), (4, 24), (4, 24)),
    "one input, three maps": Kind(
        lambda: Each(*(nn.Linear(40, 40, bias=False) for _ in range(3))),
        {"x": (8, 40), "e": (8, 40), "e2": (8, 40), "e3": (8, 40)},
    ),
    "twice": Kind(
        lambda: Twice(nn.Linear(12, 12)), {"x": (12,), "x2": (12,), "e": (12,), "e2": (12,)}
    ),
    "twice, at places": Kind(
        lambda: Twice(nn.Linear(40, 40, bias=False)),
        {"x": (4, 40), "x2": (6, 40), "e": (4, 40), "e2": (6, 40)},
    ),
    "tied": Kind(Tied, {"x": (4, 5), "t": (4,), "e": (4, 7), "e2": (4, 5)}, tokens=7),
    "embedding": Kind(
        lambda: Each(nn.Embedding(7, 5)), {"t": (6,), "e": (6, 5)}, tokens=7, small=True
    ),
    "embedding with padding": Kind(
        lambda: Each(nn.Embedding(7, 5, padding_idx=0)), {"t": (6,), "e": (6, 5)}, tokens=7
    ),
    "bag": Kind(lambda: Bags("sum"), {"x": (6,), "t": (6,), "e": (5,)}, tokens=7),
    "mean bag": Kind(lambda: Bags("mean"), {"t": (6,), "e": (5,)}, tokens=7),
    "convolution 1d": convolutions(lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 8), (4, 8)),
    "convolution 2d": convolutions(lambda: nn.Conv2d(2, 3, 3), (2, 6, 6), (3, 4, 4)),
    "convolution 1 x 1": convolutions(lambda: nn.Conv2d(12, 12, 1), (12, 4, 4), (12, 4, 4)),
    "convolution, grouped": convolutions(
        lambda: nn.Conv2d(4, 6, 2, stride=2, groups=2, bias=False), (4, 6, 6), (6, 3, 3)
    ),
    "convolution, few places": convolutions(
        lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), (64, 2, 2), (64, 2, 2)
    ),
    "convolution 3d": convolutions(lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3), (2, 2, 2, 2)),
    "transposed convolution": convolutions(
        lambda: nn.ConvTranspose2d(3, 2, 2, stride=2), (3, 3, 3), (2, 6, 6)
    ),
    "layer norm": one_layer(lambda: nn.LayerNorm(6), (6,), (6,)),
    "layer norm at places": one_layer(lambda: nn.LayerNorm(6), (8, 6), (8, 6)),
    "rms norm": one_layer(lambda: nn.RMSNorm(6), (4, 6), (4, 6)),
    "group norm": convolutions(lambda: nn.GroupNorm(2, 4), (4, 3, 3), (4, 3, 3)),
    "instance norm": convolutions(lambda: nn.InstanceNorm1d(4, affine=True), (4, 6), (4, 6)),
    "attention": Kind(Attention, {"x": (4, 4), "e": (4, 4)}),
    "rnn": one_layer(lambda: nn.RNN(4, 5, batch_first=True), (4, 4), (4, 5)),
    "lstm": one_layer(lambda: nn.LSTM(4, 5, batch_first=True), (4, 4), (4, 5)),
    "gru": one_layer(lambda: nn.GRU(4, 5, batch_first=True), (4, 4), (4, 5)),
    "low rank": Kind(LowRank, {"x": (6,), "e": (5,)}),
    "positions": Kind(Positions, {"x": (2,), "e": (2,), "e2": (3, 5)}),
    "bare parameters": Kind(Bare, {"x": (4,), "e": (4,)}),
}
ROWS = {"wide": (600,), "matrix": (3, 4), "number": ()}
"""Parameters of views that are made from explicit rows, without a model."""
BOUNDED_FORWARD = (
    *("linear", "linear without bias", "wide linear", "places by rows", "places by Gram matrices"),
    *("many places", "convolution 1d", "convolution 2d", "convolution 1 x 1"),
    *("convolution, grouped", "convolution, few places", "layer norm", "layer norm at places"),
    *("group norm", "linear", "wide linear"),
)
"""Kinds that rules with bounds from the forward pass (`Value`) take, for most of their forms."""


class Model(nn.Module):
    """Kinds side by side. Its forward takes the inputs of all and returns a list of outputs."""

    def __init__(self, kinds: Sequence[str], dtype: torch.dtype) -> None:
        super().__init__()
        self.counts = [sum(f[0] in "xt" for f in KINDS[kind].fields) for kind in kinds]
        self.parts = nn.ModuleList(KINDS[kind].build() for kind in kinds)
        for parameter in self.parameters():
            parameter.data.zero_()
        for part in self.parts:
            if isinstance(part, Attention | LowRank):
                part.settle()
        self.to(dtype)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        found, start = [], 0
        for part, count in zip(self.parts, self.counts, strict=True):
            found += part(*inputs[start : start + count])
            start += count
        return found
