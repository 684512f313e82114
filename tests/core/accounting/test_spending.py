"""The best certified bound of a history, by whichever accountant has it."""

import math

import attr
import numpy as np
import pytest
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    UnsupportedDpEvent,
    ZCDpEvent,
)

from winsor.core.accounting import (
    Spent,
    account,
    account_delta,
    certify,
    delta_curve,
    epsilon_curve,
    pld,
    rdp,
    register,
)
from winsor.core.contract import (
    ConfigurationError,
    Neighbouring,
    UnsupportedEvent,
    UnsupportedRelation,
)
from winsor.core.events import registry as events

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
STEP = PoissonSampledDpEvent(0.02, GaussianDpEvent(1.0))


@attr.s(frozen=True, auto_attribs=True)
class BlurredDpEvent(DpEvent):
    """For these tests: has Renyi bounds only, and relaxations to choose from."""

    noise_multiplier: float
    share: float


@pytest.fixture
def _blurred(monkeypatch):
    """Registers the event for one test."""
    monkeypatch.setattr(events, "_BY_TYPE", dict(events._BY_TYPE))
    monkeypatch.setattr(events, "_BY_NAME", dict(events._BY_NAME))
    register(
        BlurredDpEvent,
        name="blurred",
        to_json=lambda event: {"nm": event.noise_multiplier, "share": event.share},
        from_json=lambda data: BlurredDpEvent(data["nm"], data["share"]),
        rdp=lambda e, relation, orders: e.share * orders / (2 * e.noise_multiplier**2),
        relaxations=lambda e: [
            ZCDpEvent(1 / e.noise_multiplier**2),
            GaussianDpEvent(e.noise_multiplier / 2),
            GaussianDpEvent(e.noise_multiplier),
        ],
    )


def test_loss_distributions_are_the_default():
    spent = account([(STEP, 100)], 1e-5)
    assert spent == Spent(pld.epsilon([(STEP, 100)], 1e-5, ADD), 1e-5, ADD, "pld")
    assert account([(STEP, 100)], 1e-5, REPLACE).epsilon > spent.epsilon


def test_an_event_with_renyi_bounds_only_takes_the_whole_history_with_it():
    history = [(STEP, 100), (ZCDpEvent(0.01), 2)]
    spent = account(history, 1e-5)
    assert spent.accountant == "rdp"
    assert spent.epsilon == rdp.epsilon(history, 1e-5, ADD)


@pytest.mark.usefixtures("_blurred")
def test_the_smaller_of_all_certified_bounds_is_reported():
    plain = account([(GaussianDpEvent(2.0), 10), (STEP, 100)], 1e-5)
    # Almost no blur: the best relaxation's loss distribution beats the event's Renyi bound.
    sharp = account([(BlurredDpEvent(2.0, 0.999), 10), (STEP, 100)], 1e-5)
    assert sharp == plain
    # Strong blur: the event's own Renyi bound is better than any relaxation.
    soft_history = [(BlurredDpEvent(2.0, 0.1), 10), (STEP, 100)]
    soft = account(soft_history, 1e-5)
    assert soft.accountant == "rdp"
    assert soft.epsilon == rdp.epsilon(soft_history, 1e-5, ADD) < plain.epsilon
    deltas = delta_curve(soft_history, np.array([2.0]), ADD)
    assert deltas[0] == account_delta(soft_history, 2.0).delta


def test_delta_and_its_curve():
    history = [(STEP, 1000)]
    spent = account_delta(history, 2.0)
    assert spent.accountant == "pld"
    assert account(history, spent.delta).epsilon == pytest.approx(2.0, rel=5e-3)
    epsilons = np.array([3.0, 1.0, 2.0])
    curve = delta_curve(history, epsilons)
    assert curve[1] > curve[2] > curve[0]
    assert curve[2] == pytest.approx(spent.delta, rel=0.02)


def test_epsilon_curve_never_falls():
    counts = [1, 2, 10, 100, 101, 500]
    curve = epsilon_curve(STEP, counts, 1e-5)
    values = [spent.epsilon for spent in curve]
    assert values == sorted(values)
    assert values[-1] == certify([(STEP, 500)], 1e-5).epsilon
    assert values[2] == pytest.approx(account([(STEP, 10)], 1e-5).epsilon, rel=1e-3)


def test_nothing_done_is_nothing_spent():
    assert account([], 1e-5).epsilon == 0
    assert account([(STEP, 0)], 1e-5).epsilon == 0


def test_a_mixture_that_never_shifts_is_free():
    still = MixtureOfGaussiansDpEvent(1.0, (0.0, 0.0), (0.5, 0.5))
    assert account([(still, 5)], 1e-5).epsilon == 0
    with_others = account([(still, 5), (STEP, 10)], 1e-5).epsilon
    assert with_others == pytest.approx(account([(STEP, 10)], 1e-5).epsilon, rel=1e-3)


def test_no_noise_is_no_privacy():
    assert account([(GaussianDpEvent(0.0), 1)], 1e-5).epsilon == math.inf
    assert (
        account([(PoissonSampledDpEvent(0.5, GaussianDpEvent(0.0)), 1)], 1e-5).epsilon == math.inf
    )


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 2.0, math.nan])
def test_delta_is_a_probability(delta):
    with pytest.raises(ConfigurationError, match="delta must be between 0 and 1"):
        account([(STEP, 1)], delta)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan, math.inf])
def test_epsilon_is_a_number(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon must be a finite number"):
        account_delta([(STEP, 1)], epsilon)


def test_refusals_name_the_reason():
    with pytest.raises(UnsupportedEvent, match="UnsupportedDpEvent"):
        account([(UnsupportedDpEvent(), 1)], 1e-5)
    laplace = PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0))
    with pytest.raises(UnsupportedRelation, match="add_or_remove_one"):
        account([(laplace, 1)], 1e-5, REPLACE)
    mixture = MixtureOfGaussiansDpEvent(1.0, (0.0, 0.5, 1.0), (0.5, 0.25, 0.25))
    with pytest.raises(UnsupportedRelation, match="add_or_remove_one"):
        account([(mixture, 1)], 1e-5, REPLACE)
    subset = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0))
    with pytest.raises(UnsupportedRelation, match="replace_one"):
        account([(subset, 1)], 1e-5, ADD)


def test_a_machine_never_reports_an_epsilon_of_zero_for_noise_it_drew():
    """The sampler's distance from ideal noise is paid for even where ideal noise costs nothing."""
    loud = [(GaussianDpEvent(1e6), 1)]
    assert account(loud, 1e-6).epsilon == 0
    assert 0 < certify(loud, 1e-6).epsilon < 1e-5
    assert certify([(NoOpDpEvent(), 3)], 1e-6).epsilon == 0
    assert certify([], 1e-6).epsilon == 0
