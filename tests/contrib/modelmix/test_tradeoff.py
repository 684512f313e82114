"""The trade that `winsor plan --mechanism modelmix` shows."""

import math

import pytest

from winsor.accounting import account
from winsor.contract import ConfigurationError
from winsor.contrib.modelmix.tradeoff import DEFAULT_WIDTHS, PlannedRun, modelmix_tradeoff

RUN = PlannedRun(0.02, 0.3633, steps=5000, delta=1e-5, max_grad_norm=20, batch_size=1000)


def test_units_are_those_of_the_averaged_gradient():
    assert RUN.clip == pytest.approx(0.02)
    assert RUN.gaussian_sd == pytest.approx(0.02 * 0.3633)
    (choice,) = modelmix_tradeoff(RUN, [0.3], [25]).choices
    assert choice.mixing_sd == pytest.approx(0.3 / math.sqrt(12))
    assert choice.total_sd == pytest.approx(math.hypot(choice.gaussian_sd, choice.mixing_sd))
    event = RUN.mixed_step(0.3, 25)
    assert event.width_ratio == pytest.approx(15.0)
    assert choice.epsilon == account([(event, RUN.steps)], RUN.delta).epsilon


def test_both_sides_of_the_trade():
    plan = modelmix_tradeoff(RUN, [0.15, 0.0], [25, 1])
    assert [(c.tau_over_eta, c.coordinates) for c in plan.choices] == [
        (0.0, 1), (0.0, 25), (0.15, 1), (0.15, 25),
    ]  # fmt: skip
    still, _, one, many = plan.choices
    assert still.epsilon == plan.plain_epsilon == still.epsilon_as_gaussian
    assert still.mixing_sd == 0
    assert many.epsilon < one.epsilon < plan.plain_epsilon
    # The same variance as Gaussian noise would be worth more: the plan says so.
    assert many.epsilon_as_gaussian < many.epsilon
    total = RUN.plain_step(many.total_sd / RUN.clip)
    assert many.epsilon_as_gaussian == pytest.approx(account([(total, 5000)], 1e-5).epsilon)


def test_default_widths_scale_with_the_clipping_bound():
    run = PlannedRun(0.01, 2.0, steps=10, delta=1e-5, max_grad_norm=3, batch_size=10)
    plan = modelmix_tradeoff(run, coordinates=[1])
    assert [c.tau_over_eta for c in plan.choices] == pytest.approx(
        [0.3 * w for w in DEFAULT_WIDTHS]
    )
    assert all(c.epsilon <= plan.plain_epsilon for c in plan.choices)


@pytest.mark.parametrize("field", ["max_grad_norm", "batch_size"])
def test_scales_must_be_positive(field):
    with pytest.raises(ConfigurationError, match=f"{field} must be positive"):
        PlannedRun(0.01, 1.0, 10, 1e-5, **{field: 0.0})
