"""Per-layer clipping: groups, thresholds, and one event with one noise or with many."""

from __future__ import annotations

import math

import pytest
import torch

from winsor.core.contract import ConfigurationError, Released
from winsor.core.noise.gaussian import Gaussian
from winsor.gradients.rows import RowsView
from winsor.rules.per_layer import PerLayer

PARAMETERS = {
    "conv.weight": torch.zeros(2, 3),
    "conv.bias": torch.zeros(2),
    "head.weight": torch.zeros(4),
}


def rows(scale=100.0, n=6):
    generator = torch.Generator().manual_seed(3)
    return {
        name: scale * torch.randn(n, *t.shape, generator=generator)
        for name, t in PARAMETERS.items()
    }


def sums_of(rule, scale=100.0, n=6):
    state = rule.init(PARAMETERS, 4.0)
    return rule.contributions(RowsView(rows(scale, n)), state), state


def test_groups_by_module_and_by_parameter():
    assert PerLayer(1.0).init(PARAMETERS, 1.0)["groups"] == [
        ["conv.weight", "conv.bias"],
        ["head.weight"],
    ]
    assert PerLayer(1.0, "parameter").init(PARAMETERS, 1.0)["groups"] == [[n] for n in PARAMETERS]


def test_each_group_is_clipped_to_its_own_threshold():
    rule = PerLayer(1.0, shares=(0.36, 0.64))
    sums, _ = sums_of(rule, n=1)
    conv = torch.cat([sums["grad"]["conv.weight"].flatten(), sums["grad"]["conv.bias"]])
    assert abs(float(conv.norm()) - 0.6) < 1e-4
    assert abs(float(sums["grad"]["head.weight"].norm()) - 0.8) < 1e-4


def test_short_rows_pass_unchanged():
    sums, _ = sums_of(PerLayer(1.0), scale=1e-3)
    for name, tensor in rows(1e-3).items():
        torch.testing.assert_close(sums["grad"][name], tensor.double().sum(0))


def test_the_joint_event_is_that_of_one_release():
    """Same multiplier; the noise of each group follows its threshold and its share."""
    single = PerLayer(2.0, shares=(0.25, 0.75))
    joint = PerLayer(2.0, shares=(0.25, 0.75), joint=True, noise_shares=(0.5, 0.5))
    mechanism = Gaussian(1.3)
    sums, state = sums_of(single)
    assert mechanism.event(single.bounded(sums, state)).add_remove == pytest.approx(1.3)
    sums, state = sums_of(joint)
    parts = joint.bounded(sums, state)
    event = mechanism.event(parts)
    assert (event.add_remove, event.replace) == (pytest.approx(1.3), pytest.approx(0.65))
    std = mechanism.std(parts)
    assert std["grad/0"] == pytest.approx(1.3 * 2.0 * math.sqrt(0.25 / 0.5))
    assert std["grad/1"] == pytest.approx(1.3 * 2.0 * math.sqrt(0.75 / 0.5))


def test_noise_shares_equal_to_threshold_shares_give_one_noise():
    joint = PerLayer(2.0, shares=(0.25, 0.75), joint=True, noise_shares=(0.25, 0.75))
    sums, state = sums_of(joint)
    std = Gaussian(1.0).std(joint.bounded(sums, state))
    assert std["grad/0"] == pytest.approx(2.0)
    assert std["grad/1"] == pytest.approx(2.0)


def test_the_released_parts_become_one_gradient():
    rule = PerLayer(1.0, joint=True)
    sums, state = sums_of(rule)
    values = {name: part.value for name, part in rule.bounded(sums, state).items()}
    gradient, after = rule.after(Released(values, {}, 0), state)
    grad = gradient.values["grad"]
    assert after == state
    assert grad.keys() == PARAMETERS.keys()
    for name in PARAMETERS:
        assert grad[name] is sums["grad"][name]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_grad_norm": 0.0}, "max_grad_norm must be"),
        ({"groups": "layer"}, "groups must be"),
        ({"shares": (0.5, 0.4)}, "shares must add up to 1"),
        ({"shares": (1.5, -0.5)}, "each of shares must be"),
        ({"noise_shares": (0.5, 0.5)}, "unless joint=True"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        PerLayer(**{"max_grad_norm": 1.0, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"groups": (("conv.weight", "conv.bias"),)}, "names in no group: .*head.weight"),
        ({"groups": (tuple(PARAMETERS), ("nose",))}, "unknown parameter names: .*nose"),
        ({"groups": (tuple(PARAMETERS), ("conv.bias",))}, "names in several groups: .*conv.bias"),
        ({"groups": (tuple(PARAMETERS), ())}, "must not be empty"),
        ({"shares": (0.2, 0.3, 0.5)}, "one entry per group; there are 2"),
        ({"joint": True, "noise_shares": (1.0,)}, "one entry per group; there are 2"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        PerLayer(1.0, **options).init(PARAMETERS, 4.0)
