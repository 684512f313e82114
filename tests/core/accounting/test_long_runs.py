"""Long histories from few frequencies: against exact binomials, and against the full transform."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from winsor.core.accounting import account, account_delta, pld
from winsor.core.accounting.composition import ComposedStep, Composition, Tilted
from winsor.core.accounting.long_runs import LONG, FewFrequencies, LongComposition, RememberedStep
from winsor.core.contract import Neighbouring

weights = st.lists(st.floats(1e-3, 1.0), min_size=2, max_size=12)


def sampled(rate, multiplier):
    return PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))


def both_ways(pmfs, counts, interval):
    full = Composition([ComposedStep(*p, n) for p, n in zip(pmfs, counts, strict=True)], interval)
    remembered = [(RememberedStep(*p), n) for p, n in zip(pmfs, counts, strict=True)]
    return full, LongComposition(remembered, interval)


def coins_delta(count, up, interval, epsilon):
    """Exactly: the loss is interval times (heads - tails), heads with probability ``up``."""
    heads = np.arange(count + 1)
    logs = special.gammaln(count + 1) - special.gammaln(heads + 1)
    logs = logs - special.gammaln(count - heads + 1)
    logs = logs + heads * math.log(up) + (count - heads) * math.log1p(-up)
    beyond = np.maximum((2 * heads - count) * interval - epsilon, 0.0)
    return math.fsum(np.exp(logs) * -np.expm1(-beyond))


@given(st.floats(0.3, 0.7), st.integers(LONG, 4 * LONG), st.floats(-2.0, 6.0), st.floats(-3, 1))
@settings(max_examples=40)
def test_delta_of_coins_is_the_binomial_sum(up, count, deviations, log_interval):
    interval = math.exp(log_interval) / math.sqrt(count)
    pmf = (-1, np.array([1 - up, 0.0, up]), 0.0)
    _, long = both_ways([pmf], [count], interval)
    mean, spread = long.moments(0.0)
    epsilon = mean + deviations * spread
    answer = long.tilted(long.tilt_for_epsilon(epsilon)[0])
    if epsilon < answer.lowest_epsilon:
        return
    exact = coins_delta(count, up, interval, epsilon)
    # gammaln of 1e5 is right to about 1e-10
    assert exact * (1 - 1e-8) <= answer.delta(epsilon) <= exact * (1 + 1e-6) + 1e-300


@given(weights, weights, st.integers(LONG, 10 * LONG), st.integers(1, 50), st.floats(-12.0, 3.9))
@settings(max_examples=60)
def test_no_tilt_makes_delta_smaller_than_the_full_transform(first, second, many, few, log_tilt):
    pmfs = [(-3, np.array(first) / sum(first), 0.0), (1, np.array(second) / sum(second), 0.0)]
    interval = 1 / math.sqrt(many)
    full, long = both_ways(pmfs, [many, few], interval)
    mean, spread = full.moments(0.0)
    epsilon = mean + 3 * spread
    exact = Tilted(full, full.tilt_for_epsilon(epsilon)[0]).delta(epsilon)
    for tilt in (math.exp(log_tilt) / interval, long.tilt_for_epsilon(epsilon)[0]):
        answer = FewFrequencies(long, tilt)
        if epsilon >= answer.lowest_epsilon:
            assert answer.delta(epsilon) >= exact * (1 - 1e-6)
    assert answer.delta(epsilon) == pytest.approx(exact, rel=1e-5)  # under the tilt that suits


def test_a_short_part_and_a_mass_at_infinity_count():
    pmfs = [(-1, np.array([0.5, 0.0, 0.5]) * (1 - 1e-12), 1e-12), (40, np.array([1.0]), 0.0)]
    full, long = both_ways(pmfs, [LONG, 3], 0.01)
    assert (long.infinite, long.bottom, long.top) == (full.infinite, full.bottom, full.top)
    assert long.tilted(3.0).delta(6.0) == pytest.approx(full.tilted(3.0).delta(6.0), rel=1e-6)


@pytest.mark.parametrize("relation", list(Neighbouring)[:2])
@pytest.mark.parametrize(("rate", "multiplier", "count"), [(0.01, 1.0, 20_000), (1e-3, 0.8, 10**5)])
def test_the_answers_are_those_of_the_full_transform(
    rate, multiplier, count, relation, monkeypatch
):
    history = [(sampled(rate, multiplier), count), (sampled(0.5, 4.0), 3)]
    few = account(history, 1e-5, relation).epsilon
    few_delta = account_delta(history, few, relation).delta
    monkeypatch.setattr(pld, "LONG", math.inf)
    full = account(history, 1e-5, relation).epsilon
    assert few == pytest.approx(full, rel=1e-6)
    assert few_delta == pytest.approx(account_delta(history, few, relation).delta, rel=1e-3)


def test_an_answer_depends_on_the_history_and_not_on_what_was_asked_before():
    event, counts = sampled(0.01, 1.0), (LONG, LONG + 1, 3 * LONG, 100_000)

    def answer(count):
        return pld.epsilon([(event, count)], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE)

    in_a_row = [answer(count) for count in counts]
    assert in_a_row == sorted(in_a_row)
    for count, known in zip(counts, in_a_row, strict=True):
        pld._cached_steps.cache_clear()
        assert answer(count) == known


def test_the_next_answer_transforms_nothing(monkeypatch):
    event, relation = sampled(0.01, 1.0), Neighbouring.ADD_OR_REMOVE_ONE
    first = pld.epsilon([(event, 100_010)], 1e-5, relation)

    def refuse(*_):
        raise AssertionError("one step was looked at again")

    monkeypatch.setattr(RememberedStep, "_transform", refuse)
    assert first < pld.epsilon([(event, 100_011)], 1e-5, relation) < first * 1.0001
