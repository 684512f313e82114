"""Models and comparisons shared by the tests of the per-sample engines."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from winsor.gradients import (
    Directions,
    Engine,
    View,
    make_engine,
    parameter_rows,
    trainable_parameters,
)

Losses = Callable[[Tensor], Tensor]


def square_loss(out: Tensor) -> Tensor:
    """One smooth, non-trivial loss per row."""
    flat = out.flatten(1)
    return (flat * torch.linspace(0.3, 1.7, flat.shape[1], dtype=flat.dtype)).sin().square().sum(1)


def make_view(
    model: nn.Module, x: Tensor, name: str, losses: Losses = square_loss
) -> tuple[Engine, View]:
    """A view of one batch by engine ``name``; the engine is left attached only while it works."""
    engine = make_engine(model, trainable_parameters(model), name)
    engine.attach()
    engine.recording(True)
    try:
        return engine, engine.view(losses(model(x)))
    finally:
        engine.recording(False)
        engine.detach()


def assert_same_views(one: View, other: View, names: list[str], rtol: float) -> None:
    """Everything a rule can ask for agrees, relative to the largest entry of each answer, but for
    the term that covers what cancels: rows that are stored have none."""
    with patch.object(parameter_rows, "THETA", 0.0):
        _assert_same_views(one, other, names, rtol)


def _assert_same_views(one: View, other: View, names: list[str], rtol: float) -> None:
    n = one.size
    assert other.size == n
    assert other.neutralised == one.neutralised
    weights = torch.linspace(0.2, 1.5, n)
    per_name = {name: weights.roll(i) for i, name in enumerate(names)}
    groups = [names[::2], names[1::2]]
    directions = [Directions(7, 3), Directions(200, 4, "weibull", 1.0)]
    close(one.losses(), other.losses(), rtol)
    close(one.norms(), other.norms(), rtol)
    close(one.group_norms(groups), other.group_norms(groups), rtol)
    for d in directions:
        close(one.sketch(d), other.sketch(d), rtol)
    close_trees(one.total(), other.total(), rtol)
    close_trees(one.weighted_sum(weights), other.weighted_sum(weights), rtol)
    close_trees(one.weighted_sum(per_name), other.weighted_sum(per_name), rtol)
    close_trees(one.map_sum(clamp_rows), other.map_sum(clamp_rows), rtol)


def clamp_rows(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: row.clamp(-0.05, 0.05) for name, row in rows.items()}


def close(one: Tensor, other: Tensor, rtol: float) -> None:
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    scale = float(one.abs().max()) if one.numel() else 0.0
    torch.testing.assert_close(other, one, rtol=rtol, atol=rtol * scale + 1e-30)


def close_trees(one: dict[str, Tensor], other: dict[str, Tensor], rtol: float) -> None:
    """Per parameter, relative to the largest entry of the whole tree."""
    assert list(one) == list(other)
    scale = max((float(t.abs().max()) for t in one.values() if t.numel()), default=0.0)
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=rtol, atol=rtol * scale + 1e-30)


# ------------------------------------------------------------------------------------- models


class Bare(nn.Module):
    """Bare parameters, a list and a dict of them, beside a child module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.child = nn.Linear(4, 3)
        self.list = nn.ParameterList([torch.randn(3) for _ in range(2)])
        self.dict = nn.ParameterDict({"shift": torch.randn(())})

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) * self.scale + self.list[0] * self.list[1] + self.dict["shift"]


class ClassToken(nn.Module):
    """The root owns a token and positions, as vision transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.positions = nn.Parameter(torch.randn(1, 4, 6))
        self.block = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.block(h).tanh().mean(1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.linear(x).tanh())
        return self.norm(self.linear(h) + x)


class ConvTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x).tanh())


class TiedLanguageModel(nn.Module):
    """Token embedding and output layer share one weight; positions are shared by all rows."""

    def __init__(self, expanded: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 5), nn.Embedding(9, 5)
        self.body = nn.Linear(5, 5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.tokens.weight
        self.expanded = expanded

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        if self.expanded:
            positions = positions.unsqueeze(0)
        h = self.tokens(x) + self.positions(positions)
        return self.head(self.body(h).tanh())


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = kind(4, 5, **options)

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1))
        state = state[0] if isinstance(state, tuple) else state
        out = out if self.rnn.batch_first else out.transpose(0, 1)
        return torch.cat([out.flatten(1), state.transpose(0, 1).flatten(1)], dim=1)


class Cells(nn.Module):
    """Recurrent cells called step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 5), nn.GRUCell(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, c, k = x.new_zeros(len(x), 5), x.new_zeros(len(x), 5), x.new_zeros(len(x), 3)
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            k = self.gru(h, k)
        return k


class Attention(nn.Module):
    def __init__(self, cross: bool = False, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)
        self.cross = cross

    def forward(self, x: Tensor) -> Tensor:
        if not self.attention.batch_first:
            x = x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(
            len(x) if not self.attention.batch_first else x.shape[1], dtype=x.dtype
        )
        if self.cross:
            out, weights = self.attention(x, x.cos(), x.sin() + 1)
        else:
            out, weights = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        if not self.attention.batch_first:
            out = out.transpose(0, 1)
        return out if weights is None else out + weights.sum((1, 2))[:, None, None]


class LoRA(nn.Module):
    """A frozen linear layer with a trained low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * self.up(self.down(x))


class Conv1D(nn.Module):
    """The layer of that name in Hugging Face transformers: weight stored as (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return out.view(*x.shape[:-1], self.nf)


class Checkpointed(nn.Module):
    """Gradient checkpointing around two blocks."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6))
        self.second = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.first, x, use_reentrant=False)
        return checkpoint(self.second, h, use_reentrant=self.reentrant)


class Residual(nn.Module):
    """A small ResNet with in-place activations, pooling and a projection shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(4, 8))
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
            nn.GroupNorm(4, 16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.GroupNorm(4, 16),
        )
        self.short = nn.Conv2d(8, 16, 1, stride=2, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu_(self.stem(x))
        h = F.relu_(self.body(h) + self.short(h))
        return self.head(F.max_pool2d(h, 2).mean((2, 3)))
