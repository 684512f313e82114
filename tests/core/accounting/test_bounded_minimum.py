"""The minimiser visits the points that scipy's visits: certified numbers keep their digits."""

from __future__ import annotations

import math

import pytest
from scipy import optimize

from winsor.core.accounting.composition import minimum

FUNCTIONS = {
    "parabola": lambda x: (x - 0.3) ** 2,
    "at the left end": lambda x: x,
    "at the right end": lambda x: -x,
    "flat": lambda x: 1.0,
    "a kink": lambda x: abs(x - 1.7),
    "waves": lambda x: math.sin(5 * x) + 0.1 * x,
    "Renyi": lambda x: (math.exp(2 * x) + 11.5) / math.exp(x),
}


@pytest.mark.parametrize("bounds", [(-8.0, 8.0), (0.0, 1.0), (-3.0, 2.5), (1.0, 1.0)])
@pytest.mark.parametrize("tolerance", [0.02, 1e-7])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_points_in_the_same_order(name, tolerance, bounds):
    ours, theirs = [], []

    def seen(points):
        return lambda x: points.append(float(x)) or FUNCTIONS[name](float(x))

    found = minimum(seen(ours), *bounds, tolerance)
    expected = optimize.minimize_scalar(
        seen(theirs), bounds=bounds, method="bounded", options={"xatol": tolerance}
    )
    assert ours == theirs
    assert found == (float(expected.x), float(expected.fun))
