"""Small models of several kinds with a seam: what sits there may mix rows, or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 3


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Mlp(nn.Module):
    def __init__(self, seam: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.seam, self.head = nn.Linear(6, 8), seam or nn.Identity(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.seam(self.first(x).relu()))


class Cnn(nn.Module):
    """Convolutions, GroupNorm, a residual branch, dropout."""

    def __init__(self, seam: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.branch, self.drop = nn.Conv2d(4, 4, 3, padding=1), nn.Dropout2d(0.2)
        self.seam, self.head = seam or nn.Identity(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).relu()
        h = h + self.drop(self.branch(h))
        return self.head(self.seam(h.mean((2, 3))))


class Transformer(nn.Module):
    """Attention under a mask, LayerNorm, dropout; token 0 is padding."""

    def __init__(self, seam: nn.Module | None = None) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(5, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.1)
        self.seam, self.head = seam or nn.Identity(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        n, length = x.shape
        h = self.tokens(x) + self.positions(torch.arange(length).expand(n, -1))
        seen, _ = self.attention(h, h, h, key_padding_mask=x == 0, need_weights=False)
        h = self.norm(h + self.drop(seen))
        kept = (x != 0).unsqueeze(-1)
        return self.head(self.seam((h * kept).sum(1) / kept.sum(1)))


class Embedded(nn.Module):
    def __init__(self, seam: nn.Module | None = None) -> None:
        super().__init__()
        self.table, self.seam, self.head = (
            nn.Embedding(9, 8),
            seam or nn.Identity(),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.seam(self.table(x).mean(1)))


def rows_of(kind: type[nn.Module], count: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    if kind is Mlp:
        x = torch.randn(count, 6, generator=generator)
    elif kind is Cnn:
        x = torch.randn(count, 1, 6, 6, generator=generator)
    else:
        x = torch.randint(1, 9, (count, 5), generator=generator)
        x[::2, -1] = 0 if kind is Transformer else 1
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return list(zip(x, labels, strict=True))


KINDS: tuple[Callable[..., nn.Module], ...] = (Mlp, Cnn, Transformer, Embedded)


# ---------------------------------------------------------------------------- what may sit there


class Centred(nn.Module):
    """The mean over the batch, detached: no gradient flows between rows."""

    def forward(self, h: Tensor) -> Tensor:
        return h - h.mean(0).detach()


class Gate(nn.Module):
    """Mixes rows once it has seen ``closed`` batches."""

    def __init__(self, closed: int) -> None:
        super().__init__()
        self.closed = closed
        self.seen = 0

    def forward(self, h: Tensor) -> Tensor:
        self.seen += 1
        return h if self.seen <= self.closed else h - h.mean(0).detach()


class Warm(nn.Module):
    """Counts its batches, and looks at nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, h: Tensor) -> Tensor:
        self.seen += 1
        return h * min(1.0, self.seen / 10)


class Remembers(nn.Module):
    """Keeps the last row in a plain attribute and lets it into the next batch."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor] = []

    def forward(self, h: Tensor) -> Tensor:
        out = h + sum(self.memory, start=torch.zeros(()))
        self.memory[:] = [h[-1].detach()]
        return out


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, h: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h


class KeepsARow(nn.Module):
    """Copies a raw row behind autograd's back."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8))

    def forward(self, h: Tensor) -> Tensor:
        self.kept.data.copy_(h[0].detach())
        return h


class WritesFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, h: Tensor) -> Tensor:
        self.frozen.add_(h.detach().mean(0))
        return h


class Noisy(nn.Module):
    """Random numbers that no dropout switch stops."""

    def __init__(self, own: bool = False, mixing: bool = False) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1) if own else None
        self.mixing = mixing

    def forward(self, h: Tensor) -> Tensor:
        noise = torch.randn(h.shape, generator=self.generator, dtype=h.dtype)
        return h + 0.1 * noise + (0.1 * h.mean(0).detach() if self.mixing else 0)
