"""The six models of the step-time and memory benchmarks, with batches of random data.

Each `Task` builds a fresh model and one batch; `losses(model, batch)` gives one loss per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    name: str
    batch_size: int
    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        logits = model(x)
        if logits.dim() == 3:  # one target per position: average within the row
            n, t, v = logits.shape
            return (
                F.cross_entropy(logits.view(n * t, v), y.view(n * t), reduction="none")
                .view(n, t)
                .mean(1)
            )
        return F.cross_entropy(logits, y, reduction="none")


def small_cnn() -> nn.Module:
    """Two convolutions with GroupNorm on 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 10),
    )


class Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, outer)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.GroupNorm(8, outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.short(x))


class ResNet20(nn.Module):
    """He et al. 2016, section 4.2, n = 3, with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(8, 16)
        widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)]
        widths += [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*[Block(*w) for w in widths])
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(h.mean((2, 3)))


class Layer(nn.Module):
    """Pre-norm transformer block with causal scaled-dot-product attention."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(n, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int, d: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.layers = nn.Sequential(*[Layer(d, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1]).repeat(len(x), 1)
        h = self.tokens(x) + self.positions(positions)
        return self.head(self.norm(self.layers(h)))


class Adapted(nn.Module):
    """LoRA (Hu et al. 2022): a frozen linear map plus a trained one of low rank."""

    def __init__(self, inner: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.up(self.down(x))
        return out


def adapted_gpt() -> nn.Module:
    """Only adapters of the attention's projections are trained."""
    model = GPT(4, 256, 8, 5000, 128).requires_grad_(False)
    for layer in model.layers:
        layer.qkv, layer.out = Adapted(layer.qkv), Adapted(layer.out)
    return model


class MeanPool(nn.Module):
    """Bag of words: embedding, mean over the text, linear."""

    def __init__(self, vocabulary: int = 20_000, d: int = 64, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, d)
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


def images(channels: int, side: int) -> Callable[[int], Batch]:
    return lambda n: (torch.randn(n, channels, side, side), torch.randint(0, 10, (n,)))


def flat(n: int) -> Batch:
    return torch.randn(n, 784), torch.randint(0, 10, (n,))


def tokens(vocabulary: int, length: int) -> Callable[[int], Batch]:
    def batch(n: int) -> Batch:
        x = torch.randint(0, vocabulary, (n, length + 1))
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    return batch


def texts(vocabulary: int = 20_000, length: int = 64) -> Callable[[int], Batch]:
    return lambda n: (torch.randint(0, vocabulary, (n, length)), torch.randint(0, 2, (n,)))


TASKS = (
    Task("linear 784-10", 128, lambda: nn.Linear(784, 10), flat),
    Task(
        "MLP 784-128-10",
        128,
        lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        flat,
    ),
    Task("CNN 28x28", 256, small_cnn, images(1, 28)),
    Task("ResNet-20", 128, ResNet20, images(3, 32)),
    Task("GPT 4x256", 16, lambda: GPT(4, 256, 8, 5000, 128), tokens(5000, 128)),
    Task("embedding 20kx64", 256, MeanPool, texts()),
)

MORE_TASKS = (
    Task("GPT T=32", 16, lambda: GPT(4, 256, 8, 5000, 32), tokens(5000, 32)),
    Task("GPT T=512", 4, lambda: GPT(4, 256, 8, 5000, 512), tokens(5000, 512)),
    Task("GPT B=4", 4, lambda: GPT(4, 256, 8, 5000, 128), tokens(5000, 128)),
    Task("GPT B=64", 64, lambda: GPT(4, 256, 8, 5000, 128), tokens(5000, 128)),
    Task("GPT 50k words", 4, lambda: GPT(4, 256, 8, 50_000, 128), tokens(50_000, 128)),
    Task("LoRA 4x256", 16, adapted_gpt, tokens(5000, 128)),
)

LARGE = Task("GPT 12x768 (100 M)", 4, lambda: GPT(12, 768, 12, 10_000, 128), tokens(10_000, 128))

LARGER = Task("GPT 26x1024 (350 M)", 2, lambda: GPT(26, 1024, 16, 10_000, 64), tokens(10_000, 64))
