"""Low-rank corrections: what is trained and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import winsor
from winsor.core.contract import ConfigurationError
from winsor.models.lora import LowRank, low_rank


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_a_new_head_is_trained_whole():
    model = low_rank(network(), rank=2, train=("2",))
    assert isinstance(model[0], LowRank) and type(model[2]) is nn.Linear
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"0.down.weight", "0.up.weight", "2.weight", "2.bias"}


def test_corrections_are_scaled_by_the_rank():
    model, plain = low_rank(network(), rank=4, scale=8.0), network()
    nn.init.ones_(model[0].up.weight)
    x = torch.randn(3, 6)
    added = 2.0 * model[0].down(x).sum(1, keepdim=True)
    torch.testing.assert_close(model[0](x), plain[0](x) + added)


def test_wrong_options():
    with pytest.raises(ConfigurationError, match="train must name modules"):
        low_rank(network(), train=("head",))
    with pytest.raises(ConfigurationError, match="rank must be"):
        low_rank(network(), rank=0)
    with pytest.raises(ConfigurationError, match="scale must be"):
        low_rank(network(), scale=-1.0)


def test_it_is_at_the_front_door():
    assert winsor.models.low_rank is low_rank
