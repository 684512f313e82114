"""Whatever a row holds, the release happens, and the row moves it by no more than is stated.

`benchmarks/hostile_tables.py` tries more of the same.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import hostile_tables
import numpy as np
import pytest

from winsor import metrics, tables
from winsor.core.arithmetic.rows import slack
from winsor.tables.design import Design
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.linear.task import Method

CASES = hostile_tables.cases()
SLOW = ("additive", "encoded", "poisson", "gamma", "automatic", "rule", "described")


@pytest.mark.parametrize("name", CASES)
def test_no_row_moves_a_release_by_more_than_is_stated(name):
    """One of 65 rows becomes another; then one of 4,097."""
    for seed in range(2):
        assert hostile_tables.move_of(CASES[name], seed) <= 1.0, seed
    if not any(each in name for each in SLOW):
        assert hostile_tables.move_of(CASES[name], 2, 4096) <= 1.0


@pytest.mark.parametrize("n", [64, 4096])
def test_no_row_that_joins_moves_a_sum_by_more_than_its_bound(n):
    for seed in range(200 if n == 64 else 20):
        for name, move in hostile_tables.joining_moves(seed, n).items():
            assert move <= 1.0, (seed, name)


def test_everything_that_releases_is_tried():
    """A newcomer is: statistics by themselves, the others with a line in `hostile_tables.cases`."""
    source = Path(inspect.getfile(hostile_tables)).read_text()
    public = [getattr(tables, name) for name in tables.__all__] + list(vars(metrics).values())
    kinds = (PrivateEstimator, Method, metrics.Metric)
    names = {
        each.__name__
        for each in public
        if (inspect.isclass(each) and issubclass(each, kinds) and each not in kinds)
        or (inspect.isfunction(each) and "epsilon" in inspect.signature(each).parameters)
    }
    assert len(names) > 30
    missing = {name for name in names if name not in source}
    assert missing == {"private_categories"}  # of which the encoder consists


def test_alike_rows_have_one_score_wherever_they_stand():
    """By BLAS the last of 4,097 have another, which at the kink of a loss is another gradient."""
    rng = np.random.default_rng(0)
    design = Design(np.tile(rng.standard_normal(50), (4097, 1)), intercept=False)
    for weights in (rng.standard_normal(50), rng.standard_normal((50, 3))):
        scores = design.rows(np.arange(4097)).scores(weights)
        assert len(np.unique(scores, axis=0)) == 1


def test_a_guarantee_says_what_rounding_may_add():
    x = np.random.default_rng(0).standard_normal((50, 2))
    model = tables.PrivateLinearSVC(epsilon=1.0, random_state=0, method="flat").fit(x, x[:, 0] > 0)
    assert f"rounding in sums over rows: at most {slack(50, 3):.1e}" in repr(model.guarantee_)
