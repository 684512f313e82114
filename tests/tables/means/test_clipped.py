"""The clipped mean: sensitivity, noise, radius, error bound, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from winsor_papers.theory import simple_clipping_radius

from winsor.core.arithmetic.rows import slack
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.prepaid import Receipt
from winsor.tables import PrivateRadius, clipped_mean
from winsor.tables.means.clipped import clipped_sum
from winsor.tails.datasets import moment_rows

RELATIONS = [Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE]
ODD_ROWS = [0.0, 1.0, -1e30, 1e200, 1e-300]

KEY = bytes(range(32))  # a key, unlike a seed, is not bound to the data


@pytest.fixture
def released(monkeypatch):
    """Every value as it was before its noise, and the noise left out."""
    seen: list[np.ndarray] = []

    def release(self, value):
        seen.append(value.copy())
        self._left -= 1
        return value

    monkeypatch.setattr(Receipt, "release", release)
    return seen


@pytest.mark.parametrize("odd", ODD_ROWS)
@pytest.mark.parametrize("centre", [0.0, 3.0])
def test_one_record_moves_the_mean_by_no_more_than_its_sensitivity(released, odd, centre):
    rng = np.random.default_rng(0)
    x = rng.standard_t(2, size=(50, 3))
    options = {"epsilon": 1.0, "radius": 1.5, "centre": centre, "random_state": 0}
    clipped_mean(x, **options)
    clipped_mean(np.vstack([x[:-1], np.full((1, 3), odd)]), **options)
    before, after = released
    assert np.linalg.norm(before - after) <= 2 * 1.5 / 50 * (1 + slack(50, 3))
    # add/remove: the divisor is the nominal n, so compare sums
    with_last = clipped_sum(x, np.full(3, centre), 1.5)
    without = clipped_sum(x[:-1], np.full(3, centre), 1.5)
    assert np.linalg.norm(with_last - without) <= 1.5 * (1 + slack(50, 3))


def test_the_replace_bound_is_attained(released):
    x = np.ones((10, 1))
    for last in (1e9, -1e9):
        x[-1] = last
        clipped_mean(x, epsilon=1.0, radius=2.0, random_state=0)
    assert abs(released[0][0] - released[1][0]) == pytest.approx(2 * 2.0 / 10, rel=1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_certified_epsilon_is_the_target(relation, epsilon):
    result = clipped_mean(np.ones(100), epsilon=epsilon, radius=1.0, relation=relation)
    assert 0.995 * epsilon <= result.guarantee.epsilon <= epsilon
    assert result.guarantee.relation is relation


def test_rho_gives_exactly_the_papers_noise():
    """Lemma 4: s^2 = 2 R^2/(rho n^2) is rho-zCDP under replace-one.

    docs/privacy.md, "Reference numbers": epsilon at 1e-5.
    """
    result = clipped_mean(np.ones(500), rho=0.02, radius=3.0, relation="replace_one")
    assert result.noise_std == pytest.approx(np.sqrt(2 * 3.0**2 / (0.02 * 500**2)))
    assert result.rho == pytest.approx(0.02)
    # (12) at epsilon = 1, delta = 1e-5 really spends 0.653
    rho = 1 / (1 + 2 * np.sqrt(np.log(1e5))) ** 2
    spent = clipped_mean(np.ones(500), rho=rho, radius=1.0, delta=1e-5, relation="replace_one")
    assert spent.guarantee.epsilon == pytest.approx(0.653, abs=5e-4)


def test_add_remove_needs_half_the_noise_of_replace():
    one, two = (
        clipped_mean(np.ones(500), epsilon=1.0, radius=1.0, relation=relation).noise_std
        for relation in RELATIONS
    )
    assert two == pytest.approx(2 * one, rel=2e-3)


def test_the_radius_of_16_uses_the_noise_that_is_added():
    x = moment_rows(2000, 3, 3.0)[0]
    result = clipped_mean(x, epsilon=0.5, moments=(3.0, 2.0), random_state=0)
    rho = 2 * (result.radius / (result.noise_std * 2000)) ** 2
    assert result.radius == pytest.approx(simple_clipping_radius(3.0, 2.0, 2000, 3, rho))


@pytest.mark.parametrize("family", ["student_t", "pareto"])
def test_the_error_bound_holds(family):
    failures = 0
    for seed in range(40):
        x, mean, moment = moment_rows(3000, 2, 2.5, family=family, seed=seed)
        result = clipped_mean(x, epsilon=0.5, moments=(2.5, moment), beta=0.1, random_state=seed)
        failures += np.linalg.norm(result.estimate - mean) > result.error_bound.total
    assert failures <= 8  # twice what beta allows


def test_error_falls_at_the_rate_of_the_theory_where_noise_dominates():
    sizes = [500, 4000, 32000]
    errors = []
    for n in sizes:
        squares = []
        for seed in range(n, n + 100):  # fresh noise at each n: common noise would prove nothing
            x, mean, moment = moment_rows(n, 1, 2.5, slack=0.05, seed=seed)
            result = clipped_mean(x, epsilon=0.02, moments=(2.5, moment), random_state=seed)
            squares.append(np.sum((result.estimate - mean) ** 2))
        errors.append(np.sqrt(np.mean(squares)))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope / -(1 - 1 / 2.5) - 1) < 0.15


@given(st.integers(0, 2**32 - 1))
def test_order_of_rows_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_t(2, size=(30, 2))
    one = clipped_mean(x, epsilon=1.0, radius=1.0, random_state=KEY).estimate
    two = clipped_mean(rng.permutation(x), epsilon=1.0, radius=1.0, random_state=KEY).estimate
    assert np.allclose(one, two, atol=1e-12)


def test_a_column_gives_a_number_and_chunks_agree(monkeypatch):
    x = np.random.default_rng(0).standard_t(3, size=1000)
    flat = clipped_mean(x, epsilon=1.0, radius=5.0, centre=1.0, random_state=0)
    assert flat.estimate.shape == ()
    monkeypatch.setattr("winsor.core.arithmetic.rows.BLOCK", 7)
    again = clipped_mean(x[:, None], epsilon=1.0, radius=5.0, centre=1.0, random_state=0)
    assert again.estimate == pytest.approx([float(flat.estimate)])


def test_private_radius_finds_the_scale_and_pays_for_it():
    x = np.random.default_rng(0).standard_t(3, size=(20_000, 1)) * 7
    result = clipped_mean(x, epsilon=1.0, radius=PrivateRadius(1e-3, 1e6), random_state=0)
    assert 20 < result.radius < 400
    assert abs(result.estimate[0]) < 0.5
    assert result.guarantee.epsilon <= 1.0
    assert result.guarantee.steps == 1 + PrivateRadius(1e-3, 1e6).steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive"),
        ({"epsilon": -1.0}, "epsilon must be a positive"),
        ({}, "either epsilon or rho"),
        ({"epsilon": 1.0, "rho": 1.0}, "either epsilon or rho"),
        ({"rho": 0.0}, "rho must be a positive"),
        ({"epsilon": 1.0, "radius": 0.0}, "radius must be a positive"),
        ({"epsilon": 1.0, "radius": -1.0}, "radius must be a positive"),
        ({"epsilon": 1.0, "radius": None}, "radius must be given"),
        ({"epsilon": 1.0, "radius": None, "moments": (1.5, 1.0)}, "at least 2"),
        ({"epsilon": 1.0, "radius": None, "moments": (2.0, 0.0)}, "positive finite"),
        ({"epsilon": 1.0, "radius": None, "moments": 2.0}, r"pair \(p, M\)"),
        ({"epsilon": 1.0, "delta": 0.5}, "below 1/n"),
        ({"epsilon": 1.0, "delta": 0.0}, "strictly between 0 and 1"),
        ({"epsilon": 1.0, "beta": 1.0}, "strictly between 0 and 1"),
        ({"epsilon": 1.0, "relation": "user"}, "relation must be one of"),
        ({"epsilon": 1.0, "random_state": "seed"}, "random_state must be"),
        ({"epsilon": 1.0, "centre": np.nan}, "centre must be finite"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        clipped_mean(np.ones(20), **{"radius": 1.0, **options})


@pytest.mark.parametrize("x", [[], np.ones((2, 2, 2)), "text", np.array([["a"]]), np.ones((3, 0))])
def test_bad_data_are_refused(x):
    with pytest.raises(ConfigurationError, match="x must"):
        clipped_mean(x, epsilon=1.0, radius=1.0)
