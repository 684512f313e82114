"""Adam without the noise's share, against a plain transcription of Algorithm 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError, ProtocolError
from winsor.training.optimisers import AdamCorrected
from winsor.tuning.recipes import recipe


def transcription(gradients, stds, lr, betas, floor, start):
    """Line by line, with the running mean of variances in place of one variance."""
    w, m, v, s = start.copy(), 0.0, 0.0, 0.0
    for t, (g, std) in enumerate(zip(gradients, stds, strict=True), start=1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        s = betas[1] * s + (1 - betas[1]) * std**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        noise = s / (1 - betas[1] ** t)
        w = w - lr * m_hat / np.sqrt(np.maximum(v_hat - noise, floor**2))
    return w


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_it_is_the_algorithm(betas):
    rng = np.random.default_rng(0)
    gradients, stds = rng.standard_normal((30, 4)), rng.uniform(0.2, 1.5, 30)
    start = rng.standard_normal(4)
    weight = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = AdamCorrected([weight], lr=0.1, betas=betas, floor=0.05)
    for gradient, std in zip(gradients, stds, strict=True):
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.note_noise(std)
        optimizer.step()
    expected = transcription(gradients, stds, 0.1, betas, 0.05, start)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-9)


def test_without_noise_it_is_adam():
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    mine = AdamCorrected([ours], lr=0.01, floor=1e-12)
    plain = torch.optim.Adam([theirs], lr=0.01, eps=0.0)
    for _ in range(20):
        gradient = torch.randn(5, dtype=torch.float64)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.note_noise(0.0)
        mine.step()
        plain.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-9, atol=0)


def test_it_must_know_the_noise_of_every_gradient():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = AdamCorrected([weight])
    weight.grad = torch.ones(1)
    with pytest.raises(ProtocolError, match="note_noise"):
        optimizer.step()
    optimizer.note_noise(1.0)
    optimizer.step()
    with pytest.raises(ProtocolError, match="note_noise"):
        optimizer.step()
    with pytest.raises(ConfigurationError, match="betas"):
        AdamCorrected([weight], betas=(0.9, 1.0))


def told(rule, steps=3):
    """The deviations that a run tells its optimiser."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 2)
    optimizer = AdamCorrected(model.parameters(), lr=0.01)
    heard = []
    note = optimizer.note_noise
    optimizer.note_noise = lambda std: (heard.append(std), note(std))
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=TensorDataset(x, (x[:, 0] > 0).long()),
        rule=rule, batch_size=50, steps=steps, noise_multiplier=2.0, delta=1e-3, seed=0,
    )  # fmt: skip
    for rows, labels in private.batches():
        private.step(nn.functional.cross_entropy(model(rows), labels, reduction="none"))
    return heard


def test_a_run_tells_it_the_noise_of_the_averaged_gradient():
    assert told(winsor.rules.Flat(0.3)) == pytest.approx([2.0 * 0.3 / 50] * 3, rel=1e-6)


def test_gradients_of_unit_length_have_noise_of_unit_length():
    rule = recipe(200, 8, 3.0, 1e-3).rule
    first = told(rule)[0]
    share = rule.rule.tracker.share
    assert first == pytest.approx(2.0 / 50, rel=0.2) and 0 < share < 0.1
    assert math.isfinite(first)
