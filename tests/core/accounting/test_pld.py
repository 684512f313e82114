"""Epsilons from loss distributions: against dp-accounting, closed forms and published numbers."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.accounting import gaussian, pld, rdp
from winsor.core.contract import Neighbouring, UnsupportedEvent, UnsupportedRelation

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
THEIRS = {
    ADD: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def sampled(q, nm):
    return PoissonSampledDpEvent(q, GaussianDpEvent(nm))


def dp_accounting_epsilons(event, steps, deltas, relation, interval):
    accountant = PLDAccountant(THEIRS[relation], interval)
    accountant.compose(event, steps)
    return [accountant.get_epsilon(delta) for delta in deltas]


# q, nm, T, and an interval at which dp-accounting itself has converged
GRID = [
    (1e-4, 0.5, 1, 1e-3),
    (1e-3, 0.3, 10, 2e-3),
    (1e-3, 2.0, 1000, 3e-5),
    (1e-2, 1.0, 1, 1e-3),
    (1e-2, 0.7, 1000, 1e-3),
    (1e-2, 20.0, 10_000, 3e-5),
    (1e-2, 2.0, 100_000, 3e-4),
    (0.1, 0.4, 100, 0.01),
    (0.1, 5.0, 1000, 5e-4),
    (0.5, 2.0, 10, 3e-3),
    (0.5, 50.0, 1, 1e-4),
    (0.9, 1.0, 300, 0.02),
]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("q, nm, steps, interval", GRID)
def test_epsilon_agrees_with_dp_accounting(q, nm, steps, interval, relation):
    deltas = (1e-3, 1e-6, 1e-10)
    theirs = dp_accounting_epsilons(sampled(q, nm), steps, deltas, relation, interval)
    for delta, reference in zip(deltas, theirs, strict=True):
        ours = pld.epsilon([(sampled(q, nm), steps)], delta, relation)
        assert reference * 0.998 - 1e-7 <= ours <= reference * 1.002 + 1e-7


@given(
    st.floats(math.log(0.1), math.log(100)),
    st.integers(1, 100_000),
    st.floats(math.log(1e-12), math.log(0.1)),
)
def test_the_grid_agrees_with_the_closed_form(log_nm, steps, log_delta):
    """A rate just below 1 goes the long way; its epsilon is at most that of rate 1."""
    nm, delta = math.exp(log_nm), math.exp(log_delta)
    almost = PoissonSampledDpEvent(1 - 1e-13, GaussianDpEvent(nm))
    exact = gaussian.epsilon(math.sqrt(steps) / nm, delta)
    grid = pld.epsilon([(almost, steps)], delta, ADD)
    assert exact * (1 - 1e-5) - 1e-6 <= grid <= exact * 1.002 + 1e-7


@given(st.floats(1e-4, 0.9), st.floats(0.4, 30), st.floats(math.log(1e-10), math.log(1e-2)))
def test_one_step_agrees_with_its_closed_form(q, nm, log_delta):
    """delta = q delta_Gauss(log(1 + (e^eps - 1)/q)), so epsilon = log(1 + q (e^eps_G - 1))."""
    delta = math.exp(log_delta)
    inner = gaussian.epsilon(1 / nm, delta / q) if delta < q else 0.0
    exact = math.log1p(q * math.expm1(inner))
    ours = pld.epsilon([(sampled(q, nm), 1)], delta, ADD)
    assert exact * (1 - 1e-6) - 1e-9 <= ours <= exact * 1.003 + 1e-7


# --------------------------------------------------------------------------- numbers on record


def test_aclip_is_worth_what_the_certified_event_says():
    """CIFAR: batches of 500 of 50,000, 150 epochs. Published 2/4/6 are 5.08/14.96/33.1."""
    from scipy.optimize import brentq

    def epsilon(nm):
        return pld.epsilon([(sampled(0.01, nm), 15_000)], 1e-5, ADD)

    for published, certified in ((2, 5.08), (4, 14.96), (6, 33.1)):
        nm = brentq(lambda nm, p=published: epsilon(nm) - p, 0.5, 5, xtol=1e-3)
        assert epsilon(nm / 2) == pytest.approx(certified, rel=0.01)


def test_partition_against_poisson_groups():
    """k = 50 groups, T = 100, rho = 0.05 (docs/privacy.md, "Reference numbers")."""
    partition = GaussianDpEvent(1 / math.sqrt(2 * 0.05 * 100))
    groups = sampled(1 / 50, math.sqrt(2 / 0.05))
    assert pld.epsilon([(partition, 1)], 1e-5, REPLACE) == pytest.approx(17.86, abs=0.005)
    assert pld.epsilon([(groups, 5000)], 1e-5, ADD) == pytest.approx(0.829, abs=0.001)
    assert pld.epsilon([(groups, 5000)], 1e-5, REPLACE) == pytest.approx(1.76, abs=0.002)


def test_dc_dpsgd_readings():
    """q = 128/60000, 18,750 steps, sigma 0.675, c2 = c1/10, p = 1/10.

    docs/privacy.md, "Reference numbers".
    """
    q, steps = 128 / 60_000, 18_750
    rank = sampled(q, 0.675 * math.sqrt(1.01) / 1.9)
    coin = MixtureOfGaussiansDpEvent(0.675, (0.0, 0.1, 1.0), (1 - q, q * 0.9, q * 0.1))
    assert pld.epsilon([(rank, steps)], 1e-5, ADD) == pytest.approx(50.9, abs=0.05)
    assert pld.epsilon([(sampled(q, 0.675), steps)], 1e-5, ADD) == pytest.approx(3.98, abs=0.01)
    assert pld.epsilon([(coin, steps)], 1e-5, ADD) == pytest.approx(0.435, abs=0.001)


def test_modelmix_baseline():
    assert pld.epsilon([(sampled(0.02, 0.3633), 5000)], 1e-5, ADD) == pytest.approx(183.8, abs=0.1)


# ------------------------------------------------------------------------------------- the meaning


def test_a_plain_multiplier_is_noise_over_the_actual_shift():
    """Who writes a plain Gaussian event has used the relation's sensitivity already."""
    history = [(GaussianDpEvent(2.0), 3)]
    assert pld.epsilon(history, 1e-5, ADD) == pld.epsilon(history, 1e-5, REPLACE)


