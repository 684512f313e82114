"""The door is given the same sum, to the last bit, for a step inside of autocast or outside.

The forward pass runs in bfloat16 both times, so what is recorded is the same: what winsor makes of
it is not touched by the user's context.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hostile_layers import Bare
from hostile_rows import flat
from torch import Tensor, nn

import winsor
from winsor.rules import L1, Discriminative, Flat, PerLayer

RULES = (Flat(1.0), PerLayer(1.0), L1(1.0), Discriminative(1.0, 0.1, rank_by="trace"))


class Scaled(Bare):
    """Served by torch.func."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0] + x @ x.mT @ x


class Mixed(nn.Module):
    """Places and none, and every way that a layer's rows are found."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.scaled = nn.Embedding(9, 4), Scaled()
        self.convolution, self.group = nn.Conv1d(4, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.large = nn.Conv1d(6, 40, 3, padding=1, bias=False)
        self.layer, self.root = nn.LayerNorm(40), nn.RMSNorm(40)
        self.attention = nn.MultiheadAttention(40, 2, batch_first=True)
        self.places, self.last = nn.Linear(40, 12), nn.Linear(12, 3)

    def forward(self, index: Tensor) -> Tensor:
        x = self.scaled(self.embedding(index)).mT
        x = self.large(self.group(self.convolution(x))).mT
        x = self.root(self.layer(x))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(self.places(x).relu().mean(1))


def handed_over(rule, engine: str, model: nn.Module, outside: bool, steps: int = 2) -> list[Tensor]:
    """What reaches the door in a few steps, taken outside of autocast or inside."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randint(0, 9, (64, 5), generator=generator),
        torch.randint(0, 3, (64,), generator=generator),
    )
    if not isinstance(model, Mixed):
        data.tensors = (torch.randn(64, 5, generator=generator), data.tensors[1])
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), dataset=data, rule=rule,
        engine=engine,
        noise_multiplier=1.0, delta=1e-3, steps=steps, batch_size=16, seed=3,
    )  # fmt: skip
    found, release = [], private._door.release

    def noted(step, parts):
        found.extend(flat(part.value) for part in parts.values())
        return release(step, parts)

    private._door.release = noted
    for index, target in private.batches():
        with torch.autocast("cpu", torch.bfloat16):
            losses = nn.functional.cross_entropy(private.model(index), target, reduction="none")
            with torch.autocast("cpu", enabled=False) if outside else nullcontext():
                private.step(losses)
    private.detach()
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("engine", ["auto", "func", "loop"])
@pytest.mark.parametrize("build", [Mixed, lambda: nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3))])
def test_autocast_leaves_the_sums_alone(rule, engine: str, build) -> None:
    torch.manual_seed(0)
    model = build()
    inside = handed_over(rule, engine, model, outside=False)
    outside = handed_over(rule, engine, model, outside=True)
    assert len(inside) == len(outside) > 0
    for one, other in zip(inside, outside, strict=True):
        assert torch.equal(one, other)
    assert any(bool(each.any()) for each in inside)
