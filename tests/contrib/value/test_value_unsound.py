"""Unsound readings of value clipping, each shown to break its claim.

They are those that docs/privacy.md, "Rules, one by one", rejects.

Beside each, the certified rule on the same numbers.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from winsor_papers.value.claim import as_printed, printed_scale

from winsor.contrib.value.engine import ForwardEngine
from winsor.contrib.value.value import FORMS, Value
from winsor.contrib.value.wgc import linear_regression, relu_network_bound, softmax_regression
from winsor.core.contract import UnsupportedModel
from winsor.gradients import trainable_parameters
from winsor.gradients.loop import LoopEngine
from winsor.models.networks import mlp


def certified(model, losses_of, form="outputs"):
    """(bounds, exact norms) of the rows."""
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters, keeps_graph=True)
    engine.attach()
    engine.recording(True)
    losses = losses_of(model)
    rule = Value(1.0, form=form)
    bounds = rule.bounds(engine.view(losses), rule.init(parameters, 1.0))
    engine.detach()
    return bounds, LoopEngine(model, parameters).view(losses).norms()


def test_the_mean_loss_does_not_bound_a_row_with_a_larger_loss():
    """Algorithm 3 as printed: n = 1000 rows, one of them hard. Its clipped norm is far above C."""
    model = mlp([4, 2])
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[4.0, 0, 0, 0], [-4.0, 0, 0, 0]]))
        model[1].bias.zero_()
    x = torch.zeros(1000, 4)
    x[:, 0] = 1.0
    y = torch.zeros(1000, dtype=torch.long)
    y[0] = 1
    losses = F.cross_entropy(model(x), y, reduction="none")
    growth = softmax_regression(x[:1], intercept=True)
    view = LoopEngine(model, trainable_parameters(model)).view(losses)
    clipped = view.norms() * printed_scale(view.losses(), growth, max_grad_norm=0.1)
    assert clipped.max() > 10 * 0.1
    neighbour = LoopEngine(model, trainable_parameters(model)).view(
        F.cross_entropy(model(x[1:]), y[1:], reduction="none")
    )
    moved = sum(
        (a - b).square().sum()
        for a, b in zip(
            as_printed(view, growth, 0.1).values(),
            as_printed(neighbour, growth, 0.1).values(),
            strict=True,
        )
    )
    assert moved.sqrt() > 10 * 0.1
    own = growth.bound(view.losses())
    assert (view.norms() <= own * (1 + 1e-5)).all()


@pytest.mark.parametrize("form", FORMS)
def test_appendix_d_is_no_bound_with_biases(form):
    """At x = 0 it is zero, and the gradient of the biases is not."""
    torch.manual_seed(0)
    model, x, y = mlp([5, 6, 3]), torch.zeros(1, 5), torch.tensor([0])
    norms = [float(torch.linalg.matrix_norm(model[i].weight.detach(), 2)) for i in (1, 3)]
    losses = F.cross_entropy(model(x), y, reduction="none")
    assert float(relu_network_bound(x, norms, losses.detach())) == 0.0
    bounds, true = certified(model, lambda m: F.cross_entropy(m(x), y, reduction="none"), form)
    assert true[0] > 0.5
    assert bounds[0] * (1 + 1e-6) >= true[0]  # the oracle's forward pass is in float64


def power_iteration(matrix, steps=2):
    v = torch.zeros(matrix.shape[1])
    v[0] = 1.0
    v[1] = 1e-3
    for _ in range(steps):
        v = matrix.T @ (matrix @ v)
        v /= v.norm()
    return float((matrix @ v).norm())


def test_power_iteration_is_a_lower_bound():
    """A few steps from a start that is nearly orthogonal to the top direction miss it."""
    model = mlp([3, 3, 3], bias=False)
    with torch.no_grad():
        for i in (1, 3):
            model[i].weight.copy_(torch.diag(torch.tensor([1.0, 3.0, 0.5])))
    x, y = torch.tensor([[0.0, 1.5, 0.0]]), torch.tensor([0])
    estimates = [power_iteration(model[i].weight.detach()) for i in (1, 3)]
    assert estimates[0] < 1.5
    losses = F.cross_entropy(model(x), y, reduction="none")
    claimed = relu_network_bound(x, estimates, losses.detach())
    bounds, true = certified(
        model, lambda m: F.cross_entropy(m(x), y, reduction="none"), form="value"
    )
    assert true[0] > claimed[0]
    assert bounds[0] >= true[0]


def test_the_largest_input_of_the_data_moves_every_record():
    """beta_1 from max |x|: one added record changes the weight of all others."""
    torch.manual_seed(1)
    threshold, x = 1.0, torch.randn(500, 3, dtype=torch.float64)
    x[-1] = 40.0
    residual = torch.ones(500, dtype=torch.float64)

    def clipped_sum(rows):
        growth = linear_regression(rows)
        shared = (growth.beta_1.max() * residual[: len(rows)].square() / 2).sqrt()
        weights = (threshold / shared).clamp(max=1.0)
        return (weights * residual[: len(rows)]) @ rows.abs()

    assert (clipped_sum(x) - clipped_sum(x[:-1])).norm() > 10 * threshold

    def own_sum(rows):
        bound = linear_regression(rows).bound(residual[: len(rows)].square() / 2)
        return ((threshold / bound).clamp(max=1.0) * residual[: len(rows)]) @ rows.abs()

    assert (own_sum(x) - own_sum(x[:-1])).norm() <= threshold * (1 + 1e-5)


def test_a_scale_that_is_differentiated_does_not_clip():
    """The gradient of f C/G(w) is not (C/G) times the gradient of f."""
    torch.manual_seed(0)
    worst = 0.0
    for _ in range(330):
        w1, w2 = (3 * torch.rand(1) * torch.randn(3, 3) for _ in range(2))
        weights = w1.requires_grad_(), w2.requires_grad_()
        x = torch.randn(3)
        h = torch.relu(w1 @ x)
        z = w2 @ h
        f = F.cross_entropy(z[None], torch.tensor([0]))
        e = z.softmax(0) - torch.tensor([1.0, 0, 0])
        top = torch.linalg.matrix_norm(w2, 2)
        bound = e.norm() * (h.square().sum() + x.square().sum() * top.square()).sqrt()
        attached = torch.autograd.grad(f / bound, weights, retain_graph=True)
        detached = torch.autograd.grad(f / bound.detach(), weights)
        worst = max(worst, float(torch.cat([g.flatten() for g in attached]).norm()))
        assert torch.cat([g.flatten() for g in detached]).norm() <= 1 + 1e-5
    assert worst > 2


def test_batch_statistics_and_tied_weights_are_refused():
    with pytest.raises(UnsupportedModel, match="BatchNorm"):
        certified(
            nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
            lambda m: m(torch.randn(4, 3)).square().sum(1),
        )
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    with pytest.raises(UnsupportedModel, match="tied"):
        certified(tied, lambda m: m(torch.randn(4, 3)).square().sum(1))


def test_tied_weights_would_break_a_sum_of_squares_over_layers():
    """Two uses of one weight add up before they are squared: the reason for the refusal."""
    weight = torch.tensor([[1.0]], requires_grad=True)
    x = torch.tensor([[1.0]])
    h = x @ weight.T
    (gradient,) = torch.autograd.grad((h @ weight.T).sum(), weight)
    layerwise = float((x.square() + h.detach().square()).sqrt())
    assert gradient.norm() > layerwise * 1.4
