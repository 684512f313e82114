"""Private additive models: a shape function for every feature, in scikit-learn's style."""

from __future__ import annotations

from winsor.additive.classifier import PrivateAdditiveClassifier
from winsor.additive.regressor import PrivateAdditiveRegressor
from winsor.additive.shapes import Shape

__all__ = ["PrivateAdditiveClassifier", "PrivateAdditiveRegressor", "Shape"]
