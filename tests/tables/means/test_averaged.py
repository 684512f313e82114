"""The averaged-clipping mean: sensitivity, noise, transcription, error bound, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from injected_noise import inject
from winsor_papers.aclip.estimator import estimator_7_claim, estimator_7_std

from winsor.audit import replay
from winsor.core.accounting import account
from winsor.core.arithmetic.rows import slack
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.sampling.samplers import Poisson
from winsor.tables import averaged_mean, clipped_mean
from winsor.tables.means.averaged import averaged_sensitivity, clipped_average
from winsor.tails.datasets import moment_rows

RELATIONS = [Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE]
KEY = bytes(range(32))  # a key, unlike a seed, is not bound to the data


def aclip(rows, m, clip):
    """(2) of the paper, from its lines: average first, then clip the average."""
    average = sum(rows, np.zeros(rows.shape[1])) / m
    norm = np.linalg.norm(average)
    return average if norm <= clip else clip / norm * average


@pytest.mark.parametrize("clip", [0.2, 50.0])
@pytest.mark.parametrize("centre", [0.0, 1.5])
def test_the_estimator_is_the_papers_with_injected_noise(monkeypatch, clip, centre):
    noise = inject(monkeypatch)
    x = np.random.default_rng(0).standard_t(2, size=(60, 3)) + 1
    whole = averaged_mean(x, clip=clip, epsilon=2.0, centre=centre, random_state=KEY)
    expected = centre + aclip(x - centre, 60, clip) + noise.vectors[0]
    np.testing.assert_allclose(whole.estimate, expected, atol=1e-9)
    part = averaged_mean(x, clip=clip, epsilon=2.0, centre=centre, batch_size=20, random_state=KEY)
    picked = Poisson.of_batch_size(60, 20).indices(KEY, 0)
    expected = centre + aclip(x[picked] - centre, 20, clip) + noise.vectors[1]
    np.testing.assert_allclose(part.estimate, expected, atol=1e-9)
    assert noise.stds == [whole.noise_std, part.noise_std]


@pytest.mark.parametrize("odd", [0.0, 1.0, -1e30, 1e200, 1e308, 1e-300])
def test_one_record_moves_the_average_by_no_more_than_its_sensitivity(odd):
    rng = np.random.default_rng(0)
    rows = rng.standard_t(2, size=(50, 3))
    other = np.vstack([rows[:-1], np.full((1, 3), odd)])
    for one in (rows, rows[:-1]):
        moved = clipped_average(one, 50, 1.5) - clipped_average(other, 50, 1.5)
        assert np.linalg.norm(moved) <= 2 * 1.5 * (1 + slack(50, 3))
    assert np.isfinite(clipped_average(other, 50, 1.5)).all()
    assert np.linalg.norm(clipped_average(other, 50, 1.5)) <= 1.5 * (1 + slack(50, 3))


def test_the_bound_is_attained_by_adding_and_by_replacing():
    rows = np.full((10, 1), -1e6)
    flipped = np.vstack([rows, [[1e9]]])
    assert clipped_average(flipped, 10, 2.0)[0] - clipped_average(rows, 10, 2.0)[0] == (
        pytest.approx(4.0)
    )
    sensitivity = averaged_sensitivity(2.0)
    assert (sensitivity.add_remove, sensitivity.replace) == (4.0, 4.0)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("batch_size", [None, 10])
def test_the_certified_epsilon_is_the_target(relation, batch_size):
    result = averaged_mean(
        np.ones(100), clip=1.0, epsilon=2.0, batch_size=batch_size, relation=relation
    )
    assert 0.99 * 2.0 <= result.guarantee.epsilon <= 2.0
    assert result.guarantee.relation is relation
    assert (result.rho is None) == (batch_size is not None)
    spent = account(result.ledger.history(), result.guarantee.delta, relation).epsilon
    assert spent <= result.guarantee.epsilon == pytest.approx(spent, rel=1e-3)


def test_the_noise_is_2m_times_that_of_per_record_clipping():
    one = clipped_mean(np.ones(500), epsilon=1.0, radius=1.0).noise_std
    assert averaged_mean(np.ones(500), clip=1.0, epsilon=1.0).noise_std == (
        pytest.approx(2 * 500 * one, rel=2e-3)
    )


def test_the_published_noise_is_the_printed_one_and_too_little():
    """Definition 6 at sensitivity lambda; half of what Definition 6 asks for at 2 lambda."""
    printed = estimator_7_std(3.0, epsilon=0.5, delta=1e-5)
    assert printed == pytest.approx(3.0 * np.sqrt(2 * np.log(1.25e5)) / 0.5)
    assert estimator_7_std(3.0, epsilon=0.5, delta=1e-5, constant=1.0) == (
        pytest.approx(3.0 * np.sqrt(np.log(1e5)) / 0.5)
    )
    certified = averaged_mean(np.ones(500), clip=3.0, epsilon=0.5, delta=1e-5).noise_std
    assert printed < certified
    assert "published, not certified" in str(estimator_7_claim(0.5, 1e-5))


def test_the_error_bound_holds():
    failures = 0
    for seed in range(40):
        x, mean, _ = moment_rows(3000, 2, 2.5, family="student_t", seed=seed)
        deviation = np.sqrt(((x - mean) ** 2).sum(1).mean()) * 1.5
        result = averaged_mean(
            x, clip=4.0, epsilon=5.0, deviation=deviation, centre=mean, beta=0.1, random_state=seed,
            batch_size=500 if seed % 2 else None,
        )  # fmt: skip
        failures += np.linalg.norm(result.estimate - mean) > result.error_bound.total
    assert failures <= 8  # twice what beta allows
    assert averaged_mean(x, clip=4.0, epsilon=5.0).error_bound is None


def test_a_column_gives_a_number_and_a_seed_gives_the_same():
    x = np.random.default_rng(0).standard_t(3, size=100)
    first, second = (averaged_mean(x, clip=5.0, epsilon=1.0, random_state=0) for _ in range(2))
    assert first.estimate.shape == ()
    assert first.estimate == second.estimate


def test_rho_is_for_whole_data():
    result = averaged_mean(np.ones(50), clip=3.0, rho=0.02, relation="replace_one")
    assert result.noise_std == pytest.approx(2 * 3.0 / np.sqrt(2 * 0.02))
    assert result.rho == pytest.approx(0.02)
    with pytest.raises(ConfigurationError, match="rho must be used with unsampled"):
        averaged_mean(np.ones(50), clip=3.0, rho=0.02, batch_size=5)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_the_replay_finds_nothing(batch_size):
    x = np.random.default_rng(0).standard_t(3, size=(40, 2))
    report = replay(
        lambda rows: averaged_mean(rows, clip=2.0, epsilon=1.0, batch_size=batch_size), x
    )
    report.assert_passed()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 0.0}, "clip must be a positive"),
        ({"epsilon": 0.0}, "epsilon must be a positive"),
        ({"rho": 1.0}, "either epsilon or rho"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 0.5}, "batch_size must be"),
        ({"deviation": -1.0}, "deviation must be"),
        ({"beta": 1.0}, "strictly between 0 and 1"),
        ({"delta": 0.5}, "below 1/n"),
        ({"relation": "user"}, "relation must be one of"),
        ({"centre": np.nan}, "centre must be finite"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        averaged_mean(np.ones(20), **{"clip": 1.0, "epsilon": 1.0, **options})
