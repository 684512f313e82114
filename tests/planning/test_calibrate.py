"""Calibration spends the budget: all of it to half a per cent, and never more."""

import math

import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.accounting import account
from winsor.core.contract import CalibrationError, ConfigurationError, Neighbouring
from winsor.planning import calibrate

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def sampled(q):
    return lambda nm: PoissonSampledDpEvent(q, GaussianDpEvent(nm))


@settings(max_examples=15)
@given(
    st.floats(math.log(1e-3), 0).map(math.exp),
    st.integers(1, 5000),
    st.floats(math.log(0.05), math.log(100)).map(math.exp),
    st.sampled_from([1e-5, 1e-10]),
    st.sampled_from([ADD, REPLACE]),
)
def test_noise_spends_the_target(q, steps, epsilon, delta, relation):
    nm = calibrate.noise_multiplier(sampled(q), steps, epsilon, delta, relation)
    spent = account([(sampled(q)(nm), steps)], delta, relation).epsilon
    assert 0.995 * epsilon <= spent <= epsilon


@pytest.mark.parametrize(
    "event_of",
    [
        LaplaceDpEvent,
        GaussianDpEvent,
        lambda x: ZCDpEvent(1 / x),
        lambda x: ComposedDpEvent(
            [SelfComposedDpEvent(sampled(0.02)(x), 50), GaussianDpEvent(10 * x)]
        ),
    ],
    ids=["laplace", "gaussian", "zcdp", "composed"],
)
def test_any_event_can_be_calibrated(event_of):
    x = calibrate.noise_multiplier(event_of, 10, 1.5, 1e-6)
    assert 0.995 * 1.5 <= account([(event_of(x), 10)], 1e-6).epsilon <= 1.5


def test_impossible_noise():
    with pytest.raises(CalibrationError, match=r"not spent even by the smallest.*Lower epsilon"):
        # a record is drawn with probability 1e-6 < delta: even no noise at all is (0, delta)-DP
        calibrate.noise_multiplier(sampled(1e-6), 1, 1.0, 1e-3)
    with pytest.raises(CalibrationError, match="even the largest exceeds"):
        calibrate.noise_multiplier(lambda nm: GaussianDpEvent(1.0), 1, 0.5, 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_targets_are_positive(epsilon):
    with pytest.raises(ConfigurationError, match="epsilon must be a positive finite number"):
        calibrate.noise_multiplier(sampled(0.1), 1, epsilon, 1e-5)


@pytest.mark.parametrize("event", [sampled(0.02)(1.0), GaussianDpEvent(20.0), LaplaceDpEvent(30.0)])
def test_max_steps_is_the_last_that_fits(event):
    steps = calibrate.max_steps(event, 2.0, 1e-6)
    assert account([(event, steps)], 1e-6).epsilon <= 2.0
    assert account([(event, steps + 1)], 1e-6).epsilon > 2.0


def test_one_step_only():
    event = GaussianDpEvent(1.0)
    one, two = (account([(event, n)], 1e-6).epsilon for n in (1, 2))
    assert calibrate.max_steps(event, (one + two) / 2, 1e-6) == 1


def test_impossible_steps():
    with pytest.raises(CalibrationError, match="at least one step"):
        calibrate.max_steps(GaussianDpEvent(1.0), 0.1, 1e-6)
    with pytest.raises(CalibrationError, match="set the number of steps by hand"):
        calibrate.max_steps(GaussianDpEvent(1e9), 10.0, 1e-6)


def test_sampling_rate():
    def history_of(q):
        return [(sampled(q)(1.0), 1000)]

    rate = calibrate.sampling_rate(history_of, 2.0, 1e-5)
    assert 0.995 * 2 <= account(history_of(rate), 1e-5).epsilon <= 2
    assert calibrate.sampling_rate(lambda q: [(sampled(q)(100.0), 1)], 2.0, 1e-5) == 1.0
    with pytest.raises(CalibrationError, match="sampling rate"):
        calibrate.sampling_rate(lambda q: [(GaussianDpEvent(0.1), 1)], 0.5, 1e-6)


def test_batch_size_and_records():
    def history_of(size, n=10_000):
        return [(sampled(size / n)(1.0), 1000)]

    size = calibrate.batch_size(history_of, 10_000, 2.0, 1e-5)
    assert (
        account(history_of(size), 1e-5).epsilon <= 2 < account(history_of(size + 1), 1e-5).epsilon
    )
    n = calibrate.least_records(lambda n: history_of(100, n), 2.0, 1e-5, least=100)
    assert account(history_of(100, n), 1e-5).epsilon <= 2.0
    assert account(history_of(100, n - 1), 1e-5).epsilon > 2.0
    assert calibrate.least_records(lambda n: history_of(1, n), 1e3, 1e-5, least=7) == 7
    with pytest.raises(CalibrationError, match="at least one record"):
        calibrate.batch_size(lambda size: [(GaussianDpEvent(0.1), 1)], 100, 0.5, 1e-6)
    with pytest.raises(CalibrationError, match="records allow"):
        calibrate.least_records(lambda n: [(GaussianDpEvent(0.1), 1)], 0.5, 1e-6)


def reference_trial(multiplier=2.6207):
    """A trial of epsilon 2.368 at delta 1e-5."""
    return [(PoissonSampledDpEvent(0.1, GaussianDpEvent(multiplier)), 200)]
