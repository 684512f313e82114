"""How far one record moves what the additive models release, whatever the record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from winsor.core.contract import Neighbouring
from winsor.tables.additive import descent, pairs, terms
from winsor.tables.additive.knots import Tents, knots_of
from winsor.tables.additive.terms import Design, Term
from winsor.tables.losses import GammaLoss, Huber, PoissonLoss, Softmax, Squared
from winsor.tables.ranges.distribution import Distribution

ANY = st.floats(allow_nan=False, allow_infinity=False, width=64)
KNOTS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9, unique=True).map(
    lambda values: np.sort(np.asarray(values))
)


def apart(knots):
    return bool((np.diff(knots) > 1e-9 * max(1.0, np.abs(knots).max())).all())


def term(features, *knots):
    return Term(features, knots, tuple(np.full(len(k), 1 / len(k)) for k in knots))


@settings(max_examples=60, deadline=None)
@given(KNOTS.filter(apart), arrays.arrays(np.float64, 20, elements=ANY))
def test_tents_are_not_negative_and_add_up_to_one(knots, column):
    left, weight = Tents(knots).places(column)
    assert ((weight >= 0) & (weight <= 1)).all()
    assert ((left >= 0) & (left < len(knots) - 1)).all()
    assert Tents(knots).sums(column)[0].sum() == pytest.approx(20)


@settings(max_examples=60, deadline=None)
@given(KNOTS.filter(apart), KNOTS.filter(apart), arrays.arrays(np.float64, (12, 3), elements=ANY))
def test_no_row_of_a_design_is_longer_than_its_reach(one, two, table):
    design = Design((term((0,), one), term((1,), two), term((0, 2), one, two)))
    rows = design.rows(table).toarray()
    assert rows.shape == (12, design.size)
    assert (np.linalg.norm(rows, axis=1) <= design.reach * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(
    arrays.arrays(np.float64, (8, 3), elements=st.floats()),
    st.floats(1e-3, 1e3),
)
def test_residuals_are_cut_whatever_they_were(residuals, clip):
    for columns in (1, 3):
        cut = descent.cut_rows(residuals[:, :columns], clip)
        assert np.isfinite(cut).all()
        assert (np.linalg.norm(cut, axis=1) <= clip * (1 + 1e-12)).all()


@settings(max_examples=40, deadline=None)
@given(
    KNOTS.filter(apart),
    arrays.arrays(np.float64, (2, 2), elements=ANY),
    arrays.arrays(np.float64, 2, elements=ANY),
    st.sampled_from(
        [Squared(), Huber(1.0), PoissonLoss(np.zeros((2, 1))), GammaLoss(np.zeros((2, 1)))]
    ),
)
def test_a_record_moves_a_gradient_by_what_is_paid_for(knots, table, y, loss):
    """The sum over one row more is that row, and two rows differ by at most twice the bound."""
    design = Design((term((0,), knots), term((1,), knots)))
    with np.errstate(over="ignore"):
        residual = -loss.residual(np.zeros((2, 1)), y[:, None])
    cut = descent.cut_rows(residual, loss.clip)
    rows = design.rows(table).toarray()
    sums = rows * cut
    paid = descent.sensitivity(design, loss.clip)
    assert (np.linalg.norm(sums, axis=1) <= paid.under(Neighbouring.ADD_OR_REMOVE_ONE)).all()
    assert np.linalg.norm(sums[0] - sums[1]) <= paid.under(Neighbouring.REPLACE_ONE)


@settings(max_examples=40, deadline=None)
@given(KNOTS.filter(apart), arrays.arrays(np.float64, (2, 4), elements=ANY))
def test_a_record_moves_the_masses_by_what_is_paid_for(knots, rows):
    one, other = (terms.tent_sums(row[None], [knots] * 4, len(knots)) for row in rows)
    paid = terms.knot_sensitivity(4)
    assert np.linalg.norm(one) <= paid.add_remove
    assert np.linalg.norm(one - other) <= paid.replace


def test_products_of_tents_take_the_room_that_tents_leave():
    places = np.linspace(0, 1, 41)[:, None]
    knots = [np.array([0.0, 1.0])]
    lengths = [np.linalg.norm(terms.tent_sums(place[None], knots, 2)) for place in places]
    assert max(lengths) <= 1.0 and lengths[20] > 0.99  # half way, where there is most of them


def test_the_bounds_are_not_idle():
    knots = np.array([0.0, 1.0, 2.0])
    design = Design((term((0,), knots), term((1,), knots)))
    rows = design.rows(np.array([[0.0, 2.0]])).toarray()
    assert np.linalg.norm(rows) == pytest.approx(design.reach)
    assert np.linalg.norm(Tents(knots).sums(np.zeros(1))[0]) == 1.0


def test_softmax_residuals_are_shorter_than_their_bound():
    loss = Softmax(3)
    far = np.array([[-50.0, 50.0, 0.0], [50.0, 0.0, 0.0]])
    lengths = np.linalg.norm(loss.residual(far, np.array([0.0, 2.0])), axis=1)
    assert (lengths <= loss.clip + 1e-12).all() and lengths.max() > 1.4


@pytest.mark.parametrize("pairs_looked_at", [1, 15])
def test_a_record_is_in_one_cell_of_every_pair(pairs_looked_at):
    assert pairs.sensitivity(pairs_looked_at, 2.0).add_remove == pytest.approx(
        2.0 * pairs_looked_at**0.5
    )


def test_knots_of_odd_distributions():
    even = Distribution(np.linspace(0, 1, 33), np.full(32, 1 / 32))
    assert knots_of(even, 9) == pytest.approx(np.linspace(0, 1, 9))
    two = np.zeros(32)
    two[[0, -1]] = 0.7, 0.3
    assert len(knots_of(Distribution(np.linspace(0, 1, 33), two), 9)) == 2
    one = Distribution(np.array([0.0, 1e-7]), np.ones(1))
    assert len(knots_of(one, 9)) == 1
    tail = Distribution(np.array([0.0, 1.0, 2.0, 3.0, 1e6]), np.full(4, 0.25))
    assert knots_of(tail, 5).tolist() == [0.0, 1.0, 2.0, 3.0, 7.0]
