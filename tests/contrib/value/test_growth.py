"""Growth conditions as inputs of Value: proven ones bound every row, others are refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import rule_battery
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from value_batches import LAST, contribution, hostile_batch

import winsor
from winsor.app.runs.parts import build_rule
from winsor.app.runs.reading import Part
from winsor.audit import replay
from winsor.contrib.value.growth import GrowthProof, LayerBounds, worst_ratio
from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import LOGISTIC, NetworkGrowth, WeakGrowth
from winsor.core.contract import ConfigurationError, UnsupportedModel
from winsor.models.networks import mlp

GROWTHS = [
    NetworkGrowth(),
    NetworkGrowth(2 * LOGISTIC),
    NetworkGrowth(1e-9),  # false: the exact loss gradient takes over
    WeakGrowth(1e-9, 0.0, LayerBounds()),  # false: the proof takes over
    WeakGrowth(5.0, 2.0, LayerBounds()),
    WeakGrowth(5.0, 2.0, LayerBounds("value")),
    WeakGrowth(5.0, 2.0, LayerBounds("forward")),
]
CHECKS = [getattr(rule_battery, name) for name in dir(rule_battery) if name.startswith("check_")]


def hostile(rows=20, width=5, seed=0):
    torch.manual_seed(seed)
    x = torch.randn(rows, width) * torch.logspace(-4, 5, rows)[:, None]
    return x, torch.arange(rows) % 3


@pytest.mark.parametrize("growth", GROWTHS, ids=repr)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("lower", [-1.0, 0.0, 0.5])
def test_no_gradient_is_longer_than_its_growth_bound(growth, depth, lower):
    """Also for an f_lb that is above the losses, and for losses that are no cross-entropy."""
    x, y = hostile()
    model = mlp([5, *[6] * (depth - 1), 3], bias=False)

    def entropy(net):
        return F.cross_entropy(net(x), y, reduction="none")

    def steep(net):
        return 1e4 * net(x).sum(1).abs()

    assert worst_ratio(growth, model, entropy, lower) <= 1 + 1e-6
    assert worst_ratio(growth, model, steep, lower) <= 1 + 1e-6


@dataclass(frozen=True)
class Guess(GrowthProof):
    """A proof that proves nothing."""

    statement = "because"

    def squares(self, view, norms):
        return torch.full_like(view.losses(), 1e-6)


def test_the_search_finds_a_false_proof():
    x, y = hostile()
    growth = WeakGrowth(1e-6, 0.0, Guess())
    model = mlp([5, 3], bias=False)
    found = worst_ratio(growth, model, lambda net: F.cross_entropy(net(x), y, reduction="none"))
    assert found > 10


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
@pytest.mark.parametrize("growth", GROWTHS[-4:-1], ids=repr)
def test_planted_rows_pass_the_battery(check, growth):
    check(Value(0.7, growth=growth, lower=0.1))


@pytest.mark.parametrize("growth", GROWTHS, ids=repr)
def test_one_record_moves_the_sum_by_no_more_than_the_threshold(growth):
    for size in LAST:
        x, y = hostile_batch()
        x[7] = torch.linspace(-1, 1, 12) * size
        model = mlp([12, 10, 3], bias=False)
        rule = Value(0.3, growth=growth)
        with_it, without = (contribution(rule, model, x[:n], y[:n]) for n in (8, 7))
        assert with_it.isfinite().all() and without.isfinite().all()
        assert (with_it - without).norm() <= 0.3 * (1 + 1e-6)


def test_a_declared_pair_without_a_proof_is_refused():
    with pytest.raises(ConfigurationError, match=r"growth must come with a proof .*LayerBounds"):
        Value(1.0, growth=WeakGrowth(2.0, 0.1), lower=0.0)


def test_appendix_d_is_refused_for_networks_with_biases():
    x, y = hostile(4)
    with pytest.raises(UnsupportedModel, match="bias"):
        contribution(Value(1.0, growth=NetworkGrowth()), mlp([5, 3]), x, y)


@pytest.mark.parametrize(
    "options",
    [
        {"lower": 1.0},
        {"lower": float("nan"), "growth": NetworkGrowth()},
        {"form": "value", "growth": NetworkGrowth()},
    ],
)
def test_settings_that_do_not_belong_together(options):
    with pytest.raises(ConfigurationError, match=r"must .* Got .* instead"):
        Value(1.0, **options)
    with pytest.raises(ConfigurationError, match="constant must be"):
        NetworkGrowth(0.0)
    with pytest.raises(ConfigurationError, match="form must be one of"):
        LayerBounds("loss")


def test_the_proof_is_part_of_the_stated_sensitivity():
    rule = Value(1.0, growth=NetworkGrowth())
    assert "appendix D" in rule.proof
    assert repr(rule) == "Value(max_grad_norm=1.0, growth=NetworkGrowth(constant=8.0), lower=0.0)"
    assert repr(Value(1.0)) == "Value(max_grad_norm=1.0, form='outputs')"


def test_a_file_can_name_a_growth_condition():
    growth = {"name": "weak_growth", "beta_1": 2.0, "beta_2": 0.5, "proof": {"name": "LayerBounds"}}
    found = build_rule(Part("value", {"max_grad_norm": 1.0, "growth": growth, "lower": 0.25}))
    assert found == Value(1.0, growth=WeakGrowth(2.0, 0.5, LayerBounds()), lower=0.25)
    found = build_rule(Part("value", {"max_grad_norm": 1.0, "growth": {"name": "NetworkGrowth"}}))
    assert found == winsor.rules.Value(1.0, growth=NetworkGrowth())


def growing(dataset):
    """A run on any rows, as the replay wants it."""
    torch.manual_seed(0)
    model = mlp([5, 4, 3], bias=False)
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=dataset,
        rule=Value(0.5, growth=NetworkGrowth()), noise_multiplier=1.0, delta=1e-3, steps=3,
        batch_size=12,
    )  # fmt: skip
    for x, y in private.batches():
        private.step(F.cross_entropy(model(x), y, reduction="none"))
    return private


def test_a_run_with_a_growth_condition_replays():
    torch.manual_seed(1)
    report = replay(growing, TensorDataset(torch.randn(60, 5), torch.arange(60) % 3))
    report.assert_passed()
    assert 0 < report.largest_share <= 1.001
