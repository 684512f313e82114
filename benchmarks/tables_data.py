"""The tables of `tables.py`, each with ranges that anyone could have written down beforehand.

Ranges come from what a column means (an indicator is 0 or 1, a driver is between 18 and 100, months
of a study, degrees of longitude of a country), never from the rows. Every method gets the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes

Array = NDArray[np.float64]

FOLDER = Path(__file__).parent.parent.parent / "shared" / "data"


@dataclass(frozen=True)
class Table:
    """Train and test rows, public bounds (d, 2) of the features and of the target."""

    name: str
    x: Array
    y: Array
    x_test: Array
    y_test: Array
    bounds: Array
    target: tuple[float, float] | None
    """None for two classes, 0 and 1."""
    attributes: int
    """Numbers and categories before one-hot coding: scaled to [0, 1], a row is no longer than the
    square root of this."""

    @property
    def classes(self) -> bool:
        return self.target is None


def _split(
    name: str,
    x: Array,
    y: Array,
    test: Array,
    bounds: Array,
    target: tuple[float, float] | None,
    attributes: int | None = None,
) -> Table:
    chosen = np.asarray(test, dtype=bool)
    x = np.asarray(x, dtype=np.float64)
    y = np.asarray(y, dtype=np.float64)
    return Table(
        name,
        x[~chosen],
        y[~chosen],
        x[chosen],
        y[chosen],
        bounds,
        target,
        attributes or len(bounds),
    )


def _bounds(names: Array, numbers: dict[str, tuple[float, float]]) -> Array:
    """Of the columns in ``numbers``; every other one is an indicator."""
    return np.array([numbers.get(str(name), (0.0, 1.0)) for name in names])


def aus_injury() -> Table:
    data = np.load(FOLDER / "aus_injury_claims.npz")
    numbers = {
        "OpTime": (0.0, 100.0),
        "InjNb": (1.0, 6.0),
        "AccMth": (1.0, 120.0),  # ten years of accidents
        "ReportDelay": (0.0, 120.0),
        "SettleDelay": (0.0, 120.0),
    }
    bounds = _bounds(data["feature_names"], numbers)
    target = np.log1p(data["y"])
    return _split("aus_injury", data["x"], target, data["split"] == 1, bounds, (0.0, 16.0), 7)


def eu_health() -> Table:
    data = np.load(FOLDER / "eu_health_claims.npz")
    numbers = {"policy_years": (0.0, 10.0), "age_at_inception": (0.0, 100.0)}
    bounds = _bounds(data["feature_names"], numbers)
    kept = data["split"] != 2
    target = np.log1p(data["y"])[kept]
    test = data["split"][kept] == 1
    return _split("eu_health", data["x"][kept], target, test, bounds, (0.0, 11.0), 4)


def fremtpl2() -> Table:
    data = np.load(FOLDER / "fremtpl2.npz")
    numbers = {
        "VehPower": (0.0, 20.0),
        "VehAge": (0.0, 100.0),
        "DrivAge": (18.0, 100.0),
        "BonusMalus": (50.0, 350.0),  # the French scale
        "Density": (0.0, 30_000.0),
    }
    bounds = _bounds(data["claim_feature_names"], numbers)
    target = np.log1p(data["claim_y"])
    return _split(
        "fremtpl2", data["claim_x"], target, data["claim_split"] == 1, bounds, (0.0, 16.0)
    )


def bemtpl97() -> Table:
    """Severity: the log of positive amounts."""
    data = np.load(FOLDER / "bemtpl97.npz")
    kept = data["y"] > 0
    numbers = {
        "ageph": (18.0, 100.0),
        "bm": (0.0, 22.0),
        "power": (0.0, 300.0),
        "agec": (0.0, 50.0),
        "long": (2.5, 6.5),
        "lat": (49.4, 51.6),
    }
    bounds = _bounds(data["feature_names"], numbers)
    target = np.log1p(data["y"])[kept]
    test = data["split"][kept] == 1
    return _split("bemtpl97", data["x"][kept], target, test, bounds, (0.0, 14.0), 12)


def california() -> Table:
    data = np.load(FOLDER / "california_housing.npz")
    numbers = {
        "longitude": (-125.0, -114.0),
        "latitude": (32.0, 42.0),
        "housing_median_age": (0.0, 60.0),
        "total_rooms": (0.0, 40_000.0),
        "total_bedrooms": (0.0, 8_000.0),
        "population": (0.0, 40_000.0),
        "households": (0.0, 8_000.0),
        "median_income": (0.0, 16.0),
    }
    x = np.nan_to_num(data["x"].astype(np.float64), nan=500.0)  # a public value for bedrooms
    bounds = _bounds(data["feature_names"], numbers)
    return _split("california", x, data["y"] / 1e5, data["split"] == 1, bounds, (0.0, 5.0), 9)


def a9a() -> Table:
    data = np.load(FOLDER / "a9a.npz")
    parts = [data[name].astype(np.float64) for name in ("x_train", "y_train", "x_test", "y_test")]
    return Table("a9a", *parts, np.tile([0.0, 1.0], (123, 1)), None, 14)


def pima() -> Table:
    data = np.load(FOLDER / "pima_diabetes.npz")
    highs = (20.0, 300.0, 200.0, 100.0, 1000.0, 80.0, 3.0, 100.0)
    bounds = np.array([(0.0, high) for high in highs])
    return _split("pima", data["x"], data["y"], data["split"] == 1, bounds, None)


def _fifth(n: int) -> Array:
    """A test fifth, the same for everyone."""
    return np.random.default_rng(0).random(n) < 0.2


def breast_cancer() -> Table:
    data = load_breast_cancer()
    sizes = {"radius": 40, "texture": 60, "perimeter": 300, "area": 5000}  # pixels of a cell
    numbers = {name: (0.0, float(high)) for name, high in sizes.items()}
    names = [name.removeprefix("mean ").removeprefix("worst ") for name in data.feature_names]
    bounds = _bounds(np.array(names), numbers)
    errors = {"radius error": 5, "texture error": 6, "perimeter error": 30, "area error": 600}
    for place, name in enumerate(names):
        if name in errors:
            bounds[place] = (0.0, errors[name])
    return _split("breast_cancer", data.data, data.target, _fifth(len(data.data)), bounds, None)


def diabetes() -> Table:
    data = load_diabetes(scaled=False)
    bounds = np.array(
        [
            *[(18, 90), (1, 2), (15, 50), (50, 150), (80, 350)],  # age, sex, bmi, pressure, tc
            *[(30, 250), (15, 120), (1, 12), (3, 7), (50, 150)],  # ldl, hdl, tch, ltg, glucose
        ],
        dtype=np.float64,
    )
    return _split("diabetes", data.data, data.target, _fifth(len(data.data)), bounds, (0.0, 400.0))


def synthetic_linear(n: int = 20_000, d: int = 10) -> Table:
    """A linear truth with Pareto noise whose variance just exists; R2 against the known mean."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-2, 3, size=d)
    scale = x.std(axis=0)
    truth = (x / scale) @ np.linspace(1, 0.1, d)
    y = truth + rng.pareto(2.2, size=n) - 1 / 1.2
    bounds = np.stack([-4 * scale, 4 * scale], axis=1)
    test = _fifth(n)
    table = _split("synthetic_linear", x, y, test, bounds, (-10.0, 20.0))
    return Table(
        table.name, table.x, table.y, table.x_test, truth[test], bounds, table.target, len(bounds)
    )


