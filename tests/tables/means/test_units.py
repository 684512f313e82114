"""Means over persons: each counts once, and is protected with all rows."""

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.tables import averaged_mean, clipped_mean, iterative_mean, winsorised_mean
from winsor.tables.means.clipped import clipped_sum
from winsor.tables.units import protected_rows

DRAW = np.random.default_rng(0)
SIZES = np.r_[50, 1 + np.arange(199) % 5]
IDS = DRAW.permutation(np.repeat(np.arange(200), SIZES))
X = DRAW.standard_t(3, size=(len(IDS), 2)) + IDS[:, None] / 100
BY_PERSON = np.stack([X[person == IDS].mean(0) for person in range(200)])

ESTIMATORS = [
    lambda x, **more: clipped_mean(x, epsilon=2.0, radius=5.0, random_state=1, **more),
    lambda x, **more: iterative_mean(x, epsilon=2.0, radius=5.0, random_state=1, **more),
    lambda x, **more: averaged_mean(x, clip=5.0, epsilon=2.0, random_state=1, **more),
    lambda x, **more: winsorised_mean(x, epsilon=2.0, random_state=1, **more),
]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_is_the_estimator_of_the_means_of_persons(estimator):
    of_rows, of_persons = estimator(X, unit=IDS), estimator(protected_rows(X, IDS)[0])
    assert np.array_equal(of_rows.estimate, of_persons.estimate)
    assert of_rows.guarantee.epsilon == of_persons.guarantee.epsilon
    assert of_rows.ledger.config["n"] == 200
    said = " ".join(of_rows.guarantee.conditions)
    assert "one unit with all its rows" in said
    assert "n = 200, is public" in said


def test_the_means_of_persons():
    rows, column, _ = protected_rows(X, IDS)
    assert np.allclose(rows, BY_PERSON)
    assert not column
    names = np.array([f"person {i:03d}" for i in IDS])
    assert np.array_equal(protected_rows(X, names)[0], rows)


@pytest.mark.parametrize("value", [0.0, 1e6, -1e300])
def test_a_person_with_fifty_rows_moves_the_sum_by_at_most_one_radius(value):
    """Whatever the rows of person 0 are: replaced, so twice the radius."""
    other = np.where((IDS == 0)[:, None], value, X)
    sums = []
    for x in (X, other):
        rows = protected_rows(x, IDS)[0]
        sums.append(clipped_sum(rows, np.zeros(2), 5.0))
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * 5.0 * (1 + 1e-9)


def test_sums_of_huge_rows_do_not_overflow():
    rows, _, _ = protected_rows(np.full(20, 1.7e308), np.zeros(20, int))
    assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    ("unit", "words"),
    [
        (IDS[:-1], "one identifier for each"),
        (np.where(IDS == 3, np.nan, IDS), "NaN"),
        ([None, *IDS[1:]], "None"),
    ],
)
def test_rows_of_nobody_are_refused(unit, words):
    with pytest.raises(ConfigurationError, match=words):
        clipped_mean(X, epsilon=1.0, radius=1.0, unit=unit)


def test_groups_of_rows_and_persons_do_not_mix():
    with pytest.raises(ConfigurationError, match="without by"):
        winsorised_mean(X[:, 0], epsilon=1.0, unit=IDS, by=IDS % 2)


def test_a_missing_identifier_is_refused_before_anything_is_computed():
    with pytest.raises(ConfigurationError, match="unit must give an identifier"):
        clipped_mean([1.0, 2.0], unit=["a", float("nan")], epsilon=1.0, delta=1e-3, radius=1.0)
