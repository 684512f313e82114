"""Every estimator of `winsor.tables` obeys scikit-learn's conventions, and those of its own."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from winsor import tables
from winsor.core.contract import PrivacyLeakWarning
from winsor.tables.estimator import SEEDED, PrivateEstimator

KINDS = [
    kind
    for name in tables.__all__
    if inspect.isclass(kind := getattr(tables, name)) and issubclass(kind, PrivateEstimator)
]
"""Found, not listed: a new estimator is checked as soon as it is public."""

SHARED = {"epsilon", "delta", "relation", "random_state", "allow_large_delta", "budget"}


def name_of(check) -> str:
    return (check.func if isinstance(check, partial) else check).__name__


NOT_OURS = {
    # Array-API namespaces are an opt-in of scikit-learn that NumPy-only estimators do not take.
    "check_array_api_input",
    # Targets are private: refusing one that is missing would tell of its row.
    "check_supervised_y_no_nan",
}

CHECKS = [
    pytest.param(estimator, check, id=f"{kind.__name__}-{number}-{name_of(check)}")
    for kind in KINDS
    for number, (estimator, check) in enumerate(estimator_checks_generator(kind()))
    if name_of(check) not in NOT_OURS
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_check_estimator(estimator, check):
    check(estimator)


def test_all_estimators_are_found():
    assert len(KINDS) == 13


def fitted(kind, x=None, **options):
    x = np.random.default_rng(0).uniform(0.1, 1.0, size=(300, 2)) if x is None else x
    y = (x[:, 0] > 0.5).astype(int) + 1
    return kind(delta=1e-4, **options).fit(x, y)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fit_says_what_it_spent_and_whether_its_noise_is_secret(kind):
    assert set(kind().get_params()) >= SHARED
    budget = tables.PrivacyBudget()
    model = fitted(kind, epsilon=1.0, random_state=3, budget=budget)
    assert 0 < model.epsilon_ <= 1.0 and model.delta_ == model.guarantee_.delta == 1e-4
    assert SEEDED in model.guarantee_.conditions
    assert "n = 300 is public" in model.guarantee_.conditions
    assert [ledger for ledger, _ in budget.fits] == [model.ledger_]
    assert SEEDED not in fitted(kind, budget=budget).guarantee_.conditions


OF_NUMBERS = [kind for kind in KINDS if kind is not tables.PrivateEncoder]
"""Texts are copied before they are looked at, so their array is not known again."""


@pytest.mark.parametrize("kind", OF_NUMBERS, ids=lambda kind: kind.__name__)
def test_rows_that_were_fitted_before_are_warned_of_where_the_user_is(kind):
    x = np.random.default_rng(5).uniform(0.1, 1.0, size=(300, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        fitted(kind, x)
        with warnings.catch_warnings():  # equal values elsewhere: a guess is not answered
            warnings.filterwarnings("error", "these rows were in an earlier fit")
            fitted(kind, x.copy())
    with pytest.warns(PrivacyLeakWarning, match="earlier fit") as caught:
        fitted(kind, x)
    assert any(warning.filename == __file__ for warning in caught)


# ------------------------------------------------------------------------------------- what loads

WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, *rest):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Absent())
import numpy as np
from winsor import tables
for name in tables.__all__:
    getattr(tables, name)
x = np.random.default_rng(0).normal(size=(300, 2))
y = (x[:, 0] > 0).astype(int)
for method in ("whitened", "automatic", tables.Ruled("automatic")):
    try:
        print(tables.PrivateLogisticRegression(method=method).fit(x, y).epsilon_ <= 1.0)
    except ValueError as error:
        print(error)
"""


def output_of(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_tables_work_without_torch_and_rules_say_what_to_install():
    fitted_one, *refused = output_of(WITHOUT_TORCH)
    assert fitted_one == "True"
    assert len(refused) == 2 and all("pip install 'winsor[torch]'" in line for line in refused)


@pytest.mark.parametrize("name", ["clipped_mean", "private_categories"])
def test_a_statistic_loads_neither_torch_nor_estimators(name):
    loaded = output_of(f"from winsor.tables import {name}; import sys; print(*sys.modules)")[0]
    modules = set(loaded.split())
    assert not modules & {"torch", "sklearn", "winsor.tables.estimator", "winsor.charts"}
    own = {one for one in modules if one.startswith("winsor.") and ".core" not in one}
    assert len(own) <= 15  # beside the core
