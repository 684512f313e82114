"""A blunt look at small tables: magnitudes, what it pays for, and who takes it."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.audit import replay
from winsor.core.contract import Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.tables import Distribution, PrivateLogisticRegression
from winsor.tables.additive import PrivateAdditiveClassifier, PrivateAdditiveRegressor, plan
from winsor.tables.linear.scaled import learnt_range
from winsor.tables.ranges.coarse import Coarse
from winsor.tables.ranges.plan import enough, share_of_one_round, share_of_ranges


def units(n: int = 400) -> np.ndarray:
    """Columns in units of which nobody knows anything."""
    draw = np.random.default_rng(0)
    return np.column_stack(
        [
            draw.lognormal(7, 0.4, n),
            1e-3 * draw.uniform(0.5, 1.5, n),
            -50 + 5 * draw.normal(size=n),
            draw.normal(size=n),
            1e4 * draw.normal(size=n),
            draw.random(n) < 0.3,
            np.zeros(n),
        ]
    )


def looked(table: np.ndarray, multiplier: float, seed: int = 0) -> list[Distribution]:
    door = PrepaidDoor(Ledger({}), Neighbouring.ADD_OR_REMOVE_ONE, seed.to_bytes(32, "little"))
    found = Coarse(table.shape[1]).release(table, door, Gaussian(multiplier))
    assert len(door.ledger) == 2
    return found


def test_ranges_are_about_where_the_rows_are():
    """Noise of a count is a fourteenth of the rows: no cell of a histogram stands out of it. The
    sign of a column is sometimes mistaken."""
    table = units()
    right = []
    for seed in range(10):
        found = looked(table, 28 / np.sqrt(table.shape[1]), seed)
        for column, each in zip(table.T[:5], found, strict=False):
            width = max(*np.abs(np.quantile(column, [0.1, 0.9])))
            inside = np.mean((each.low <= column) & (column <= each.high))
            right.append(inside > 0.7 and each.high - each.low < 12 * width)
        assert 0 < found[5].high < 5
        assert learnt_range(found[6]) == (-1.0, 1.0, 0.0)  # nothing but zeros: a rare indicator
    assert np.mean(right) > 0.9


def test_when_it_is_taken():
    mu = 0.27  # epsilon 1, delta 1e-5
    assert share_of_ranges(0.1, 20_000, 9, mu) == pytest.approx(0.1)
    assert share_of_ranges(0.1, 455, 31, mu) is None and enough(455, 31, 0.3, mu)
    assert not enough(100, 31, 0.3, mu)
    assert share_of_one_round(0.1, 2_000, 9, mu) == 0.1  # between bounds
    assert 0.1 < share_of_one_round(0.1, 250, 9, mu) <= 0.3 + 1e-12
    assert share_of_one_round(0.1, 100, 31, mu) is None


@pytest.mark.parametrize("bounds", [None, (-1e6, 1e6)])
def test_small_tables_in_any_unit(bounds):
    """Six hundred rows of twelve columns: bounds that are far too wide do no harm either."""
    draw = np.random.default_rng(1)
    latent = draw.normal(size=(600, 12))
    x = np.exp(latent / 3) * 10.0 ** np.arange(-3, 3).repeat(2)
    y = (latent[:, :8].sum(axis=1) > 0).astype(int)
    model = PrivateAdditiveClassifier(epsilon=1.5, bounds=bounds, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.7
    assert 1.4 < model.epsilon_ <= 1.5
    linear = PrivateLogisticRegression(epsilon=1.5, bounds=bounds, random_state=0).fit(x, y)
    assert linear.score(x, y) > 0.7


def test_shapes_of_small_tables_are_lines():
    x = units()[:, :5]
    y = x[:, 0] / 1_000 + x[:, 3]
    model = PrivateAdditiveRegressor(epsilon=1.0, random_state=0).fit(x, y)
    assert all(len(shape.features) == 1 for shape in model.terms_)
    assert all(len(shape.knots[0]) == 2 for shape in model.terms_)
    descents = plan.FIRST_STEPS + plan.LAST_STEPS
    assert len(model.ledger_) == 2 + descents + 1  # ranges and cut: no masses, pairs, level


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("bounds", [None, (-1, 1)])
def test_replay(monkeypatch, relation, bounds):
    monkeypatch.setattr(plan, "FIRST_STEPS", 2)
    monkeypatch.setattr(plan, "LAST_STEPS", 3)
    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, size=(40, 3))

    def train(data):
        model = PrivateAdditiveRegressor(
            epsilon=4.0, delta=1e-3, bounds=bounds, relation=relation, random_state=None
        )
        return model.fit(*data)

    report = replay(train, (x, np.exp(x[:, 0])))
    report.assert_passed()
    assert report.releases == 8 and report.largest_share > 0.1


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    ("estimator", "options"),
    [(PrivateLogisticRegression, {}), (PrivateAdditiveClassifier, {"bounds": (-1, 1)})],
)
def test_replay_of_a_look_at_a_few_columns(monkeypatch, estimator, options, relation):
    monkeypatch.setattr(plan, "FIRST_STEPS", 2)
    monkeypatch.setattr(plan, "LAST_STEPS", 3)
    x = np.random.default_rng(0).uniform(-1, 1, size=(40, 30))
    fitted = []

    def train(data):
        model = estimator(epsilon=5.0, delta=1e-3, relation=relation, **options)
        fitted.append(model.fit(data[0], data[1]))
        return fitted[-1]

    report = replay(train, (x, (x[:, 2] > 0).astype(int)))
    report.assert_passed()
    assert report.releases >= 7 and report.largest_share > 0.1
    if estimator is PrivateLogisticRegression:
        assert 0 < np.count_nonzero(np.diff(fitted[0].feature_range_) != 8.0) < 30  # a few
    else:
        assert 0 < len(fitted[0].terms_) < 30
