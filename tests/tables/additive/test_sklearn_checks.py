"""The additive estimators obey scikit-learn's conventions."""

from __future__ import annotations

from functools import partial

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from winsor.tables import PrivateAdditiveClassifier, PrivateAdditiveRegressor

ESTIMATORS = [PrivateAdditiveRegressor(), PrivateAdditiveClassifier()]


def name_of(check) -> str:
    return (check.func if isinstance(check, partial) else check).__name__


CHECKS = [
    pytest.param(estimator, check, id=f"{type(estimator).__name__}-{number}-{name_of(check)}")
    for one in ESTIMATORS
    for number, (estimator, check) in enumerate(estimator_checks_generator(one))
    # Array-API namespaces are an opt-in of scikit-learn that NumPy-only estimators do not take.
    if name_of(check) != "check_array_api_input"
]


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_check_estimator(estimator, check):
    check(estimator)
