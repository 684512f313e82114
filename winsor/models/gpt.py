"""A small GPT: token and position embeddings, pre-norm blocks of causal attention and MLP, a head.

Radford et al. 2019, in the spirit of nanoGPT. Every operation treats each row on its own, so every
rule and engine accepts it: positions are looked up per row, there is no dropout, and the head does
not share the embedding's weights (tied weights add their gradients, which costs ghost norms more).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.core.contract import ConfigurationError
from winsor.models.networks import Residual


class CausalAttention(nn.Module):
    """Each position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, t, width) mixtures of earlier positions."""
        b, t, width = x.shape
        q, k, v = (
            part.view(b, t, self.heads, width // self.heads).transpose(1, 2)  # (b, heads, t, d)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, width))
        return out


class SmallGPT(nn.Module):
    """(rows, t) tokens -> (rows, t, vocabulary) logits of the next token; t at most ``length``."""

    def __init__(
        self, vocabulary: int, length: int, *, layers: int = 2, heads: int = 2, width: int = 64
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigurationError(
                f"width must be a multiple of heads = {heads}. Got {width!r} instead."
            )
        self.length = length
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_start)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.token(tokens) + self.position(positions)  # (rows, t, width)
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


def _block(width: int, heads: int) -> nn.Module:
    attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads))
    feed_forward = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )
    return nn.Sequential(Residual(attention), Residual(feed_forward))


def _start(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
