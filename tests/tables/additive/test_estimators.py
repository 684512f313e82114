"""Additive models: what they learn, what they say they spent, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from winsor.charts import save
from winsor.core.contract import ConfigurationError
from winsor.tables import PrivateAdditiveClassifier, PrivateAdditiveRegressor

N = 6_000


@pytest.fixture(scope="module")
def bent():
    """Bent shapes in odd units, a category, and a constant."""
    rng = np.random.default_rng(0)
    x = np.c_[
        rng.uniform(1_990, 2_020, N),
        rng.lognormal(8, 1, N),
        rng.integers(0, 2, N),
        np.full(N, 7.0),
    ]
    score = np.abs(x[:, 0] - 2_005) / 5 + np.log(x[:, 1]) / 2 - 1.5 * x[:, 2]
    return x, score, score + 0.5 * rng.standard_normal(N)


def fitted(table, **options):
    x, _, y = table
    return PrivateAdditiveRegressor(**{"epsilon": 2.0, "random_state": 0, **options}).fit(x, y)


def test_shapes_are_found_in_any_units(bent):
    x, truth, y = bent
    model = fitted(bent)
    assert 1.9 < model.epsilon_ <= 2.0
    left = np.mean((model.predict(x) - truth) ** 2) / truth.var()
    assert left < 0.06
    thousand = PrivateAdditiveRegressor(epsilon=2.0, random_state=0).fit(x, 1e6 + 1e5 * y)
    assert thousand.score(x, 1e6 + 1e5 * y) > 0.75


def test_the_ledger_pays_for_every_part_under_both_relations(bent):
    for relation in ("add_or_remove_one", "replace_one"):
        model = fitted(bent, relation=relation, interactions=1)
        assert 0.99 * 2 <= model.epsilon_ <= 2.0
        assert len(model.ledger_) == model.n_iter_ + 3 + 4  # the ranges, and four more


def test_the_same_seed_gives_the_same_model_and_other_data_other_noise(bent):
    x, _, y = bent
    one, two = fitted(bent), clone(fitted(bent)).fit(x, y)
    assert np.array_equal(one.predict(x), two.predict(x))


def test_shapes_can_be_looked_at(bent, tmp_path):
    model = fitted(bent)
    assert {shape.features for shape in model.terms_} == {(0,), (1,), (2,)}  # not the constant
    shape = model.shape(0)
    lowest = shape.knots[0][np.argmin(shape.heights[:, 0])]
    assert 2_002 < lowest < 2_008
    assert abs(shape.masses[0] @ shape.heights[:, 0]) < 1e-9
    for ending in ("svg", "html"):
        assert save(model.plot(0), tmp_path / f"shape.{ending}").stat().st_size > 1_000
    with pytest.raises(ConfigurationError, match="looked constant"):
        model.shape(3)


def test_an_interaction_is_found_and_only_where_there_is_one(bent):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, size=(N, 4))
    y = 3 * x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * rng.standard_normal(N)
    model = PrivateAdditiveRegressor(epsilon=3.0, interactions=2, random_state=0).fit(x, y)
    assert model.interactions_ == [(0, 1)]
    assert model.score(x, y) > 0.75
    surface = next(term for term in model.terms_ if len(term.features) == 2)
    assert surface.heights.ndim == 3 and model.terms_.index(surface) == 0
    assert len(model.plot("feature 0 x feature 1").series) == len(surface.knots[1])


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_log_links_learn_means_with_exposure(loss):
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 1, size=(N, 2))
    years = rng.uniform(0.5, 1.0, N)
    rate = np.exp(np.where(x[:, 0] > 0.5, 0.5, -0.5) + x[:, 1])
    if loss == "poisson":
        y = rng.poisson(years * rate).astype(float)
    else:
        rate = 1_000 * rate
        y = years * rate * rng.gamma(2, 0.5, N)
    model = PrivateAdditiveRegressor(epsilon=2.0, loss=loss, random_state=0)
    model.fit(x, y, exposure=years)
    ratio = model.predict(x) / rate
    assert 0.9 < ratio.mean() < 1.1 and ratio.std() < 0.2
    assert model.predict(x, exposure=years) == pytest.approx(model.predict(x) * years)


def test_huber_follows_the_bulk_and_log_targets_span_magnitudes(bent):
    x, truth, _ = bent
    rng = np.random.default_rng(3)
    wild = truth + rng.standard_cauchy(N)
    model = PrivateAdditiveRegressor(epsilon=2.0, loss="huber", random_state=0).fit(x, wild)
    assert np.mean((model.predict(x) - truth) ** 2) < 0.3 * truth.var()
    amounts = np.exp(2 * truth)
    logs = PrivateAdditiveRegressor(epsilon=2.0, target="log", random_state=0).fit(x, amounts)
    assert np.corrcoef(np.log1p(logs.predict(x)), 2 * truth)[0, 1] ** 2 > 0.9


def test_two_classes_and_three():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((N, 2))
    rings = np.digitize(x[:, 0] ** 2 + 0.2 * rng.standard_normal(N), [0.5, 1.5])
    for labels in (np.array(["no", "yes"])[(rings > 0).astype(int)], rings):
        model = PrivateAdditiveClassifier(epsilon=2.0, random_state=0).fit(x, labels)
        assert model.score(x, labels) > 0.8
        chances = model.predict_proba(x)
        assert chances.sum(axis=1) == pytest.approx(np.ones(N))
        assert model.epsilon_ <= 2.0


def test_public_bounds_spare_rounds(bent):
    x, _, y = bent
    known = [(1_990, 2_020), (0, 1e6), (0, 1), (0, 10)]
    model = fitted(bent, bounds=known, target_bounds=(-10, 30))
    assert len(model.ledger_) == model.n_iter_ + 1 + 4
    assert model.score(x, y) > 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "absolute"}, "loss must be one of"),
        ({"target": "sqrt"}, "target must be one of"),
        ({"loss": "gamma", "target": "log"}, "log link of its own"),
        ({"interactions": -1}, "interactions must be"),
        ({"bounds": [(1, 0)] * 4}, "low < high"),
        ({"epsilon": 0.0}, "epsilon must be"),
    ],
)
def test_what_cannot_be_is_refused(bent, options, message):
    x, _, y = bent
    with pytest.raises(ConfigurationError, match=message):
        PrivateAdditiveRegressor(**options).fit(x, y - 100)


def test_exposure_must_make_sense(bent):
    x, _, y = bent
    with pytest.raises(ConfigurationError, match="exposure must go with"):
        PrivateAdditiveRegressor().fit(x, y, exposure=np.ones(N))
    with pytest.raises(ConfigurationError, match="positive finite number"):
        PrivateAdditiveRegressor(loss="gamma").fit(x, np.abs(y), exposure=np.ones(N - 1))


@pytest.mark.parametrize("loss", ["squared", "gamma"])
def test_predictions_stay_where_targets_are(loss):
    """Four hundred rows: noise has a say in slopes, but not in how far predictions go."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 3))
    y = 100 + 10 * np.exp(x[:, 0])
    model = PrivateAdditiveRegressor(epsilon=1.0, loss=loss, random_state=0).fit(x, y)
    low, high = model._units.ends
    predicted = model.predict(1e3 * x)
    assert (predicted >= low).all() and (predicted <= high).all() and high < 2_000


@pytest.mark.parametrize("bounds", [None, (0, 1e5)])
def test_a_classifier_of_few_rows_has_lines_of_a_few_columns(bounds):
    draw = np.random.default_rng(0)
    y = draw.random(500) < 0.5
    x = 1000 * np.exp(0.4 * draw.normal(size=(500, 30)) + y[:, None])
    models = [
        PrivateAdditiveClassifier(0.3, bounds=bounds, random_state=seed).fit(x, y)
        for seed in range(3)
    ]
    used = {shape.features for model in models for shape in model.terms_}
    assert used == {(3,), (11,), (18,), (26,)}
    assert np.mean([model.score(x, y) for model in models]) > 0.7
    assert all(0.28 < model.epsilon_ <= 0.3 for model in models)
