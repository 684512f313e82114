"""The rule Value: what it clips, what it claims, and how it trains."""

from __future__ import annotations

import io

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from value_batches import LAST, contribution, hostile_batch

import winsor
from winsor.contrib.value.engine import ForwardEngine
from winsor.contrib.value.value import FORMS, Value
from winsor.core.contract import ConfigurationError, UnsupportedModel
from winsor.gradients import trainable_parameters
from winsor.gradients.loop import LoopEngine
from winsor.models.networks import mlp, two_layer_cnn


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", LAST)
def test_one_record_moves_the_sum_by_no_more_than_the_threshold(form, size):
    x, y = hostile_batch()
    x[7] = torch.linspace(-1, 1, 12) * size
    model = mlp([12, 10, 6, 3])
    rule = Value(0.3, form=form)
    with_it, without = (contribution(rule, model, x[:n], y[:n]) for n in (8, 7))
    assert with_it.isfinite().all() and without.isfinite().all()
    assert (with_it - without).norm() <= 0.3 * (1 + 1e-6)
    other = x.clone()
    other[7] = -torch.nan_to_num(other[7], 1, 1, 1) + 1
    assert (with_it - contribution(rule, model, other, y)).norm() <= 0.6 * (1 + 1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_each_row_is_scaled_by_its_own_bound(form):
    """The weights that the bounds imply, applied by the oracle, give the same sum."""
    torch.manual_seed(1)
    model, rule = mlp([6, 8, 3]), Value(0.5, form=form)
    x, y = torch.randn(9, 6) * torch.logspace(-2, 2, 9)[:, None], torch.arange(9) % 3
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters, keeps_graph=True)
    engine.attach()
    engine.recording(True)
    losses = F.cross_entropy(model(x), y, reduction="none")
    view = engine.view(losses)
    weights = rule.weights(view, rule.init(parameters, 1.0))
    oracle = LoopEngine(model, parameters).view(losses)
    assert (weights * oracle.norms() <= 0.5).all()
    found, expected = view.weighted_sum(weights), oracle.weighted_sum(weights)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_order_and_fragments_do_not_matter(form):
    torch.manual_seed(2)
    model, rule = mlp([6, 8, 3]), Value(0.5, form=form)
    x, y = torch.randn(10, 6) * 3, torch.arange(10) % 3
    whole = contribution(rule, model, x, y)
    order = torch.randperm(10)
    torch.testing.assert_close(whole, contribution(rule, model, x[order], y[order]))
    parts = contribution(rule, model, x[:4], y[:4]) + contribution(rule, model, x[4:], y[4:])
    torch.testing.assert_close(whole, parts)


def test_a_linear_model_is_clipped_exactly():
    """For linear layers on vectors the default bound is the norm: the rule is Flat, for less."""
    torch.manual_seed(3)
    model, flat = mlp([6, 8, 3]), winsor.rules.Flat(0.5)
    x, y = torch.randn(9, 6), torch.arange(9) % 3
    losses = F.cross_entropy(model(x), y, reduction="none")
    parameters = trainable_parameters(model)
    expected = flat.contributions(LoopEngine(model, parameters).view(losses), {})["grad"]
    flat_sum = torch.cat([g.flatten() for g in expected.values()]).double()
    torch.testing.assert_close(
        contribution(Value(0.5), model, x, y), flat_sum, rtol=1e-4, atol=1e-6
    )


def test_a_view_without_a_graph_is_clipped_by_its_norms():
    rows = winsor.gradients.rows.RowsView({"w": torch.tensor([[3.0, 4.0], [0.3, 0.4]])})
    rule = Value(1.0)
    torch.testing.assert_close(
        rule.weights(rows, rule.init({}, 1.0)), torch.tensor([0.2, 1.0]).double(), rtol=2e-4, atol=0
    )


def test_the_value_form_refuses_what_appendix_d_does_not_cover():
    with pytest.raises(UnsupportedModel, match="outputs"):
        contribution(
            Value(1.0, form="value"),
            two_layer_cnn(3),
            torch.randn(4, 1, 28, 28),
            torch.arange(4) % 3,
        )


@pytest.mark.parametrize(
    "options", [{"max_grad_norm": 0.0}, {"max_grad_norm": 1.0, "form": "loss"}]
)
def test_bad_settings_are_named(options):
    with pytest.raises(ConfigurationError, match=r"must be .* Got .* instead"):
        Value(**options)


def private_run(form, **options):
    torch.manual_seed(4)
    x = torch.randn(200, 1, 28, 28)
    data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    model = two_layer_cnn(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return winsor.make_private(
        model=model, optimizer=optimizer, dataset=data, rule=Value(1.0, form=form), delta=1e-5,
        noise_multiplier=1.0, steps=4, batch_size=16, seed=11, **options,
    )  # fmt: skip


def finish(private, steps):
    for x, y in private.batches(steps):
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return torch.cat([p.detach().flatten() for p in private.model.parameters()])


@pytest.mark.parametrize("form", ["outputs", "forward"])
def test_training_and_resuming_give_the_same_weights(form):
    """The carried spectral norms are part of the state: a resumed run computes the same bounds."""
    whole = finish(private_run(form), 4)
    half = private_run(form)
    finish(half, 2)
    buffer = io.BytesIO()
    torch.save((half.state_dict(), half.model.state_dict()), buffer)
    buffer.seek(0)
    state, weights = torch.load(buffer, weights_only=True)
    resumed = private_run(form)
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert torch.equal(finish(resumed, 2), whole)


def test_fragments_of_a_logical_batch_give_the_same_update():
    whole, pieces = private_run("outputs"), private_run("outputs", max_physical_batch_size=5)
    torch.testing.assert_close(finish(whole, 2), finish(pieces, 2), rtol=1e-4, atol=1e-6)