def test_certain_sampling_is_no_sampling():
    certain = [(sampled(1.0, 2.0), 3)]
    assert pld.epsilon(certain, 1e-5, ADD) == pld.epsilon([(GaussianDpEvent(2.0), 3)], 1e-5, ADD)
    opposite = pld.epsilon(certain, 1e-5, REPLACE)
    assert opposite == pld.epsilon([(GaussianDpEvent(1.0), 3)], 1e-5, ADD)


def test_sampling_nobody_costs_nothing():
    assert pld.epsilon([(sampled(0.0, 1.0), 100)], 1e-5, ADD) == 0
    assert pld.epsilon([], 1e-5, ADD) == 0


def test_no_noise_no_privacy():
    assert pld.epsilon([(GaussianDpEvent(0.0), 1)], 1e-5, ADD) == math.inf
    with pytest.raises(UnsupportedEvent, match="Add noise"):
        pld.epsilon([(sampled(0.1, 0.0), 1)], 1e-5, ADD)


def test_different_events_compose():
    """Splitting steps over equal and almost equal events changes nothing."""
    whole = pld.epsilon([(sampled(0.02, 1.0), 500)], 1e-6, ADD)
    parts = [(sampled(0.02, 1.0), 200), (sampled(0.02, 1.0 + 1e-9), 200), (sampled(0.02, 1.0), 100)]
    assert pld.epsilon(parts, 1e-6, ADD) == pytest.approx(whole, rel=1e-3)
    gaussians = [(GaussianDpEvent(3.0), 2), (sampled(0.02, 1.0), 500), (GaussianDpEvent(4.0), 5)]
    mu = math.sqrt(2 / 9 + 5 / 16)
    merged = [(sampled(0.02, 1.0), 500), (GaussianDpEvent(1 / mu), 1)]
    assert pld.epsilon(gaussians, 1e-6, ADD) == pytest.approx(pld.epsilon(merged, 1e-6, ADD))


def test_laplace_is_pure_for_one_step():
    assert pld.epsilon([(LaplaceDpEvent(2.0), 1)], 1e-10, ADD) == pytest.approx(0.5, rel=2e-3)
    theirs = dp_accounting_epsilons(LaplaceDpEvent(5.0), 100, [1e-6], ADD, 1e-4)[0]
    assert pld.epsilon([(LaplaceDpEvent(5.0), 100)], 1e-6, ADD) == pytest.approx(theirs, rel=2e-3)


def test_unproven_relations_are_refused():
    laplace = PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0))
    mixture = MixtureOfGaussiansDpEvent(1.0, (0.0, 0.5, 1.0), (0.5, 0.25, 0.25))
    subset = SampledWithoutReplacementDpEvent(100, 10, GaussianDpEvent(1.0))
    for event, relation in ((laplace, REPLACE), (mixture, REPLACE), (subset, ADD)):
        with pytest.raises(UnsupportedRelation, match="no bound is proven"):
            pld.epsilon([(event, 2)], 1e-5, relation)


def test_events_without_a_loss_distribution_are_refused():
    for event in (ZCDpEvent(0.1), PoissonSampledDpEvent(0.1, ZCDpEvent(0.1))):
        with pytest.raises(UnsupportedEvent):
            pld.epsilon([(event, 1)], 1e-5, ADD)