def synthetic_additive(n: int = 20_000) -> Table:
    """Waves, steps and a lognormal feature under Student noise; R2 against the known mean."""
    rng = np.random.default_rng(2)
    x = np.column_stack([rng.random((n, 4)), rng.lognormal(3, 1, size=n)])
    truth = np.sin(6 * x[:, 0]) + (x[:, 1] > 0.4) + 2 * (x[:, 2] - 0.5) ** 2 + 0.5 * np.log(x[:, 4])
    y = truth + rng.standard_t(3, size=n)
    bounds = np.array([(0.0, 1.0)] * 4 + [(0.0, 2000.0)])
    test = _fifth(n)
    table = _split("synthetic_additive", x, y, test, bounds, (-10.0, 15.0))
    return Table(
        table.name, table.x, table.y, table.x_test, truth[test], bounds, table.target, len(bounds)
    )


TABLES: dict[str, Callable[[], Table]] = {
    "aus_injury": aus_injury,
    "eu_health": eu_health,
    "fremtpl2": fremtpl2,
    "bemtpl97": bemtpl97,
    "california": california,
    "a9a": a9a,
    "pima": pima,
    "breast_cancer": breast_cancer,
    "diabetes": diabetes,
    "synthetic_linear": synthetic_linear,
    "synthetic_additive": synthetic_additive,
}
