"""Algorithms 1 and 3 of paper 3 against plain transcriptions in numpy, with injected noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from injected_noise import inject
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from winsor_papers.value.algorithm_3 import PrintedRun

import winsor
from winsor.contrib.value.growth import LayerBounds
from winsor.contrib.value.wgc import LOGISTIC, NetworkGrowth, WeakGrowth
from winsor.core.contract import ConfigurationError

N, D, CLASSES, STEPS, B, ETA, SIGMA = 40, 3, 2, 6, 8, 0.02, 0.7


def table():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((N, D)) * rng.uniform(0.2, 2.0, (N, 1))
    return x, rng.integers(0, CLASSES, N)


def loss_and_gradient(w, x, y):
    """Cross-entropy of a linear model without biases for one row; w has a row per class."""
    z = w.reshape(CLASSES, D) @ x
    p = np.exp(z - z.max())
    p /= p.sum()
    error = p.copy()
    error[y] -= 1
    return -math.log(p[y]), np.outer(error, x).ravel()


def transcription(w, batches, noise, clip, bound):
    """Algorithms 1 and 3, lines 2-7. ``bound(f_i, g_i, f)`` is what line 4 (5) divides by C."""
    x, y = table()
    seen = [w]
    for batch, xi in zip(batches, noise, strict=True):
        f = np.mean([loss_and_gradient(w, x[i], y[i])[0] for i in range(N)])
        total = np.zeros_like(w)
        for i in batch:
            value, gradient = loss_and_gradient(w, x[i], y[i])
            total += gradient / max(1.0, bound(value, gradient, f) / clip)
        w = w - ETA / B * (total + xi)
        seen.append(w)
    return np.array(seen)


def losses_of(w):
    x, y = (torch.from_numpy(part) for part in table())
    return F.cross_entropy(x @ w.view(CLASSES, D).T, y, reduction="none")


BETA_1, BETA_2, LOWER = 3.0, 0.2, -0.1
READINGS = {
    "norm": (None, lambda f_i, g, f: np.linalg.norm(g)),
    "f(w)": (WeakGrowth(BETA_1, BETA_2), lambda f_i, g, f: np.sqrt(BETA_1 * (f - LOWER) + BETA_2)),
    "f_i": (WeakGrowth(BETA_1, BETA_2), lambda f_i, g, f: np.sqrt(BETA_1 * (f_i - LOWER) + BETA_2)),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("clip", [0.3, 100.0])
def test_the_printed_algorithms_are_the_papers_lines(reading, clip):
    growth, bound = READINGS[reading]
    rng = np.random.default_rng(0)
    batches = [np.flatnonzero(rng.random(N) < B / N) for _ in range(STEPS)]
    noise = [clip * SIGMA * rng.standard_normal(CLASSES * D) for _ in range(STEPS)]
    start = rng.standard_normal(CLASSES * D)
    run = PrintedRun(STEPS, clip, SIGMA, B, ETA, growth, LOWER, reading)
    found = run.iterates(
        torch.from_numpy(start),
        losses_of,
        batches=[torch.from_numpy(batch) for batch in batches],
        noise=[torch.from_numpy(vector) for vector in noise],
    )
    np.testing.assert_allclose(
        found.numpy(), transcription(start, batches, noise, clip, bound), atol=1e-9
    )
    assert run.noise_std == clip * SIGMA  # line 6: N(0, C^2 sigma^2 I)


def private(rule, monkeypatch):
    """A certified run of the same problem, and the noise that it added."""
    noise = inject(monkeypatch)
    torch.manual_seed(0)
    model = nn.Linear(D, CLASSES, bias=False).double()
    start = model.weight.detach().numpy().ravel().copy()
    x, y = table()
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    run = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=ETA), dataset=data, rule=rule,
        noise_multiplier=SIGMA, delta=1e-5, steps=STEPS, batch_size=B, seed=1,
    )  # fmt: skip
    batches = [run.sampler.indices(run._feed.key, step) for step in range(STEPS)]
    for inputs, labels in run.batches():
        run.step(F.cross_entropy(model(inputs), labels, reduction="none"))
    return start, model.weight.detach().numpy().ravel(), batches, noise


CLIP = 0.3
CERTIFIED = {
    "Algorithm 1": (winsor.rules.Flat(CLIP), READINGS["norm"][1]),
    "Algorithm 3, declared and proven": (
        winsor.rules.Value(
            CLIP, growth=WeakGrowth(BETA_1, BETA_2, proof=LayerBounds()), lower=LOWER
        ),
        lambda f_i, g, f: max(READINGS["f_i"][1](f_i, g, f), np.linalg.norm(g)),
    ),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_certified_rules_are_the_papers_lines_with_f_i(name, monkeypatch):
    """To 1e-6, the relative margin of 1e-5 that the rules leave for rounding included."""
    rule, bound = CERTIFIED[name]
    start, found, batches, noise = private(rule, monkeypatch)
    expected = transcription(start, batches, noise.vectors, CLIP, bound)[-1]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert noise.stds == pytest.approx([CLIP * SIGMA] * STEPS, rel=1e-3)  # never less, see below
    assert min(noise.stds) >= CLIP * SIGMA


def test_appendix_d_is_algorithm_3_with_each_rows_beta_1(monkeypatch):
    """H = 1: the sum of products is 1, and beta_1 of row i is c |x_i|^2."""
    x, y = table()
    rule = winsor.rules.Value(CLIP, growth=NetworkGrowth(2 * LOGISTIC))
    start, found, batches, noise = private(rule, monkeypatch)
    w = start
    for batch, xi in zip(batches, noise.vectors, strict=True):
        total = np.zeros_like(w)
        for i in batch:
            value, gradient = loss_and_gradient(w, x[i], y[i])
            beta_1 = 2 * LOGISTIC * x[i] @ x[i]
            total += gradient / max(1.0, math.sqrt(beta_1 * value) / CLIP)
        w = w - ETA / B * (total + xi)
    np.testing.assert_allclose(found, w, atol=1e-6)


def test_batches_and_noise_are_drawn_if_not_given():
    run = PrintedRun(200, 1.0, 500.0, B, 1e-6, WeakGrowth(BETA_1), reading="f(w)")
    start = torch.zeros(CLASSES * D, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    steps = run.iterates(start, losses_of, generator=generator).diff(dim=0)
    assert steps.std() * B / 1e-6 == pytest.approx(500, rel=0.1)


@pytest.mark.parametrize(
    "options", [{"reading": "mean"}, {"reading": "norm", "growth": WeakGrowth(1.0)}, {"steps": 0},
                {"noise_multiplier": -1.0}, {"lr": 0.0}],
)  # fmt: skip
def test_bad_inputs_are_named(options):
    given = {"steps": 1, "max_grad_norm": 1.0, "noise_multiplier": 1.0, "batch_size": 2.0,
             "lr": 0.1, "growth": WeakGrowth(1.0), **options}  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"must be .* Got"):
        PrintedRun(**given)
