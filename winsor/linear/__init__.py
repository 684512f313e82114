"""Private linear models in scikit-learn's style (papers 2 and 4)."""

from __future__ import annotations

from winsor.ledger.shared_budget import PrivacyBudget
from winsor.ledger.total import total_guarantee
from winsor.linear.averaged import AveragedDescent
from winsor.linear.flat import FlatDescent
from winsor.linear.glm import PrivateGammaRegressor, PrivatePoissonRegressor
from winsor.linear.iterative import Iterative
from winsor.linear.logistic import PrivateLogisticRegression
from winsor.linear.nonsmooth import PrivateLinearSVC, PrivateMedianRegressor
from winsor.linear.regression import (
    PrivateHuberRegressor,
    PrivateLinearRegression,
    PrivateRidge,
)
from winsor.linear.restarted import Restarted
from winsor.linear.robust_gd import RobustGD
from winsor.linear.ruled import Ruled
from winsor.linear.scaler import PrivateScaler
from winsor.linear.simple import Simple
from winsor.linear.sufficient import SufficientStatistics
from winsor.linear.whitened import Whitened

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
