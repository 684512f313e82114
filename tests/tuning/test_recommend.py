"""Dry runs rank rules on public rows; the real run's noise, an untouched model."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError
from winsor.rules import Flat, PerLayer, Quantile
from winsor.tuning.recommendations import (
    RunBudget,
    gradient_norms,
    held_out_loss,
    real_noise,
    recommend,
)

BUDGET = RunBudget(n=20_000, epsilon=3.0, delta=1e-6, batch_size=100, steps=200)


def public(n: int = 240, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] + 0.5 * x[:, 1] > 0).long())


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 2)


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.fixture(scope="module")
def found():
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    result = recommend(
        model, public(), BUDGET, rules=[Flat(1.0), Flat(1e-4), Quantile(0.5)], dry_steps=25
    )
    return model, before, result


def test_candidates_are_ranked_and_learning_ones_come_first(found):
    _, _, result = found
    losses = [c.loss for c in result.candidates]
    assert losses == sorted(losses) and len(losses) == 9
    assert result.best.loss < 0.8 * result.untrained_loss
    assert str(result).splitlines()[1].startswith("1. loss")


def test_the_model_is_untouched_and_has_no_hooks(found):
    model, before, _ = found
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not model._forward_hooks and not model._backward_hooks


def test_learning_rates_are_step_lengths_over_the_threshold(found):
    _, _, result = found
    by_rule = {repr(c.rule): set() for c in result.candidates}
    for c in result.candidates:
        by_rule[repr(c.rule)].add(round(c.learning_rate, 9))
    assert by_rule[repr(Flat(1.0))] == {0.05, 0.2, 0.8}
    assert by_rule[repr(Flat(1e-4))] == {500.0, 2000.0, 8000.0}


def test_the_noise_is_that_of_the_real_run():
    """real_noise for (n, batch, steps) is what make_private calibrates on n rows."""
    model, rule = make_model(), Quantile(1.0)
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=public(2000),
        rule=rule,
        epsilon=3.0,
        delta=1e-6,
        batch_size=100,
        steps=50,
    )
    budget = RunBudget(n=2000, epsilon=3.0, delta=1e-6, batch_size=100, steps=50)
    assert real_noise(rule, make_model(), budget) == pytest.approx(
        private.noise_multiplier, rel=5e-3
    )


def test_rules_with_one_event_are_calibrated_once():
    known: dict[str, float] = {}
    first = real_noise(Flat(1.0), make_model(), BUDGET, known)
    assert real_noise(Flat(1e-3), make_model(), BUDGET, known) == first
    assert len(known) == 1
    known[next(iter(known))] = 7.0
    assert real_noise(Flat(2.0), make_model(), BUDGET, known) == 7.0


def test_gradient_norms_are_those_of_autograd():
    model, rows = make_model(), public(120)
    norms = gradient_norms(model, rows, cross_entropy)
    for i in (0, 57, 119):
        model.zero_grad()
        x, y = rows[i]
        cross_entropy(model, (x[None], y[None])).sum().backward()
        own = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()
        assert norms[i] == pytest.approx(float(own), rel=1e-4)


def test_default_rules_come_from_the_samples_own_norms():
    model, rows = make_model(), public(240)
    result = recommend(model, rows, BUDGET, lengths=(0.5,), dry_steps=2)
    norms = gradient_norms(model, rows, cross_entropy)
    flats = sorted(c.rule.max_grad_norm for c in result.candidates if isinstance(c.rule, Flat))
    assert len(result.candidates) == 5
    assert flats == pytest.approx(np.quantile(norms, [0.25, 0.5, 0.75]), rel=0.2)


def test_joint_per_layer_parts_set_the_step_length():
    rule = PerLayer(2.0, groups="parameter", joint=True)
    result = recommend(make_model(), public(), BUDGET, rules=[rule], lengths=(1.0,), dry_steps=1)
    assert result.best.learning_rate == pytest.approx(0.5)


def test_a_diverged_model_ranks_last():
    model = make_model()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    assert held_out_loss(model, public(), cross_entropy) == float("inf")


def test_it_cannot_be_given_private_rows_by_name():
    """One dataset goes in, and it is the public one: the real run enters by its numbers only."""
    datasets = [
        name
        for name, parameter in inspect.signature(recommend).parameters.items()
        if "Dataset" in str(parameter.annotation)
    ]
    assert datasets == ["sample"]
    assert all(isinstance(value, int | float) for value in vars(BUDGET).values())


def test_too_small_a_sample_is_refused():
    with pytest.raises(ConfigurationError, match="at least 100 rows"):
        recommend(make_model(), public(40), BUDGET)
    with pytest.raises(ConfigurationError, match="dry_steps"):
        recommend(make_model(), public(), BUDGET, dry_steps=0)
