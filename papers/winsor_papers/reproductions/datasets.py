"""Readers for local copies of public datasets, from a directory that the user names.

Nothing is downloaded and nothing is scaled: what to divide by is the user's public knowledge, not
the data's. Files are ``.npz`` without pickles; `DATASETS` lists the arrays each must hold.

>>> from winsor.core.contract import ConfigurationError
>>> try:
...     load("a9a", "/nowhere")
... except ConfigurationError as error:
...     print(str(error).split(". ")[0])
directory must hold a9a.npz
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winsor.core.checks import choice
from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Table:
    """A dataset split into training and test rows; unscaled."""

    name: str
    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    feature_names: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where a dataset comes from, and how its file becomes a `Table`."""

    file: str
    arrays: tuple[str, ...]
    about: str
    read: Callable[[str, Arrays], Table]


def _numbers(array: NDArray[np.generic]) -> Array:
    return np.ascontiguousarray(array, dtype=np.float64)


def _names(arrays: Arrays, key: str, count: int) -> tuple[str, ...]:
    if key in arrays:
        return tuple(str(name) for name in arrays[key])
    return tuple(f"feature {j + 1}" for j in range(count))


def _split(x: str, y: str, split: str, names: str) -> Callable[[str, Arrays], Table]:
    """A reader of one table with a column that says 0 (train) or 1 (test)."""

    def read(name: str, arrays: Arrays) -> Table:
        part = np.asarray(arrays[split])
        features, targets = _numbers(arrays[x]), _numbers(arrays[y])
        return Table(
            name,
            features[part == 0],
            targets[part == 0],
            features[part == 1],
            targets[part == 1],
            _names(arrays, names, features.shape[1]),
        )

    return read


def _ready(name: str, arrays: Arrays) -> Table:
    """A reader of a table that comes in two parts."""
    train = _numbers(arrays["x_train"])
    return Table(
        name,
        train,
        _numbers(arrays["y_train"]),
        _numbers(arrays["x_test"]),
        _numbers(arrays["y_test"]),
        _names(arrays, "feature_names", train.shape[1]),
    )


def _danish(name: str, arrays: Arrays) -> Table:
    """One variable, no features, no split: days since 1970 stand as the only column."""
    days = _numbers(arrays["days_since_1970"])[:, None]
    losses = _numbers(arrays["loss_mdkk"])
    return Table(name, days, losses, days[:0], losses[:0], ("days_since_1970",))


_TABLE = ("x", "y", "split", "feature_names")

DATASETS: dict[str, Source] = {
    "a9a": Source(
        "a9a.npz",
        ("x_train", "y_train", "x_test", "y_test"),
        "Adult census income (LIBSVM a9a): 123 binary features, y = 1 for income over 50K",
        _ready,
    ),
    "diabetes": Source(
        "pima_diabetes.npz",
        _TABLE,
        "Pima Indians Diabetes: 8 features, y = 1 for diabetes",
        _split("x", "y", "split", "feature_names"),
    ),
    "aus_injury_claims": Source(
        "aus_injury_claims.npz",
        _TABLE,
        "Australian settled injury claims (ausautoBI8999): 14 features, y = amount",
        _split("x", "y", "split", "feature_names"),
    ),
    "fremtpl2": Source(
        "fremtpl2.npz",
        ("claim_x", "claim_y", "claim_split", "claim_feature_names"),
        "French motor liability claim severity (freMTPL2sev): 46 features, y = euro",
        _split("claim_x", "claim_y", "claim_split", "claim_feature_names"),
    ),
    "bemtpl97": Source(
        "bemtpl97.npz",
        _TABLE,
        "Belgian motor liability 1997: 18 features, y = yearly amount, mostly 0",
        _split("x", "y", "split", "feature_names"),
    ),
    "eu_health_claims": Source(
        "eu_health_claims.npz",
        _TABLE,
        "European group health insurance: 7 features, y = sum of amounts",
        _split("x", "y", "split", "feature_names"),
    ),
    "danish_fire": Source(
        "danish_fire.npz",
        ("loss_mdkk", "days_since_1970"),
        "Danish fire losses above 1 million kroner",
        _danish,
    ),
    "california_housing": Source(
        "california_housing.npz",
        _TABLE,
        "California housing 1990: 13 features with some NaN, y = median house value",
        _split("x", "y", "split", "feature_names"),
    ),
}


def load(name: str, directory: str | os.PathLike[str]) -> Table:
    """The dataset ``name`` (a key of `DATASETS`) from its file in ``directory``."""
    source = DATASETS[choice("name", name, DATASETS)]
    path = Path(directory) / source.file
    if not path.is_file():
        raise ConfigurationError(
            f"directory must hold {source.file}. Got {os.fspath(directory)!r} instead, which has "
            f"no such file. Put there: {source.about}, as a NumPy .npz file with the arrays "
            f"{', '.join(source.arrays)}."
        )
    with np.load(path, allow_pickle=False) as archive:
        missing = [key for key in source.arrays if key not in archive]
        if missing:
            raise ConfigurationError(
                f"{source.file} must hold the arrays {', '.join(source.arrays)}. Got a file "
                f"without {', '.join(missing)} instead."
            )
        return source.read(name, {key: archive[key] for key in source.arrays})
