"""Private linear models in scikit-learn's style (papers 2 and 4)."""

from __future__ import annotations

from winsor.core.ledger.shared_budget import PrivacyBudget
from winsor.core.ledger.total import total_guarantee
from winsor.tables.linear.averaged import AveragedDescent
from winsor.tables.linear.flat import FlatDescent
from winsor.tables.linear.glm import PrivateGammaRegressor, PrivatePoissonRegressor
from winsor.tables.linear.iterative import Iterative
from winsor.tables.linear.logistic import PrivateLogisticRegression
from winsor.tables.linear.nonsmooth import PrivateLinearSVC, PrivateMedianRegressor
from winsor.tables.linear.regression import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateRidge,
)
from winsor.tables.linear.restarted import Restarted
from winsor.tables.linear.robust_gd import RobustGD
from winsor.tables.linear.ruled import Ruled
from winsor.tables.linear.scaler import PrivateScaler
from winsor.tables.linear.simple import Simple
from winsor.tables.linear.sufficient import SufficientStatistics
from winsor.tables.linear.whitened import Whitened

__all__ = [
    "AveragedDescent",
    "FlatDescent",
    "Iterative",
    "PrivacyBudget",
    "PrivateGammaRegressor",
    "PrivateHuberRegressor",
    "PrivateLinearRegression",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateMedianRegressor",
    "PrivatePoissonRegressor",
    "PrivateRidge",
    "PrivateScaler",
    "Restarted",
    "RobustGD",
    "Ruled",
    "Simple",
    "SufficientStatistics",
    "Whitened",
    "total_guarantee",
]