# ------------------------------------------------------------------------------- properties

rates = st.floats(math.log(1e-3), math.log(0.9)).map(math.exp)
multipliers = st.floats(math.log(0.5), math.log(20)).map(math.exp)
lengths = st.integers(1, 3000)
relations = st.sampled_from([ADD, REPLACE])
wiggle = 1.0015  # two answers may each be above the truth by the tolerance of the refinement


@settings(max_examples=10)
@given(rates, multipliers, lengths, relations, st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_epsilon_moves_the_right_way(q, nm, steps, relation, delta):
    def epsilon(q, nm, steps, delta=delta):
        return pld.epsilon([(sampled(q, nm), steps)], delta, relation)

    base = epsilon(q, nm, steps)
    assert epsilon(q, nm * 1.1, steps) <= base * wiggle + 1e-7
    assert epsilon(min(1.0, q * 1.1), nm, steps) >= base / wiggle - 1e-7
    assert epsilon(q, nm, steps + 1) >= base / wiggle - 1e-7
    assert epsilon(q, nm, steps, delta / 2) >= base / wiggle - 1e-7


@settings(max_examples=10)
@given(rates, multipliers, lengths, relations, st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_renyi_never_beats_the_loss_distribution(q, nm, steps, relation, delta):
    history = [(sampled(q, nm), steps)]
    assert pld.epsilon(history, delta, relation) <= rdp.epsilon(history, delta, relation) + 1e-6


@settings(max_examples=10)
@given(rates, multipliers, lengths, relations, st.sampled_from([1e-3, 1e-6, 1e-10]))
def test_delta_inverts_epsilon(q, nm, steps, relation, delta):
    history = [(sampled(q, nm), steps)]
    epsilon = pld.epsilon(history, delta, relation)
    back = pld.delta(history, epsilon, relation)
    assert back <= delta * 1.03
    if epsilon > 1e-3:
        assert back >= delta * 0.9


@settings(max_examples=5)
@given(st.floats(0.01, 0.9), st.floats(0.5, 10), st.integers(1, 500))
def test_fixed_size_is_dearer_than_poisson_remove_and_cheaper_than_renyi(rate, nm, steps):
    size = max(1, round(rate * 1000))
    subset = SampledWithoutReplacementDpEvent(1000, size, GaussianDpEvent(nm))
    ours = pld.epsilon([(subset, steps)], 1e-6, REPLACE)
    assert ours >= pld.epsilon([(sampled(size / 1000, nm), steps)], 1e-6, ADD) / wiggle - 1e-7
    assert ours <= rdp.epsilon([(subset, steps)], 1e-6, REPLACE) + 1e-6


def test_a_curve_of_deltas_is_the_deltas():
    history = [(sampled(0.02, 1.0), 1000)]
    epsilons = np.array([5.0, 0.0, 1.0, 2.5, 40.0])
    curve = pld.deltas(history, epsilons, ADD)
    single = [pld.delta(history, float(e), ADD) for e in epsilons]
    np.testing.assert_allclose(curve[:4], single[:4], rtol=0.02)
    assert curve[4] < 1e-19
    plain = [(GaussianDpEvent(2.0), 3)]
    assert pld.deltas(plain, epsilons, ADD)[2] == pld.delta(plain, 1.0, ADD)


# ---------------------------------------------------------------------------------- the corners


@pytest.mark.parametrize(
    "q, nm, steps, delta",
    [
        (0.5, 0.3, 100_000, 1e-10),
        (1e-4, 50.0, 100_000, 1e-10),
        (1e-4, 50.0, 1, 1e-3),
        (0.01, 1e-3, 10, 1e-5),
        (0.01, 1e6, 10**6, 1e-12),
        (1e-7, 2.0, 10**6, 1e-12),
        (0.001, 20.0, 10**7, 1e-9),
        (0.01, 1.0, 1000, 1e-100),
    ],
)
def test_corners_are_finite_and_below_renyi(q, nm, steps, delta):
    epsilon = pld.epsilon([(sampled(q, nm), steps)], delta, ADD)
    assert 0 <= epsilon <= rdp.epsilon([(sampled(q, nm), steps)], delta, ADD)


def test_small_losses_where_the_default_interval_of_dp_accounting_is_too_coarse():
    """Nearly Gaussian: mu = q sqrt(T (e^(1/nm^2) - 1)), in the limit of many small steps."""
    q, nm, steps = 1e-4, 50.0, 100_000
    mu = q * math.sqrt(steps * math.expm1(1 / nm**2))
    ours = pld.epsilon([(sampled(q, nm), steps)], 1e-6, ADD)
    assert ours == pytest.approx(gaussian.epsilon(mu, 1e-6), rel=2e-3)
