"""Every rule in `winsor/rules` passes the battery, on every engine. Rules are discovered."""

from __future__ import annotations

import pytest
import rule_battery
import torch
from torch import nn
from torch.nn import functional as F

from winsor.gradients import ENGINES, make_engine, trainable_parameters
from winsor.gradients.view import Need
from winsor.rules import all_examples
from winsor.rules.rule import Rule

RULES = all_examples()
BY_ROWS = [rule for rule in RULES if not rule.needs & Need.FORWARD]
CHECKS = [getattr(rule_battery, name) for name in dir(rule_battery) if name.startswith("check_")]


def applies(check: str, rule: Rule) -> bool:
    if (
        rule.needs & Need.FORWARD
    ):  # bounds come from a network's forward pass: tests/rules/test_value
        return check in (
            "check_noise_is_as_claimed",
            "check_events_independent_of_data",
            "check_after_reads_released_values_only",
            "check_gradient_carries_the_release",
        )
    return not (check == "check_permutation_invariant" and getattr(rule, "randomised", False))


CASES = [
    pytest.param(check, rule, id=f"{rule!r}-{check.__name__[6:]}")
    for rule in RULES
    for check in CHECKS
    if applies(check.__name__, rule)
]


@pytest.mark.parametrize("check, rule", CASES)
def test_rule_holds_its_claim(check, rule):
    check(rule)


def small_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("rule", BY_ROWS, ids=repr)
def test_every_engine_gives_what_the_oracle_gives(rule, engine_name):
    torch.manual_seed(8)
    scales = torch.tensor([1.0, 30.0, 0.1, 1.0, 2.0, 5.0, 0.0])
    x, y = torch.randn(7, 4) * scales[:, None], torch.tensor([0, 1, 2, 0, 1, 2, 0])
    found, expected = _sums(rule, engine_name, x, y), _sums(rule, "loop", x, y)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def _sums(rule, engine_name, x, y):
    model = small_model()
    params = trainable_parameters(model)
    engine = make_engine(model, params, engine_name, rule.needs)
    engine.attach()
    engine.recording(True)
    view = engine.view(F.cross_entropy(model(x), y, reduction="none"))
    state = rule.init(params, 8.0)
    sums = rule.contributions(view, state)
    engine.recording(False)
    engine.detach()
    return sums
