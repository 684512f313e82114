"""The figure additive.svg: one shape function at three budgets, beside the truth.

    python docs/additive_figure.py

A simulated table of 20,000 rows whose truth is known: the age of a driver (steep, then flat, then
rising) among four other features. Everything else, knots and ranges included, is learnt privately.
"""

from __future__ import annotations

import numpy as np
from built import write

from winsor.charts import Chart, Series
from winsor.charts.files import drawing
from winsor.tables import PrivateAdditiveRegressor

ROWS = 20_000


def truth(age: np.ndarray) -> np.ndarray:
    return 1.5 * np.exp(-(age - 18) / 6) + 0.0006 * np.maximum(age - 55, 0) ** 2


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    age = np.clip(18 + rng.gamma(2.5, 12, ROWS), 18, 95)
    power, years = rng.lognormal(4.3, 0.4, ROWS), rng.integers(0, 20, ROWS)
    town, fuel = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    mean = 7 + truth(age) + 0.3 * np.log(power) - 0.03 * years + 0.3 * town
    x = np.c_[age, power, years, town, fuel].astype(np.float64)
    return x, mean + 0.6 * rng.standard_t(4, ROWS)


def line(label: str, x: np.ndarray, y: np.ndarray, colour: int) -> Series:
    """Relative to the mean from 25 to 75: heights have no zero of their own."""
    middle = np.interp(np.linspace(25, 75, 101), x, y).mean()
    points = tuple(zip(x.tolist(), (y - middle).tolist(), strict=True))
    known = label == "truth"
    return Series(label, points, colour=colour, dashed=known, markers=not known)


def figure() -> Chart:
    x, y = table()
    ages = np.linspace(18, 85, 200)
    drawn = [line("truth", ages, truth(ages), 3)]
    for colour, epsilon in enumerate((0.3, 1.0, 3.0)):
        model = PrivateAdditiveRegressor(epsilon=epsilon, delta=1e-5, random_state=1).fit(x, y)
        shape = model.shape(0)
        drawn.append(line(f"epsilon {epsilon:g}", shape.knots[0], shape.heights[:, 0], colour))
    return Chart(
        key="shape",
        title="The same shape function at three budgets",
        x_label="age of the driver",
        y_label="added to the log amount",
        series=tuple(drawn),
        note="20,000 simulated rows; ranges, knots (dots) and heights are private",
    )


def files() -> dict[str, str]:
    return {"additive.svg": str(drawing(figure()))}


if __name__ == "__main__":
    write(files())
