"""Algorithms 1 and 2 of ModelMix against plain transcriptions, with the noise injected.

The transcriptions below are numpy, written from the paper's lines alone. Training and transcription
are given the same batches, noise and mixing weights; nothing else is shared.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.modelmix.mechanism import Earlier, ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.core.accounting.lattice import WIDEST
from winsor.core.contract import ConfigurationError, UnsoundRelease
from winsor.core.noise.source import NoiseOfStep
from winsor.rules import Flat, LInf
from winsor.rules.rule import clip_weights

D, CLASSES, STEPS, SIZE = 5, 3, 12, 20
LESS = float(clip_weights(torch.ones(1, dtype=torch.float64), 1.0))
"""Rules clip to this share of c, to leave room for rounding."""


# --------------------------------------------------------------------- the paper's lines, in numpy


def clip(gradient, c):
    """CP(g, c) = g min(1, c / |g|)."""
    return gradient * min(1.0, c / np.linalg.norm(gradient))


def algorithm_2(gradient, c, p):
    gradient = clip(gradient, c)
    for j in range(len(gradient)):
        if abs(gradient[j]) > c / np.sqrt(p):
            gradient[j] = np.sign(gradient[j]) * c / np.sqrt(p)
    return gradient


def algorithm_1(gradient_of, batches, w_minus_1, w_0, eta, tau, c, p, alpha, noise):
    """w_T of Algorithm 1 with the clipping of Algorithm 2; a sign of zero counts as one."""
    before, now = w_minus_1.copy(), w_0.copy()
    trail = [before, now]
    for k in range(len(batches)):
        summed = sum(
            (algorithm_2(gradient_of(now, row), c, p) for row in batches[k]), np.zeros_like(now)
        )
        new = np.empty_like(now)
        for j in range(len(now)):
            high, low = now[j], before[j]
            if abs(high - low) < tau[k]:
                middle, sign = (high + low) / 2, 1.0 if high >= low else -1.0
                high, low = middle + sign * tau[k] / 2, middle - sign * tau[k] / 2
            mixed = alpha[k][j] * high + (1 - alpha[k][j]) * low
            new[j] = mixed - eta[k] * (summed[j] + noise[k][j])
        before, now = now, new
        trail.append(now)
    return trail


def logistic_gradient(w, row):
    """Of softmax cross-entropy with weights (classes, d) and biases, in torch's order."""
    x, y = row
    weight, bias = w[: CLASSES * D].reshape(CLASSES, D), w[CLASSES * D :]
    scores = weight @ x + bias
    share = np.exp(scores - scores.max())
    share /= share.sum()
    share[y] -= 1
    return np.concatenate([np.outer(share, x).ravel(), share])


# ------------------------------------------------------------------------------- the same in winsor


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters]).numpy().copy()


