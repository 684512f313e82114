"""Small models of linear maps: what goes by the plan has the norms and sums of the oracle, and what
does not is noticed and served as ever."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from winsor.contrib.value.value import Value
from winsor.core.contract import UnsupportedModel
from winsor.gradients import Need, make_engine, trainable_parameters
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.small import LinearView

NEEDS = Need.NORMS | Need.WEIGHTED_SUM


def attached(model: nn.Module, name: str = "ghost"):
    engine = make_engine(model, trainable_parameters(model), name, NEEDS)
    engine.attach()
    engine.recording(True)
    return engine


def losses_of(out: Tensor) -> Tensor:
    return F.cross_entropy(out, torch.arange(len(out)) % out.shape[1], reduction="none")


def oracle(model: nn.Module, x: Tensor, weights: Tensor, forward=None):
    """Norms and weighted sum, row by row in float64."""
    twin = copy.deepcopy(model).double()
    engine = attached(twin, "loop")
    view = engine.view(losses_of((forward or (lambda m, v: m(v)))(twin, x.double())))
    found = view.norms(), view.weighted_sum(weights.double())
    engine.detach()
    return found


def same_as_oracle(model: nn.Module, x: Tensor, view, forward=None) -> None:
    weights = torch.linspace(0.1, 2.0, len(x))
    norms, sums = oracle(model, x, weights, forward)
    torch.testing.assert_close(view.norms().double(), norms, rtol=2e-6, atol=1e-12)
    found = view.weighted_sum(weights)
    for name, leaf in sums.items():
        torch.testing.assert_close(found[name].double(), leaf, rtol=2e-5, atol=2e-6)


def perceptron(inplace: bool = False) -> nn.Module:
    return nn.Sequential(nn.Linear(7, 19), nn.ReLU(inplace), nn.Linear(19, 5))


class Frozen(nn.Sequential):
    """Only the first bias and the second weight are trained."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5))
        self[0].weight.requires_grad_(False)
        self[2].bias.requires_grad_(False)


MODELS = {
    "linear": lambda: nn.Linear(7, 5),
    "without bias": lambda: nn.Linear(7, 5, bias=False),
    "perceptron": perceptron,
    "in place": lambda: perceptron(inplace=True),
    "deep": lambda: nn.Sequential(
        nn.Linear(7, 33, bias=False), nn.ReLU(True), nn.Linear(33, 1), nn.Tanh(), nn.Linear(1, 4)
    ),
    "partly frozen": Frozen,
}


