"""What scikit-learn's users bring along: frames, sparse tables, pages, metadata."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
from scipy import sparse
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from winsor.tables import (
    PrivacyBudget,
    PrivateAdditiveRegressor,
    PrivateGammaRegressor,
    PrivateLogisticRegression,
    PrivatePoissonRegressor,
    PrivateRidge,
    PrivateScaler,
    total_guarantee,
)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    return x, x @ [1.0, 2.0]


def test_frames_sparse_tables_and_pages(table):
    x, y = table
    frame = pd.DataFrame(x, columns=["age", "income"])
    model = PrivateRidge(random_state=0).fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == ["age", "income"]
    assert np.allclose(model.predict(frame), PrivateRidge(random_state=0).fit(x, y).predict(x))
    assert "PrivateRidge" in model._repr_html_()
    labels = (y > 0).astype(int)
    classifier = PrivateLogisticRegression(random_state=0).fit(sparse.csr_array(x), labels)
    assert classifier.score(sparse.csr_array(x), labels) > 0.6
    assert np.allclose(
        classifier.decision_function(sparse.csr_array(x)), classifier.decision_function(x)
    )
    assert np.allclose(pickle.loads(pickle.dumps(model)).predict(frame), model.predict(frame))


def test_metadata_routing_passes_by(table):
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(PrivateScaler(random_state=0), PrivateRidge(random_state=0))
        assert np.isfinite(pipeline.fit(*table).predict(table[0])).all()


@pytest.mark.parametrize(
    "model",
    [
        PrivatePoissonRegressor(epsilon=5.0),
        PrivateGammaRegressor(epsilon=5.0),
        PrivateAdditiveRegressor(epsilon=5.0, loss="poisson"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_exposure_is_routed_through_a_search(model):
    """A pipeline in a search passes every fold its own rows of the exposure."""
    rng = np.random.default_rng(0)
    x, years = rng.uniform(-1, 1, size=(2000, 1)), rng.uniform(0.1, 5.0, size=2000)
    y = years * np.exp(x[:, 0]) * rng.gamma(20.0, 1 / 20.0, size=2000)
    model = model.set_params(random_state=0, budget=PrivacyBudget())
    with sklearn.config_context(enable_metadata_routing=True):
        asking = model.set_fit_request(exposure=True).set_predict_request(exposure=True)
        scaler = PrivateScaler(epsilon=5.0, random_state=0, budget=model.budget)
        pipeline = make_pipeline(scaler, asking)
        search = GridSearchCV(pipeline, {"privatescaler__low": [-2.0]}, cv=2, scoring=no_score)
        search.fit(x, y, exposure=years)
        means = search.best_estimator_.predict(x, exposure=years)
        assert np.corrcoef(means, y)[0, 1] > 0.8  # exposure is most of what there is
    assert len(model.budget) == 6
    assert total_guarantee(search).epsilon > 10.0


def no_score(*_):
    return 0.0


class ForeignFrame:
    """As much of another library's frame as scikit-learn asks for: `columns`, and an array."""

    def __init__(self, columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    @property
    def shape(self):
        return len(self), len(self._columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __array__(self, dtype=None, copy=None):
        return np.column_stack(list(self._columns.values())).astype(dtype or np.float64)


@pytest.mark.parametrize("kind", [PrivateRidge, PrivatePoissonRegressor, PrivateAdditiveRegressor])
def test_frames_of_other_libraries_are_arrays(table, kind):
    x, y = table[0], np.abs(table[1])
    columns = {"age": x[:, 0], "income": x[:, 1]}
    expected = kind(random_state=0).fit(x, y).predict(x)
    for frame in (ForeignFrame(columns), pa.table(columns)):
        assert np.array_equal(kind(random_state=0).fit(frame, y).predict(frame), expected)
