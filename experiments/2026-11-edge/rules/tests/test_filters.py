"""The filters of released gradients: low-pass and Kalman, against transcriptions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from winsor.rules.kalman import KalmanSGD
from winsor.rules.low_pass import LowPassSGD

import winsor
from winsor.core.contract import ConfigurationError, ProtocolError


def stepped(optimizer, weight, gradients, stds=None):
    for place, gradient in enumerate(gradients):
        weight.grad = torch.from_numpy(gradient.copy())
        if stds is not None:
            optimizer.note_noise(stds[place])
        optimizer.step()
    return weight.detach().numpy()


def test_low_pass_is_the_recurrence():
    gradients = np.random.default_rng(0).standard_normal((20, 3))
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    found = stepped(LowPassSGD([weight], lr=0.1, pole=0.8), weight, gradients)
    w, m, c, before = np.zeros(3), 0.0, 0.0, np.zeros(3)
    for t, g in enumerate(gradients):
        m = 0.8 * m + 0.1 * (g + before)
        c = 0.8 * c + 0.1 * (1 + (t > 0))
        w, before = w - 0.1 * m / c, g
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_low_pass_leaves_a_constant_gradient_alone():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    found = stepped(LowPassSGD([weight], lr=0.5), weight, [np.ones(2)] * 10)
    np.testing.assert_allclose(found, -5 * np.ones(2), rtol=1e-12)


def test_kalman_is_the_recurrence():
    rng = np.random.default_rng(1)
    gradients, stds = rng.standard_normal((20, 4)), rng.uniform(0.1, 1.2, 20)
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = KalmanSGD([weight], lr=0.2, least=0.1, decay=0.7)
    found = stepped(optimizer, weight, gradients, stds)
    w, m, s, age = np.zeros(4), np.zeros(4), 0.0, 0.0
    for g, std in zip(gradients, stds, strict=True):
        s, age = 0.7 * s + 0.3 * np.mean((g - m) ** 2), 0.7 * age + 0.3
        gain = np.clip(1 - std**2 / (s / age), 0.1, 1.0)
        m = m + gain * (g - m)
        w = w - 0.2 * m
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_kalman_averages_more_when_all_is_noise_than_when_the_gradient_moves():
    rng = np.random.default_rng(2)
    weight = nn.Parameter(torch.zeros(500, dtype=torch.float64))
    optimizer = KalmanSGD([weight], lr=1e-3, least=0.05)
    stepped(optimizer, weight, rng.standard_normal((60, 500)), [1.0] * 60)
    quiet = optimizer.state[weight]["estimate"].square().mean()
    assert quiet < 0.15  # of a variance of 1
    stepped(optimizer, weight, 5 + rng.standard_normal((5, 500)), [1.0] * 5)
    assert float(optimizer.state[weight]["estimate"].mean()) > 4


@pytest.mark.parametrize("kind", [LowPassSGD, KalmanSGD])
def test_private_training_takes_them(kind):
    torch.manual_seed(0)
    x = torch.randn(600, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    private = winsor.make_private(
        model=model, optimizer=kind(model.parameters(), lr=0.5), dataset=TensorDataset(x, y),
        rule=winsor.rules.Flat(1.0), batch_size=120, steps=40, noise_multiplier=1.0, delta=1e-4,
        seed=0,
    )  # fmt: skip
    for rows, labels in private.batches():
        private.step(nn.functional.cross_entropy(model(rows), labels, reduction="none"))
    with torch.no_grad():
        assert float((model(x).argmax(1) == y).float().mean()) > 0.9


def test_wrong_uses_are_refused():
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.ones(1)
    with pytest.raises(ProtocolError, match="know the noise"):
        KalmanSGD([weight], lr=0.1).step()
    for optimizer in (KalmanSGD([weight], lr=0.1), LowPassSGD([weight], lr=0.1)):
        with pytest.raises(ConfigurationError, match="closure"):
            optimizer.step(lambda: 0.0)
    with pytest.raises(ConfigurationError, match="pole"):
        LowPassSGD([weight], lr=0.1, pole=1.0)
