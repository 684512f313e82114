"""Shapes without what chance explains, and what descents make of noise."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.tables.additive import PrivateAdditiveRegressor, fitting
from winsor.tables.additive.descent import MOMENTUM, Descent
from winsor.tables.additive.pairs import interaction
from winsor.tables.additive.shrinkage import Chance, curvatures, shrunk
from winsor.tables.additive.terms import SHARED, Design, Term, tent_sums

EVEN = np.full(8, 1 / 8)
DESIGN = Design(
    (
        Term((0,), (np.arange(8.0),), (EVEN,)),
        Term((1,), (np.array([0.0, 1.0]),), (np.array([0.7, 0.3]),)),
        Term((0, 1), (np.arange(3.0), np.arange(3.0)), (np.full(3, 1 / 3), np.full(3, 1 / 3))),
    )
)


def chance(noise: float) -> Chance:
    return Chance(np.full(DESIGN.size, noise**2), np.ones(DESIGN.size), 0.0)


def test_noise_is_taken_away_and_shapes_stay():
    draw = np.random.default_rng(0)
    noise = 0.1 * draw.normal(size=(DESIGN.size, 1))
    left = shrunk(DESIGN, noise, chance(0.1))[:-1]
    constant = [noise[:8].mean(), noise[9:18].mean()]  # which is not touched
    assert np.var(left[:8]) < 0.3 * np.var(noise[:8])
    assert left[:8].mean() == pytest.approx(constant[0])
    assert left[9:18].mean() == pytest.approx(constant[1])
    steep = noise.copy()
    steep[:8, 0] += np.linspace(-3, 3, 8)
    kept = shrunk(DESIGN, steep, chance(0.1))
    assert np.std(kept[:8, 0] - np.linspace(-3, 3, 8)) < 0.1  # the line stays, its noise goes
    assert np.allclose(shrunk(DESIGN, steep, chance(0.0)), steep)


def test_curvatures_are_those_of_the_rows():
    """Of features that are independent, at the knots, with the masses that are stated."""
    draw = np.random.default_rng(1)
    table = np.c_[draw.integers(0, 8, 40_000), draw.random(40_000) < 0.3].astype(float)
    alone = Design(DESIGN.terms[:2])
    rows = alone.rows(table).toarray()
    found = (rows**2).mean(axis=0)
    found[8] = rows[:, 8].var()
    assert curvatures(alone) == pytest.approx(found, rel=0.05)


def test_curvatures_know_of_rows_between_knots():
    """By the tents and their products; a third of the masses, along the roughest of waves."""
    draw = np.random.default_rng(3)
    table = draw.uniform(0, 8, size=(60_000, 2))
    knots = np.arange(9.0), np.array([0.0, 8.0])
    sums = tent_sums(table, knots, 9) / len(table)
    terms = [
        Term((j,), (own,), (sums[j, : len(own)],), (sums[j, 9 : 8 + len(own)] / SHARED,))
        for j, own in enumerate(knots)
    ]
    line = Design((terms[1],))
    column = line.rows(table).toarray()[:, 0]
    assert curvatures(line)[0] == pytest.approx(column.var(), rel=0.02)
    shape = Design((terms[0],))
    rows = shape.rows(table).toarray()[:, :-1]
    assert curvatures(shape)[:-1] == pytest.approx(
        np.linalg.eigvalsh(rows.T @ rows / len(rows)), rel=0.02
    )
    pair = Design((interaction(*terms, 9),))
    rows = pair.rows(table).toarray()[:, :-1]
    assert curvatures(pair)[:-1] == pytest.approx(
        np.linalg.eigvalsh(rows.T @ rows / len(rows)), rel=0.05
    )


@pytest.mark.parametrize("along", [0.01, 0.5, 2.0])
def test_the_response_of_a_descent_is_what_its_steps_do(along):
    steps, rate = 12, 0.3
    kept = round(0.75 * steps)

    def answer(start, noise):
        here = ahead = start
        path = []
        for each in noise:
            there = ahead + rate * (each - along * ahead)
            here, ahead = there, there + MOMENTUM * (there - here)
            path.append(here)
        return np.mean(path[-kept:])

    left, deviation = Descent(steps, 1.0).response(np.array([along]), rate)
    pulses = [answer(0.0, row) for row in np.eye(steps)]
    assert left[0] == pytest.approx(answer(1.0, np.zeros(steps)))
    assert deviation[0] == pytest.approx(np.linalg.norm(pulses))


def test_the_randomness_of_rows_bends_shapes_less(monkeypatch):
    """Two features in twelve matter; at an epsilon of which noise is nothing, rows are chance."""
    draw = np.random.default_rng(4)
    x, fresh = draw.uniform(size=(2, 2_000, 12))

    def mean(table):
        return 0.3 * table[:, 0] + 0.3 * (table[:, 1] > 0.5)

    y = mean(x) + draw.normal(size=2_000)
    errors = []
    for shrinks in (shrunk, lambda design, parameters, _: parameters):
        monkeypatch.setattr(fitting, "shrunk", shrinks)
        model = PrivateAdditiveRegressor(epsilon=100.0, interactions=0, random_state=0).fit(x, y)
        errors.append(np.mean((model.predict(fresh) - mean(fresh)) ** 2))
    assert errors[0] < 0.6 * errors[1]


@pytest.mark.parametrize("stated", [True, False])
def test_few_rows_are_not_far_worse_than_the_mean(stated):
    draw = np.random.default_rng(2)
    x = draw.uniform(50, 150, size=(300, 12))
    y = 100 + 0.5 * (x[:, 0] - 100) + 20 * draw.normal(size=300)
    given = {"bounds": (0, 200), "target_bounds": (0, 200)} if stated else {}
    for seed in range(3):
        model = PrivateAdditiveRegressor(epsilon=0.3, random_state=seed, **given).fit(x, y)
        assert model.score(x, y) > -0.5
