"""The four estimators and the scaler obey scikit-learn's conventions."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from winsor.linear import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateRidge,
    PrivateScaler,
)


@parametrize_with_checks(
    [
        PrivateLogisticRegression(),
        PrivateLinearRegression(),
        PrivateRidge(),
        PrivateHuberRegressor(),
        PrivateScaler(),
    ]
)
def test_check_estimator(estimator, check):
    check(estimator)