@pytest.mark.parametrize("name", MODELS)
def test_planned_steps_have_the_norms_and_sums_of_the_oracle(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    engine = attached(model)
    for step in range(3):  # the first one is verified by the recorder
        x = torch.randn(23 + step, 7)
        view = engine.view(losses_of(model(x)))
        assert isinstance(view, LinearView)
        same_as_oracle(model, x, view)
        assert not engine._plan._noted


def plain_in_place(model: nn.Module, x: Tensor) -> Tensor:
    out = model[0](x)
    out *= 2.0  # of the output itself, after it was noted
    return model[2](torch.tanh(out))


WAYS = {
    "twice": lambda model, x: model(x) + model(-x),
    "a part of the rows": lambda model, x: model(torch.cat([x[:3], x[3:]])),
    "changed in place": plain_in_place,
    "one place more": lambda model, x: model(x.unsqueeze(1)).squeeze(1),
    "across memory": lambda model, x: model(x.T.contiguous().T),
    "without the first layer": lambda model, x: model[2](x.repeat(1, 3)[:, :19]),
    "recomputed": lambda model, x: checkpoint(model, x, use_reentrant=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_any_other_step_is_served_too(way):
    torch.manual_seed(0)
    model = perceptron()
    engine = attached(model)
    x = torch.randn(12, 7)
    for again in range(4):
        forward = WAYS[way] if again in (1, 2) else nn.Module.__call__
        view = engine.view(losses_of(forward(model, x)))
        same_as_oracle(model, x, view, forward)
        assert isinstance(view, RecordedView)


def test_a_forward_pass_that_nobody_uses_changes_nothing():
    torch.manual_seed(0)
    model, x = perceptron(), torch.randn(9, 7)
    engine = attached(model)
    for _ in range(3):
        used = model(x)
        model(torch.randn(4, 7))  # a look at other rows, with a graph
        same_as_oracle(model, x, engine.view(losses_of(used)))


def test_rows_that_are_not_finite_contribute_nothing():
    torch.manual_seed(0)
    model, x = perceptron(), torch.randn(9, 7)
    engine = attached(model)
    engine.view(losses_of(model(x)))
    kept = torch.tensor([0, 1, 3, 4, 5, 6, 8])
    bad = x.clone()
    bad[2], bad[7] = float("nan"), float("inf")
    view = engine.view(F.cross_entropy(model(bad), torch.arange(9) % 5, reduction="none"))
    assert isinstance(view, LinearView) and view.neutralised == 2
    assert view.norms()[[2, 7]].tolist() == [0.0, 0.0]
    good = engine.view(F.cross_entropy(model(x[kept]), kept % 5, reduction="none"))
    found, expected = view.weighted_sum(torch.ones(9)), good.weighted_sum(torch.ones(7))
    for name, leaf in expected.items():
        torch.testing.assert_close(found[name], leaf)


def test_a_row_that_is_not_finite_leaves_the_digits_of_the_others():
    torch.manual_seed(0)
    model, x = nn.Linear(7, 5), torch.randn(9, 7)
    engine, slopes = attached(model), torch.randn(9, 5)
    views = []
    for value in (1.0, 1.0, float("inf"), float("nan")):
        rows = x.clone()
        rows[2, 3] *= value
        views.append(engine.view((model(rows) * slopes).sum(1)))
    _, plain, *others = views
    weights = torch.ones(9, dtype=torch.float64)
    without = plain.weighted_sum(torch.where(torch.arange(9) == 2, 0.0, weights))
    for view in others:
        assert isinstance(view, LinearView) and view.norms().dtype is torch.float64
        assert torch.equal(view.norms(), torch.where(torch.arange(9) == 2, 0.0, plain.norms()))
        assert all(torch.equal(view.weighted_sum(weights)[name], without[name]) for name in without)
        assert view.group_norms([["weight"], ["bias"]])[2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [1e30, 1e18, 1e-25])
def test_extreme_rows_have_exact_norms(scale):
    torch.manual_seed(0)
    model = nn.Linear(7, 5)
    engine = attached(model)
    for _ in range(2):
        x = torch.randn(6, 7)
        x[4] *= scale
        slopes = torch.randn(6, 5)
        view = engine.view((model(x) * slopes).sum(1))
    assert isinstance(view, LinearView) and view.neutralised == 0
    exact = slopes.double().norm(dim=1) * (x.double().square().sum(1) + 1).sqrt()
    torch.testing.assert_close(view.norms().double(), exact, rtol=1e-7, atol=0)


def test_a_parameter_used_past_its_module_is_refused_at_any_step():
    model, x = nn.Linear(7, 5), torch.randn(6, 7)
    engine = attached(model)
    for _ in range(2):
        engine.view(losses_of(model(x)))
    with pytest.raises(UnsupportedModel, match="weight used elsewhere"):
        engine.view(losses_of(model(x)) + model.weight.square().sum())
    same_as_oracle(model, x, engine.view(losses_of(model(x))))
    assert model.weight.grad is None


def test_an_input_that_was_changed_afterwards_is_refused():
    model, x = nn.Linear(7, 5), torch.randn(6, 7)
    engine = attached(model)
    engine.view(losses_of(model(x)))
    losses = losses_of(model(x))
    x[0] += 1.0
    with pytest.raises(UnsupportedModel, match="changed in place"):
        engine.view(losses)


def test_tied_weights_and_other_layers_have_no_plan():
    tied = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    tied[2].weight = tied[0].weight
    normed = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    for model in (tied, normed, nn.Linear(3, 2).double()):
        engine = make_engine(model, trainable_parameters(model), "ghost", NEEDS)
        assert engine._plan is None


# ---------------------------------------------------------------------------- value clipping


@pytest.mark.parametrize("rule,engine", [
    (Value(1.0), "ghost"),
    (Value(1.0, form="forward"), "forward"),
    (Value(1.0, form="value"), "forward"),
])  # fmt: skip
def test_value_clipping_of_linear_layers_takes_their_norms(rule, engine):
    model = perceptron()
    assert make_engine(model, trainable_parameters(model), "auto", rule.needs).name == engine
    normed = nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5))
    assert make_engine(normed, trainable_parameters(normed), "auto", rule.needs).name == "forward"


def test_those_norms_are_the_bounds_of_the_forward_pass():
    torch.manual_seed(0)
    model, x, rule = perceptron(), 3 * torch.randn(11, 7), Value(0.5)
    weights = {}
    for name in ("auto", "forward"):
        engine = make_engine(model, trainable_parameters(model), name, rule.needs)
        engine.attach()
        engine.recording(True)
        view = engine.view(losses_of(model(x)))
        weights[name] = rule.weights(view, rule.init({}, 11.0)).detach()
        engine.detach()
    assert weights["auto"].min() < 1.0
    torch.testing.assert_close(
        weights["auto"], weights["forward"], rtol=1e-5, atol=0, check_dtype=False
    )
