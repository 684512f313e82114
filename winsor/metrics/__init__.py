"""Private metrics: how good a model is on private rows, through the door, with an honest interval.

    found = winsor.metrics.measure(
        {"accuracy": Accuracy(), "auc": AUC()},
        targets=y, predictions=model.predict(X), scores=model.predict_proba(X)[:, 1], epsilon=0.5,
    )
    print(found["accuracy"], found.guarantee)

Every metric is a sum of bounded contributions, one per row; all that are asked for together leave
in one Gaussian release. An interval covers the value in the population the rows were drawn from:
it contains the noise of the release and the luck of the draw.
"""

from winsor.metrics.classes import Accuracy, ConfusionMatrix
from winsor.metrics.groups import ByGroup
from winsor.metrics.histograms import AUC, Calibration, Quantiles
from winsor.metrics.measuring import Measurement, event_of, measure
from winsor.metrics.metric import Columns, Estimate, Metric, Size
from winsor.metrics.moments import R2, ClippedLoss, DevianceExplained

__all__ = [
    "AUC",
    "R2",
    "Accuracy",
    "ByGroup",
    "Calibration",
    "ClippedLoss",
    "Columns",
    "ConfusionMatrix",
    "DevianceExplained",
    "Estimate",
    "Measurement",
    "Metric",
    "Quantiles",
    "Size",
    "event_of",
    "measure",
]
