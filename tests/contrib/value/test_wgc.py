"""The weak growth constants hold, and are the best where the docstring says so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from winsor.contrib.value.wgc import (
    LOGISTIC,
    clipping_frequency,
    linear_regression,
    logistic_regression,
    relu_network,
    relu_network_bound,
    smooth,
    softmax_regression,
)
from winsor.core.contract import ConfigurationError
from winsor.models.networks import mlp

seeds = st.integers(0, 2**16)


def draws(seed, n=50, d=4):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator).double()
    scales = 10 ** (torch.rand(n, generator=generator).double() * 4 - 2)
    return x * scales[:, None], generator


@given(seeds)
def test_linear_regression_meets_its_constant(seed):
    x, generator = draws(seed)
    r = torch.randn(50, generator=generator).double()
    gradient = (r[:, None] * x).norm(dim=1)
    torch.testing.assert_close(linear_regression(x).bound(r.square() / 2), gradient)
    with_intercept = (gradient.square() + r.square()).sqrt()
    torch.testing.assert_close(linear_regression(x, True).bound(r.square() / 2), with_intercept)


@given(seeds)
def test_logistic_regression_is_bounded(seed):
    x, generator = draws(seed)
    margin = torch.randn(50, generator=generator).double() * 5
    losses = F.softplus(-margin)
    norms = torch.sigmoid(-margin) * x.norm(dim=1)
    bound = logistic_regression(x).bound(losses)
    assert (norms <= bound).all()
    assert (bound <= smooth(x.square().sum(1) / 4).bound(losses)).all()


def test_the_logistic_constant_is_the_best_to_four_digits():
    f = torch.linspace(1e-4, 20, 2_000_001, dtype=torch.float64)
    ratio = ((1 - torch.exp(-f)).square() / f).max()
    assert ratio <= LOGISTIC <= ratio + 2e-4


@given(seeds, st.integers(2, 7))
def test_softmax_regression_is_bounded(seed, classes):
    x, generator = draws(seed)
    weight = torch.randn(classes, 4, generator=generator).double()
    y = torch.randint(0, classes, (50,), generator=generator)
    z = x @ weight.T
    errors = z.softmax(1) - F.one_hot(y, classes)
    norms = errors.norm(dim=1) * x.norm(dim=1)
    losses = F.cross_entropy(z, y, reduction="none")
    assert (norms <= softmax_regression(x).bound(losses) * (1 + 1e-12) + 1e-12).all()
    wider = errors.norm(dim=1) * (x.square().sum(1) + 1).sqrt()
    assert (wider <= softmax_regression(x, True).bound(losses) * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_appendix_d_bounds_networks_without_biases(depth):
    torch.manual_seed(depth)
    model = mlp([6, *[8] * (depth - 1), 4], bias=False).double()
    x, y = torch.randn(20, 6).double() * 2, torch.randint(0, 4, (20,))
    losses = F.cross_entropy(model(x), y, reduction="none")
    matrices = list(model.parameters())
    norms = [float(torch.linalg.matrix_norm(w.detach(), 2)) for w in matrices]
    by_growth = relu_network(x, norms).bound(losses.detach())
    capped = relu_network_bound(x, norms, losses.detach())
    for i, loss in enumerate(losses):
        rows = torch.autograd.grad(loss, matrices, retain_graph=True)
        true = torch.cat([g.flatten() for g in rows]).norm()
        assert true <= capped[i] <= by_growth[i] * (1 + 1e-12)


def test_the_growth_condition_scales_with_the_gap_to_the_lower_bound():
    losses = torch.tensor([1.0, 3.0])
    assert torch.equal(smooth(2.0).bound(losses, lower=1.0), torch.tensor([0.0, 8.0]).sqrt())


def test_clipping_frequency_counts_over_batches():
    batches = [torch.tensor([0.5, 1.0, 1.5]), torch.tensor([9.0])]
    assert clipping_frequency(batches, 1.0) == 0.5
    assert clipping_frequency(iter(batches), 10.0) == 0.0


def test_clipping_becomes_rare_as_training_goes_on():
    """Figure 1: lower loss, smaller gradients, fewer of them above a fixed threshold."""
    torch.manual_seed(0)
    x = torch.randn(400, 5).double()
    y = torch.where(x @ torch.randn(5).double() > 0, 1.0, -1.0).double()
    w = torch.zeros(5).double()
    frequency = []
    for _ in range(30):
        errors = torch.sigmoid(-y * (x @ w))
        frequency.append(clipping_frequency([errors * x.norm(dim=1)], 0.8))
        w += 2.0 * ((errors * y) @ x) / len(x)
    assert frequency[0] > 0.7
    assert frequency[-1] < 0.2


@pytest.mark.parametrize(
    "call", [lambda: clipping_frequency([], 1.0), lambda: relu_network(torch.ones(1, 2), [])]
)
def test_nothing_to_measure_is_an_error(call):
    with pytest.raises(ConfigurationError, match="at least one"):
        call()
