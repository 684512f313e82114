"""Shape functions as released: what each feature adds to the score."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from winsor.charts import Chart, Series
from winsor.tables.additive.fitting import Fitted

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """A term of the model at its knots; linear between them, constant beyond.

    ``heights`` are in units of the target (log-odds or log means with a link). Their last axis is
    for the outputs (one, unless there are several classes), and their mean over the rows is zero,
    as far as masses are known.
    """

    name: str
    features: tuple[int, ...]
    knots: tuple[Array, ...] = field(repr=False)
    heights: Array = field(repr=False)
    masses: tuple[Array, ...] = field(repr=False)

    @property
    def importance(self) -> float:
        """Standard deviation of the term over the rows."""
        mass = self.masses[0]
        if len(self.masses) == 2:
            mass = np.outer(mass, self.masses[1])
        return math.sqrt(float((mass[..., None] * self.heights**2).sum()))


def shapes_of(fitted: Fitted, names: list[str], unit: float) -> list[Shape]:
    """Return every term, the most important first."""
    found = []
    for term, part in zip(fitted.design.terms, fitted.design.parts(fitted.parameters), strict=True):
        heights = unit * term.heights(part)
        mass = term.masses[0] if len(term.masses) == 1 else np.outer(*term.masses)
        axes = tuple(range(heights.ndim - 1))
        heights = heights - (mass[..., None] * heights).sum(axes)
        name = " x ".join(names[feature] for feature in term.features)
        found.append(Shape(name, term.features, term.knots, heights, term.masses))
    return sorted(found, key=lambda shape: -shape.importance)


def chart_of(shape: Shape) -> Chart:
    """Draw one line per output over the feature; for a pair, one line per knot of the second."""
    x = shape.knots[0].tolist()
    if len(shape.features) == 1:
        columns = [(f"class {k}", shape.heights[:, k]) for k in range(shape.heights.shape[1])]
        if len(columns) == 1:
            columns = [(shape.name, shape.heights[:, 0])]
    else:
        columns = [
            (f"at {knot:.4g}", shape.heights[:, place, 0])
            for place, knot in enumerate(shape.knots[1])
        ]
    series = tuple(
        Series(label, tuple(zip(x, values.tolist(), strict=True)), colour=colour, markers=True)
        for colour, (label, values) in enumerate(columns)
    )
    return Chart(
        key="shape",
        title=f"What {shape.name} adds to the score",
        x_label=shape.name.split(" x ")[0],
        y_label="score",
        series=series,
    )
