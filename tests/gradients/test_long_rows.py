"""Layers whose rows are formed in another way where they are long, or where patches are short."""

from __future__ import annotations

import engine_zoo as zoo
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from winsor.gradients import trainable_parameters
from winsor.gradients.layers import norms


def assert_equal(model: nn.Module, x: Tensor) -> None:
    torch.manual_seed(0)
    model = model.double()
    _, oracle = zoo.make_view(model, x.double(), "loop")
    _, fast = zoo.make_view(model, x.double(), "ghost")
    zoo.assert_same_views(oracle, fast, list(trainable_parameters(model)), rtol=1e-9)


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """How often a call of the kernel was made."""
    calls: list[int] = []
    kernel = norms._one_row
    monkeypatch.setattr(norms, "_one_row", lambda *given: (calls.append(1), kernel(*given))[1])
    monkeypatch.setattr(norms, "LONG_ROW", 12)
    return calls


def frozen(module: nn.LayerNorm, name: str) -> nn.LayerNorm:
    getattr(module, name).requires_grad_(False)
    return module


@pytest.mark.parametrize(
    "module,shape",
    [
        (nn.LayerNorm(4), (5, 3, 4)),
        (nn.LayerNorm((2, 4)), (5, 3, 2, 4)),
        (nn.LayerNorm(4), (5, 3, 2, 4)),
        (nn.LayerNorm(4, bias=False), (5, 3, 4)),
        (frozen(nn.LayerNorm(4), "bias"), (5, 3, 4)),
        (nn.LayerNorm(4), (1, 3, 4)),
    ],
)
def test_long_rows_of_a_layer_norm_are_those_of_the_oracle(module, shape, asked):
    torch.manual_seed(0)
    with torch.no_grad():
        module.weight.copy_(torch.randn_like(module.weight))
    assert_equal(nn.Sequential(nn.Linear(shape[-1], shape[-1]), module), torch.randn(*shape))
    assert len(asked) >= shape[0]


@pytest.mark.parametrize("module", [nn.LayerNorm(4), frozen(nn.LayerNorm(4), "weight")])
def test_short_rows_and_a_frozen_scale_go_by_the_formula(module, asked):
    places = 2 if module.weight.requires_grad else 3
    assert_equal(module, torch.randn(5, places, 4))
    assert not asked


def test_more_places_than_a_plain_sum_bears_go_by_the_formula(asked, monkeypatch):
    monkeypatch.setattr(norms, "MANY_PLACES", 5)
    assert_equal(nn.LayerNorm(4), torch.randn(3, 6, 4))
    assert not asked


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return found


def test_long_rows_under_checkpointing(asked):
    assert_equal(Checkpointed(), torch.randn(5, 3, 4))
    assert asked