def trained(monkeypatch, mix, rule, lr, schedule=None):
    """Train; give w_0, the batches, noise, weights in [-1/2, 1/2], the trail, and the run."""
    size = CLASSES * D + CLASSES
    rng = np.random.default_rng(3)
    noise = rng.normal(0, 2.0, (STEPS, size))
    uniform = rng.uniform(-0.5, 0.5, (STEPS, size))

    releases = iter(noise)

    def inject(self, name, leaves, scale, law):
        values, start = torch.from_numpy(next(releases)), 0
        for leaf in leaves:
            leaf += values[start : start + leaf.numel()].view_as(leaf)
            start += leaf.numel()

    monkeypatch.setattr(NoiseOfStep, "add", inject)
    monkeypatch.setattr(
        MixingUpdate,
        "_drawn",
        lambda self, entry, m: (torch.from_numpy(uniform[self._step]) * (2 * m + 1)).round().long(),
    )
    torch.manual_seed(0)
    model = nn.Linear(D, CLASSES).double()
    x = torch.randn(100, D, dtype=torch.float64) * 2
    y = torch.randint(0, CLASSES, (100,))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    private = winsor.make_private(
        model=model, optimizer=optimizer, dataset=TensorDataset(x, y), rule=rule,
        batch_size=SIZE, steps=STEPS, noise_multiplier=1.0, delta=1e-3, seed=5, mechanism=mix,
        scheduler=None if schedule is None else schedule(optimizer),
    )  # fmt: skip
    start, batches, trail = flat(model.parameters()), [], []
    for batch in private.batches():
        batches.append(list(zip(batch[0].numpy(), batch[1].numpy(), strict=True)))
        private.step(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
        trail.append(flat(model.parameters()))
    assert len(batches) == STEPS  # none of them empty
    return start, batches, noise, uniform, trail, private


def same(found, start, given, tau, lr, c, p, earlier=None):
    """Every iterate agrees.

    The run widens tau by `WIDEST`, for the grid that its noise is on, and clips shorter by
    what rules leave to rounding: the paper's tau and c are set to these.
    """
    batches, noise, uniform = given
    c = c * LESS
    before, now = start if earlier is None else earlier, start
    trail = [before, now]
    for k in range(STEPS):
        alpha = 0.5 + np.where(now >= before, 1.0, -1.0) * uniform[k]
        step = algorithm_1(
            logistic_gradient, [batches[k]], before, now, [lr[k] / SIZE], [tau[k] * WIDEST],
            c, p, [alpha], [noise[k]],
        )[-1]  # fmt: skip
        before, now = now, step
        trail.append(now)
        np.testing.assert_allclose(found[k], now, rtol=0, atol=1e-6)
    return trail


def test_algorithm_1_and_2_with_tau_as_a_multiple_of_the_step(monkeypatch):
    start, *given, trail, _ = trained(monkeypatch, ModelMix(0.3), LInf(0.7, p=4), lr=0.5)
    same(trail, start, given, [0.3 * 0.5] * STEPS, [0.5] * STEPS, c=0.7, p=4)


def test_algorithm_1_without_coordinate_bound_and_with_a_schedule_of_tau(monkeypatch):
    mix = ModelMix(((0, 0.4), (6, 0.0)))
    start, *given, trail, _ = trained(monkeypatch, mix, Flat(0.7), lr=0.5)
    same(trail, start, given, [0.2] * 6 + [0.0] * 6, [0.5] * STEPS, c=0.7, p=1)


def test_algorithm_1_with_an_absolute_tau_a_falling_step_and_another_w_minus_1(monkeypatch):
    earlier = nn.Linear(D, CLASSES).double()
    mix = ModelMix(tau=0.15, lr=0.5, earlier=Earlier(dict(earlier.named_parameters())))
    rates = [0.5 * 0.9**k for k in range(STEPS)]

    def falling(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    start, *given, trail, private = trained(monkeypatch, mix, LInf(0.7, p=4), 0.5, falling)
    same(trail, start, given, [0.15] * STEPS, rates, 0.7, 4, earlier=flat(earlier.parameters()))
    ((event, count),) = private.ledger.history()
    assert count == STEPS
    assert event.width_ratio == pytest.approx(0.15 / 0.5 * SIZE / 0.7)


def test_a_chain_of_steps_is_the_whole_algorithm(monkeypatch):
    """The loop of the paper, run at once from its own iterates."""
    start, batches, noise, uniform, trail, _ = trained(monkeypatch, ModelMix(0.3), Flat(0.7), 0.5)
    iterates = same(trail, start, (batches, noise, uniform), [0.15] * STEPS, [0.5] * STEPS, 0.7, 1)
    alpha = [
        0.5 + np.where(iterates[k + 1] >= iterates[k], 1.0, -1.0) * uniform[k] for k in range(STEPS)
    ]
    whole = algorithm_1(
        logistic_gradient, batches, start, start, [0.5 / SIZE] * STEPS, [0.15 * WIDEST] * STEPS,
        0.7 * LESS, 1, alpha, noise,
    )  # fmt: skip
    np.testing.assert_allclose(trail[-1], whole[-1], rtol=0, atol=1e-6)


def test_equation_10_with_the_step_in_its_proximal_term(monkeypatch):
    """In expectation a mixed step is a plain step on F(w) + |w - w_{k-2}|^2 / (4 eta).

    Printed is |w - w_{k-2}|^2 / 4, whose gradient would be multiplied by eta as that of F is.
    """
    monkeypatch.setattr(MixingUpdate, "_drawn", lambda self, entry, m: torch.zeros_like(m))
    w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64))
    before, eta = torch.tensor([0.0, -1.0, 2.0, 3.0], dtype=torch.float64), 0.1
    mix = ModelMix(0.2, earlier=Earlier({"w": before}))
    mixing = MixingUpdate({"w": w}, torch.optim.SGD([w], lr=eta), None, 1.0, mix, b"k" * 32)
    start = w.detach().clone().requires_grad_(True)
    objective = start.square().sum() / 2 + (start - before).square().sum() / (4 * eta)
    (gradient,) = torch.autograd.grad(objective, start)
    mixing.move({"w": start.detach().clone()}, 0, std=1.0)  # the gradient of |w|^2 / 2
    torch.testing.assert_close(w.detach(), start.detach() - eta * gradient)


