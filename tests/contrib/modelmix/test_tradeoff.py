"""The trade that `winsor plan --mechanism modelmix` shows."""

import math

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from winsor.contrib.modelmix.mechanism import MixedGaussian, ModelMix
from winsor.contrib.modelmix.planning import DEFAULT_WIDTHS, MixedRun, modelmix_tradeoff
from winsor.core.accounting import certify
from winsor.core.contract import Bounded, ConfigurationError, Neighbouring, Sensitivity
from winsor.core.sampling.samplers import Poisson
from winsor.planning.run import PlannedRun

PLAIN = PlannedRun.of_numbers(50_000, 1000, steps=5000, delta=1e-5)
RUN = MixedRun(PLAIN, 0.3633, max_grad_norm=20, batch_size=1000)


def test_units_are_those_of_the_averaged_gradient():
    assert RUN.clip == pytest.approx(0.02)
    assert RUN.gaussian_sd == pytest.approx(0.02 * 0.3633)
    (choice,) = modelmix_tradeoff(RUN, [0.3], [25])
    assert choice.mixing_sd == pytest.approx(0.3 / math.sqrt(12))
    assert choice.total_sd == pytest.approx(math.hypot(choice.gaussian_sd, choice.mixing_sd))
    event = RUN.mixed_step(0.3, 25)
    assert event.width_ratio == pytest.approx(15.0)
    assert choice.epsilon == certify([(event, PLAIN.steps)], PLAIN.delta).epsilon


def test_both_sides_of_the_trade():
    choices = modelmix_tradeoff(RUN, [0.15, 0.0], [25, 1])
    assert [(c.tau_over_lr, c.p) for c in choices] == [
        (0.0, 1), (0.0, 25), (0.15, 1), (0.15, 25),
    ]  # fmt: skip
    still, _, one, many = choices
    assert still.epsilon == RUN.plain_epsilon == still.epsilon_as_gaussian
    assert still.mixing_sd == 0
    assert many.epsilon < one.epsilon < RUN.plain_epsilon
    # The same variance as Gaussian noise would be worth more: the plan says so.
    assert many.epsilon_as_gaussian < many.epsilon
    total = PoissonSampledDpEvent(0.02, GaussianDpEvent(many.total_sd / RUN.clip))
    assert many.epsilon_as_gaussian == pytest.approx(certify([(total, 5000)], 1e-5).epsilon)


def test_default_widths_scale_with_the_noise():
    plain = PlannedRun.of_numbers(1000, 10, steps=10, delta=1e-5)
    run = MixedRun(plain, 2.0, max_grad_norm=3, batch_size=10)
    choices = modelmix_tradeoff(run, p=[1])
    assert [c.tau_over_lr for c in choices] == pytest.approx([0.6 * w for w in DEFAULT_WIDTHS])
    assert all(c.epsilon <= run.plain_epsilon for c in choices)


@pytest.mark.parametrize("p", [1, 25])
def test_the_planned_step_is_the_one_that_the_mechanism_records(p):
    n, size = 50_000, 1000
    bound = Sensitivity.per_sample(20.0, "test")
    part = Bounded(None, bound, coordinate_bound=None if p == 1 else 20 / math.sqrt(p))
    mechanism = MixedGaussian(RUN.noise_multiplier, ModelMix(tau_over_lr=0.3), size)
    local = mechanism.event({"grad": part})
    recorded = Poisson.of_batch_size(n, size).amplify(local, Neighbouring.ADD_OR_REMOVE_ONE)
    assert RUN.mixed_step(0.3, p) == recorded


@pytest.mark.parametrize("field", ["max_grad_norm", "batch_size"])
def test_scales_must_be_positive(field):
    with pytest.raises(ConfigurationError, match=f"{field} must be a positive finite number"):
        MixedRun(PLAIN, 1.0, **{field: 0.0})
