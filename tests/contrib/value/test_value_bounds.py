"""No per-sample norm exceeds its bound, and the bounds are tight enough to be useful."""

from __future__ import annotations

import functools

import pytest
import torch
import value_networks
from torch import nn
from torch.nn import functional as F

from winsor.contrib.value.engine import ForwardEngine
from winsor.contrib.value.value import Value
from winsor.core.contract import UnsupportedModel
from winsor.gradients import trainable_parameters
from winsor.models.networks import mlp, resnet_gn, two_layer_cnn

NETWORKS = 400  # times 25 rows: 10,000 cases


def bounds_and_norms(model, x, loss, forms):
    """{form: (n,) bounds}, and the exact (n,) norms of the very same forward pass."""
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters, keeps_graph=True)
    engine.attach()
    engine.recording(True)
    losses = loss(model(x))
    view = engine.view(losses)
    rules = {form: Value(1.0, form=form) for form in forms}
    bounds = {form: rule.bounds(view, rule.init({}, 1.0)) for form, rule in rules.items()}
    engine.detach()
    return bounds, exact_norms(losses, parameters)


def exact_norms(losses, parameters):
    """One backward pass per row, batched: the gradients that plain autograd gives."""
    rows = torch.autograd.grad(
        losses, list(parameters.values()), torch.eye(len(losses)),
        retain_graph=True, allow_unused=True, is_grads_batched=True,
    )  # fmt: skip
    squares = [g.flatten(1).double().square().sum(1) for g in rows if g is not None]
    return torch.stack(squares).sum(0).sqrt()


def test_no_norm_exceeds_its_bound_in_ten_thousand_cases():
    tightness: dict[str, list[torch.Tensor]] = {"outputs": [], "forward": []}
    for seed in range(NETWORKS):
        model, x, loss = value_networks.random_case(seed)
        bounds, norm = bounds_and_norms(model, x, loss, tightness)
        for form, bound in bounds.items():
            assert bound.isfinite().all(), f"{form}: network {seed} has rows without a bound"
            excess = (norm - bound * (1 + 1e-5)).max()
            assert excess <= 0, f"{form}: network {seed} is {excess} beyond its bound\n{model}"
            tightness[form].append((bound / norm)[norm > 1e-3])
    assert torch.cat(tightness["outputs"]).median() < 1.5
    assert torch.cat(tightness["forward"]).median() < 5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_value_form_bounds_networks_of_appendix_d(depth, bias):
    for seed in range(12):
        torch.manual_seed(seed)
        model = mlp([7, *[9] * (depth - 1), 4], bias=bias)
        x = torch.randn(30, 7) * torch.logspace(-3, 2, 30)[:, None]
        y = torch.randint(0, 4, (30,))
        loss = functools.partial(F.cross_entropy, target=y, reduction="none")
        value_networks.train(model, x, loss, seed)
        bounds, norm = bounds_and_norms(model, x, loss, ("value", "outputs"))
        assert (norm <= bounds["value"] * (1 + 1e-5)).all()
        assert (bounds["outputs"] <= bounds["value"] * (1 + 1e-5)).all()


def test_the_value_form_bounds_other_losses_too():
    """Its formula is cross-entropy's; for another loss the exact loss gradient takes over."""
    torch.manual_seed(0)
    model = mlp([5, 8, 3])
    x, target = torch.randn(20, 5), torch.randn(20, 3) * 30
    bounds, norm = bounds_and_norms(model, x, lambda z: (z - target).square().sum(1), ("value",))
    assert (norm <= bounds["value"] * (1 + 1e-5)).all()


def smooth_images(n, channels, size):
    return F.interpolate(torch.randn(n, channels, 4, 4), size=size, mode="bilinear")


TIGHT = {
    "two-layer perceptron": (lambda: mlp([784, 128, 10]), lambda: torch.rand(64, 784), 1.5),
    "two-layer perceptron, narrow": (lambda: mlp([20, 64, 3]), lambda: torch.randn(64, 20), 1.5),
    "five-layer perceptron": (
        lambda: mlp([784, 128, 128, 128, 128, 10]), lambda: torch.rand(64, 784), 3,
    ),
    "five-layer perceptron, wide": (lambda: mlp([64] * 5 + [10]), lambda: torch.randn(64, 64), 3),
    "small ResNet": (lambda: resnet_gn(8, width=8), lambda: smooth_images(16, 3, 16), 10),
    "small ResNet, noise": (lambda: resnet_gn(8), lambda: torch.randn(8, 3, 32, 32), 10),
    "two-layer CNN": (two_layer_cnn, lambda: smooth_images(32, 1, 28).sigmoid(), 10),
}  # fmt: skip


@pytest.mark.parametrize("name", TIGHT)
def test_the_median_bound_is_close_to_the_norm(name):
    torch.manual_seed(1)
    make, inputs, limit = TIGHT[name]
    model, x = make(), inputs()
    y = torch.randint(0, 3, (len(x),))

    def loss(z):
        return F.cross_entropy(z, y, reduction="none")

    for steps in (0, 6):
        value_networks.train(model, x, loss, steps)
        bounds, norm = bounds_and_norms(model, x, loss, ("outputs",))
        assert (norm <= bounds["outputs"] * (1 + 1e-5)).all()
        assert (bounds["outputs"] / norm).median() <= limit


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.a(x))


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class OverTheBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True).expand_as(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale


REFUSED = {
    "the same module twice": (Tied(), "two uses"),
    "an unknown activation": (nn.Sequential(nn.Linear(4, 4), Sine()), "Sin"),
    "a product of activations": (nn.Sequential(nn.Linear(4, 4), Gate()), "two activations"),
    "a statistic of the batch": (nn.Sequential(nn.Linear(4, 4), OverTheBatch()), "Expand"),
    "a bare parameter": (nn.Sequential(nn.Linear(4, 4), Scaled()), "parameter"),
    "a parametrised weight": (
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), "expects weights",
    ),
    "frozen batch statistics": (
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval(), "1 ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_layers_without_a_proof_are_refused_with_the_rule_to_use(name):
    model, reason = REFUSED[name]
    x = torch.randn(6, 4)
    with pytest.raises(UnsupportedModel, match="Flat") as caught:
        bounds_and_norms(model, x, lambda z: z.square().sum(1), ("outputs",))
    assert reason in str(caught.value)


@pytest.mark.parametrize("form", ["outputs", "forward"])
def test_nothing_per_sample_is_materialised(form):
    """The largest tensor of a step has no factor (rows x parameters)."""
    model, x = mlp([50, 40, 30, 5]), torch.randn(64, 50)
    y = torch.zeros(64, dtype=torch.long)
    engine = ForwardEngine(model, trainable_parameters(model), keeps_graph=True)
    engine.attach()
    engine.recording(True)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    rule = Value(1.0, form=form)
    with Watch():
        losses = F.cross_entropy(model(x), y, reduction="none")
        rule.contributions(engine.view(losses), rule.init({}, 1.0))
    parameters = sum(p.numel() for p in model.parameters())  # the sum itself, in one piece
    assert largest <= max(64 * 50, parameters)