# ------------------------------------------------------------------ what an absolute tau rests on


def test_an_absolute_tau_is_accounted_for_at_the_largest_rate_and_a_larger_one_is_refused():
    mix = ModelMix(tau=((0, 0.3), (10, 0.1)), lr=((0, 0.5), (20, 0.25)))
    assert mix.schedule == ((0, 0.6), (10, 0.2), (20, 0.4))
    assert mix.distance(15, 0.5) == mix.distance(15, 0.01) == 0.1  # whatever the rate
    with pytest.raises(UnsoundRelease, match=r"at most lr = 0\.25"):
        mix.distance(20, 0.3)
    with pytest.raises(UnsoundRelease, match="learning rate"):
        mix.distance(20, float("nan"))


def test_a_refused_step_moves_nothing():
    w, v = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([{"params": [w], "lr": 0.1}, {"params": [v], "lr": 0.9}], lr=0.1)
    mix = ModelMix(tau=0.1, lr=0.5)
    mixing = MixingUpdate({"w": w, "v": v}, optimizer, None, 1.0, mix, b"k" * 32)
    with pytest.raises(UnsoundRelease, match="learning rate"):
        mixing.move({"w": torch.ones(3), "v": torch.ones(3)}, 0, std=1.0)
    assert w.eq(0).all() and v.eq(0).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"tau_over_lr": 0.1, "tau": 0.1, "lr": 0.1},
        {"tau": 0.1},
        {"tau_over_lr": 0.1, "lr": 0.1},
    ],
)
def test_tau_is_given_once_and_absolute_only_with_a_rate(wrong):
    with pytest.raises(ConfigurationError, match="tau_over_lr must be given, or tau with lr"):
        ModelMix(**wrong)


def test_wrong_rates_and_earlier_iterates_are_refused():
    with pytest.raises(ConfigurationError, match="lr must be finite and above 0"):
        ModelMix(tau=0.1, lr=0.0)
    with pytest.raises(ConfigurationError, match="earlier must be one of start, zero"):
        ModelMix(0.1, earlier="end")
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    for weights in ({}, {"w": torch.zeros(2)}, {"w": torch.full((3,), torch.nan)}):
        with pytest.raises(ConfigurationError, match="earlier must hold finite weights"):
            MixingUpdate(
                {"w": w}, optimizer, None, 1.0, ModelMix(0.1, earlier=Earlier(weights)), b"k" * 32
            )
    zero = MixingUpdate({"w": w}, optimizer, None, 1.0, ModelMix(0.1, earlier="zero"), b"k" * 32)
    assert zero.before["w"].eq(0).all()


def test_earlier_weights_are_told_apart_and_are_a_copy():
    weights = {"w": torch.zeros(2)}
    one = Earlier(weights)
    weights["w"] += 1
    assert one == Earlier({"w": torch.zeros(2)}) != Earlier(weights)
    assert len({one, Earlier(weights)}) == 2
    assert repr(one) in repr(ModelMix(0.1, earlier=one))


def test_the_average_of_theorem_3_1_starts_at_w_minus_1():
    torch.manual_seed(0)
    model, earlier = nn.Linear(2, 2), nn.Linear(2, 2)
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.randn(50, 2), torch.zeros(50, dtype=torch.long)),
        rule=Flat(1.0), batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-3, seed=1,
        mechanism=ModelMix(0.1, earlier=Earlier(dict(earlier.named_parameters()))),
        iterate="averaged_midpoints",
    )  # fmt: skip
    trail = [flat(earlier.parameters()), flat(model.parameters())]
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
        trail.append(flat(model.parameters()))
    wanted = sum(trail[k] + trail[k - 1] for k in range(1, 4)) / 6
    np.testing.assert_allclose(flat(model.parameters()), wanted, atol=1e-6)
