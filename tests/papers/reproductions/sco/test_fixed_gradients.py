"""Sums that are remembered are the sums that a plain design would give."""

from __future__ import annotations

import numpy as np
import pytest
from winsor_papers.reproductions.sco.fixed_gradients import FixedDesign, moved
from winsor_papers.reproductions.sco.rates import LinearLoss

from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.tables import Iterative, Simple
from winsor.tables.design import Design, row_norms
from winsor.tables.linear.task import LinearTask

ROWS = np.random.default_rng(0).standard_t(2.5, size=(400, 7))


def solved(solver, design):
    target = Target(1.0, 1e-6, None, Neighbouring.ADD_OR_REMOVE_ONE)
    key = new_key(3)
    session = Session(PrepaidDoor(Ledger({}), target.relation, key), target, key)
    task = LinearTask(design, np.zeros(400), LinearLoss(), 0.0, np.zeros(7), row_bound=None)
    return solver.solve(task, session).theta


@pytest.mark.parametrize(
    "solver",
    [
        Simple(2.0, 6, 0.1, radius=0.5),
        Iterative(2.0, 6, 0.1, radius=0.5, groups=5, grouping="partition"),
        Iterative(2.0, 6, 0.1, radius=0.5, groups=5, grouping="poisson"),
    ],
)
def test_a_descent_gives_what_it_gives_on_the_plain_rows(solver):
    plain = solved(solver, Design(ROWS.copy(), intercept=False))
    fixed = solved(solver, FixedDesign(ROWS.copy(), row_norms(ROWS)))
    assert np.abs(plain).max() > 0
    np.testing.assert_allclose(fixed, plain, rtol=1e-9, atol=1e-12)


def test_other_residuals_are_summed_anew():
    rows = FixedDesign(ROWS, row_norms(ROWS)).rows(np.arange(5))
    ones = np.ones(5)
    first = rows.pull(ones)
    first += 100.0  # what was handed out is the caller's
    np.testing.assert_allclose(rows.pull(ones), ROWS[:5].sum(axis=0))
    np.testing.assert_allclose(rows.pull(2 * ones), 2 * ROWS[:5].sum(axis=0))


def test_a_mean_that_was_moved_is_moved_back():
    rows = ROWS.copy()
    with moved(rows, row_norms(rows) ** 2, -3.0) as norms:
        assert rows[:, 0].mean() == pytest.approx(ROWS[:, 0].mean() - 3.0)
        np.testing.assert_allclose(norms, row_norms(rows), rtol=1e-9)
    assert (rows == ROWS).all()
