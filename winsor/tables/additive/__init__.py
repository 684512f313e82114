"""Private additive models: a shape function for every feature, in scikit-learn's style."""

from __future__ import annotations

from winsor.tables.additive.classifier import PrivateAdditiveClassifier
from winsor.tables.additive.regressor import PrivateAdditiveRegressor
from winsor.tables.additive.shapes import Shape

__all__ = ["PrivateAdditiveClassifier", "PrivateAdditiveRegressor", "Shape"]
