"""Standardised convolutions: the scale of a layer stays, and rows stay separate."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor.models.networks import two_layer_cnn
from winsor.models.standardised import StandardisedConv2d, standardise_convolutions


def test_weights_have_mean_zero_and_unit_energy():
    torch.manual_seed(0)
    layer = StandardisedConv2d(3, 5, 3)
    with torch.no_grad():
        layer.weight.mul_(50).add_(7)
    flat = layer.standardised().flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(flat.square().sum(1), torch.ones(5), rtol=1e-4, atol=0)


def test_scaled_or_shifted_weights_make_no_difference():
    torch.manual_seed(0)
    layer = StandardisedConv2d(2, 4, 3, padding=1, padding_mode="reflect")
    x = torch.randn(2, 2, 6, 6)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(20).add_(3)
    torch.testing.assert_close(layer(x), before, rtol=1e-3, atol=1e-3)


def trained(engine):
    torch.manual_seed(0)
    model = standardise_convolutions(two_layer_cnn(3))
    assert sum(isinstance(m, StandardisedConv2d) for m in model.modules()) == 2
    x, y = torch.randn(40, 1, 28, 28), torch.arange(40) % 3
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        dataset=TensorDataset(x, y), rule=winsor.rules.Flat(0.5), batch_size=20, steps=1,
        noise_multiplier=1.0, delta=1e-2, seed=0, engine=engine,
    )  # fmt: skip
    for rows, labels in private.batches():
        private.step(nn.functional.cross_entropy(model(rows), labels, reduction="none"))
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_trains_privately_and_engines_agree():
    torch.testing.assert_close(trained("auto"), trained("loop"), rtol=1e-3, atol=1e-4)
