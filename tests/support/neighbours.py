"""Differential runs: tables that differ in one row, under equal released values, compared whole.

A use is run on ordinary rows first, and every released value is kept. Then it is run on a table
with one hostile row: whatever it releases is replaced by what was kept, so that all that a stranger
may learn is the same in both. Everything observable must be the same, too: attributes with their
types, shapes and values, warnings, exceptions and their words, number, order and shapes of
releases, printed output. What a guarantee names as a condition (the labels that were read off y)
may differ.

    python -m tests.support.neighbours            a seeded choice
    python -m tests.support.neighbours --all      every use with every neighbour

Uses are found in the public namespaces: a new estimator or metric is tried as soon as it is public.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from types import FunctionType, MethodType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.utils import get_tags

from winsor import features, metrics, tables, tuning
from winsor.core.ledger.ledger import Ledger
from winsor.core.prepaid import Receipt
from winsor.tables import design, partitions, surroundings
from winsor.tables.estimator import PrivateEstimator
from winsor.tables.linear.base import METHODS
from winsor.tables.statistics import all_statistics, release

N, D, ROW = 64, 3, 7
KEY = bytes(range(32))
TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "random_state": KEY}


class Broken:
    """A cell whose conversion fails in a way of its own."""

    def __float__(self) -> float:
        raise RuntimeError("no number")


CELLS: dict[str, Any] = {
    "None": None, "NaN": float("nan"), "pd.NA": pd.NA, "NaT": pd.NaT,
    "NumPy's NaT": np.datetime64("NaT"), "inf": float("inf"), "-inf": float("-inf"),
    "2^63": 2**63, "2^64 + 1": 2**64 + 1, "10^400": 10**400, "-10^5000": -(10**5000),
    "1e308": 1e308, "-1e308": -1e308, "1e160": 1e160, "denormal": 5e-324, "negative zero": -0.0,
    "zero": 0.0, "one": 1.0, "half": 0.5, "-3": -3, "bool": True, "NumPy's bool": np.bool_(False),
    "float32": np.float32(0.1), "longdouble": np.longdouble("1e400"), "int8": np.int8(-7),
    "uint64": np.uint64(2**64 - 1), "word": "red", "empty": "", "number in a string": "1.5",
    "nan in a string": "nan", "umlaut": "\u00fc\u0130\U0001f600", "half a pair": "\ud800",
    "NUL": "a\0", "long": "x" * 100_000, "digits": "9" * 5000, "bytes": b"\xff",
    "Decimal": Decimal("1.5"), "sNaN": Decimal("sNaN"), "1E+999999": Decimal("1E+999999"),
    "Fraction": Fraction(1, 3), "date": date(2020, 1, 1), "datetime": datetime(2020, 1, 1),
    "datetime64": np.datetime64("2020-01-01"), "timedelta": timedelta(1),
    "timedelta64": np.timedelta64(3, "D"), "complex": 1 + 2j, "list": [1, 2], "list of one": [3.0],
    "empty tuple": (), "array": np.arange(2.0), "0-d array": np.array(2.0), "dict": {"a": 1},
    "set": {1}, "object": object(), "broken": Broken(), "interval": pd.Interval(0, 1),
}  # fmt: skip
FLOATS = {name: float(value) for name, value in CELLS.items()
          if isinstance(value, float) or name in ("2^63", "one", "-3", "int8")}  # fmt: skip
SPARSE = ("more nonzeros", "an explicit zero", "a duplicated entry", "an empty row", "NaN", "1e308")


class Neighbour(NamedTuple):
    """A table (or a column) in its container, and its neighbour, which differs in one row."""

    container: str
    name: str
    ordinary: np.ndarray
    change: Any

    @property
    def table(self) -> Any:
        """The ordinary table."""
        return made(self.container, self.ordinary, ORDINARY)

    @property
    def other(self) -> Any:
        """The one with another row."""
        return made(self.container, self.ordinary, self.change)


def rows() -> np.ndarray:
    """Return ordinary features: whole numbers, so that they are categories, too."""
    return np.random.default_rng(0).integers(-2, 3, size=(N, D)).astype(float)


def replaced(container: str, x: np.ndarray, cell: Any) -> Any:
    """Return a table (or a column) in its container, with ``cell`` in one place or all of a row."""
    whole = isinstance(cell, Row)
    listed = x.tolist()
    if whole:
        listed[ROW] = cell.row
    elif cell is not ORDINARY and x.ndim == 2:
        listed[ROW][1] = cell
    elif cell is not ORDINARY:
        listed[ROW] = cell
    if container == "list":
        return listed
    if container == "float":
        return np.array(listed, dtype=float)
    found = np.empty(x.shape, dtype=object)
    for place in np.ndindex(x.shape):
        found[place] = listed[place[0]][place[1]] if x.ndim == 2 else listed[place[0]]
    if container == "object":
        return found
    if container == "inferred by pandas":  # whole numbers, unless the cell makes them others
        plain = [[_whole(c) for c in r] if x.ndim == 2 else _whole(r) for r in listed]
        return pd.DataFrame(plain) if x.ndim == 2 else pd.Series(plain)
    frame = pd.DataFrame({f"c{j}": pd.Series(list(c), dtype=object) for j, c in enumerate(found.T)}
                         ) if x.ndim == 2 else pd.Series(list(found), dtype=object)  # fmt: skip
    return frame if container == "objects of pandas" else frame.astype(container)


def _whole(cell: Any) -> Any:
    return int(cell) if type(cell) is float and cell.is_integer() else cell


class Row(NamedTuple):
    """A row in place of another."""

    row: Any


ORDINARY = object()


def changes(container: str, x: np.ndarray) -> dict[str, Any]:
    """Return what one row may become in this container."""
    if container == "sparse":
        return {name: name for name in SPARSE}
    if container in ("float", "float32"):
        found: dict[str, Any] = dict(FLOATS)
    elif container == "Float64":
        found = {**FLOATS, "pd.NA": pd.NA, "None": None}
    elif container == "category":
        found = {"None": None, "another": 77.0, "duplicate": x[0, 1] if x.ndim == 2 else x[0]}
    else:
        found = dict(CELLS)
        if container == "inferred by pandas":
            del found["complex"]  # a declared type that is refused
    if x.ndim == 2:
        found["a duplicated row"] = Row(x[0].tolist())
        found["a row of zeros"] = Row([0.0] * D)
        if container not in ("category",):
            found["a row of NaN"] = Row([float("nan")] * D)
            found["a row of 1e308"] = Row([1e308] * D)
        if container == "list":
            found |= {"a short row": Row([1.0]), "a long row": Row([1.0] * 9), "no row": Row(3.0)}
            found |= {"a row of None": Row([None] * D), "a row of words": Row(["a"] * D)}
    return found


def sparse_table(x: np.ndarray, change: Any = ORDINARY) -> Any:
    """Return a table that is nearly empty, changed in one row."""
    kept = np.where(np.arange(N)[:, None] % 16 == 1, x, 0.0)
    kept[1, 0] = 1.0
    if change == "more nonzeros":
        kept[ROW] = 1.0
    if change == "an empty row":
        kept[1] = 0.0
    if change in ("NaN", "1e308"):
        kept[ROW, 1] = float(change)
    table = sparse.coo_array(kept)
    place = {"an explicit zero": (ROW, 1, 0.0), "a duplicated entry": (1, 0, 1.0)}.get(change)
    if place is None:
        return sparse.csr_array(table)
    data = np.append(table.data, place[2])
    at = np.append(table.coords[0], place[0]), np.append(table.coords[1], place[1])
    if change == "a duplicated entry":
        data[0] -= 1.0 if (at[0][0], at[1][0]) == (1, 0) else 0.0
    pointers = np.concatenate([[0], np.cumsum(np.bincount(at[0], minlength=N))])
    order = np.argsort(at[0], kind="stable")
    return sparse.csr_array((data[order], at[1][order], pointers), shape=(N, D))


def made(container: str, x: np.ndarray, change: Any) -> Any:
    """Return a table in its container, changed in one row."""
    return sparse_table(x, change) if container == "sparse" else replaced(container, x, change)


# ------------------------------------------------------------------------------------- observing


class Replay:
    """Keeps what is released in a first run, and puts it in place of what is in a second one."""

    def __init__(self, kept: list[np.ndarray] | None = None) -> None:
        self.place = None if kept is None else 0
        self.kept: list[np.ndarray] = [] if kept is None else kept
        self.shapes: list[tuple[Any, ...]] = []

    def __call__(self, receipt: Receipt, value: np.ndarray) -> np.ndarray:
        """Release a value."""
        found = RELEASE(receipt, value)
        if self.place is None:
            self.kept.append(found.copy())
        elif self.place < len(self.kept) and self.kept[self.place].shape == found.shape:
            found[...] = self.kept[self.place]
        self.place = None if self.place is None else self.place + 1
        self.shapes.append((found.shape, found.dtype.str, receipt.std, receipt.first))
        return found


RELEASE = Receipt.release


def seen(value: Any, depth: int = 0, met: tuple[int, ...] = ()) -> Any:
    """Return everything about a value that a stranger could compare."""
    if depth > 12 or id(value) in met:
        return type(value).__name__
    met = (*met, id(value))

    def inside(one: Any) -> Any:
        return seen(one, depth + 1, met)

    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return ("objects", value.shape, [inside(one) for one in value.ravel().tolist()])
        return ("array", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, dict):
        return {repr(inside(name)): inside(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return (type(value).__name__, [inside(one) for one in value])
    if isinstance(value, Ledger):
        return ("ledger", repr(value.config), len(value), repr(value.history()))
    if value is None or isinstance(value, str | bytes | int | float | complex | type | np.generic):
        return (type(value).__name__, repr(value))
    if isinstance(value, FunctionType | MethodType) or (callable(value) and not vars_of(value)):
        return getattr(value, "__qualname__", type(value).__name__)
    return (type(value).__qualname__, {name: inside(one) for name, one in vars_of(value).items()})


def vars_of(value: Any) -> dict[str, Any]:
    """Return what an object holds."""
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                held[name] = getattr(value, name)
    return held


def observed(use: Callable[[Any], Any], given: Any, replay: Replay) -> dict[str, Any]:
    """Run a use, and return what can be seen of it."""
    surroundings._SEEN.clear()
    printed = io.StringIO()
    with (
        warnings.catch_warnings(record=True) as caught,
        mock.patch.object(Receipt, "release", lambda receipt, value: replay(receipt, value)),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        warnings.simplefilter("always")
        try:
            result = seen(use(given))
            raised = None
        except Exception as error:
            result, raised = None, (type(error).__name__, str(error))
    return {
        "raised": raised,
        "result": result,
        "warnings": [(each.category.__name__, str(each.message)) for each in caught],
        "releases": replay.shapes,
        "printed": printed.getvalue(),
    }


BEFORE: dict[tuple[str, str], tuple[dict[str, Any], list[np.ndarray]]] = {}
"""What was seen of ordinary rows, by use and container."""


def differences(use: Use, pair: Neighbour) -> list[str]:
    """Return what can be seen of which of the two tables was used."""
    kept = BEFORE.get((use.name, pair.container))
    if kept is None:
        replay = Replay()
        kept = observed(use.run, pair.table, replay), replay.kept
        BEFORE[use.name, pair.container] = kept
    first, replay = kept[0], Replay(kept[1])
    second = observed(use.run, pair.other, replay)
    if first["raised"] or not replay.kept:
        return [f"ordinary rows are refused, or nothing is released: {first['raised']}"]
    return [
        f"{name}: {at_first_difference(first[name], second[name])}"
        for name in first
        if first[name] != second[name] and repr(first[name]) != repr(second[name])
    ]


def at_first_difference(one: Any, two: Any, where: str = "") -> str:
    """Return where two observations differ, and how."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(one, dict) and isinstance(two, dict) and set(one) == set(two):
        pairs = [(name, one[name], two[name]) for name in one]
    elif type(one) is type(two) and isinstance(one, list | tuple) and len(one) == len(two):
        pairs = [(place, *both) for place, both in enumerate(zip(one, two, strict=True))]
    for name, left, right in pairs:
        if repr(left) != repr(right):
            return at_first_difference(left, right, f"{where}.{name}")
    return f"{where} {str(one)[:160]} | {str(two)[:160]}"


# ------------------------------------------------------------------------------------------ uses


class Use(NamedTuple):
    """A use of one public name: what it does with a table, and which tables it takes."""

    name: str
    run: Callable[[Any], Any]
    containers: tuple[str, ...]
    ordinary: np.ndarray
    reads_labels: bool = False

    def in_few(self) -> Use:
        """Return the use with the containers that hold most; reading is the same for others."""
        kept = tuple(each for each in self.containers if each in ("list", "float", "sparse"))
        return self._replace(containers=kept)


X = rows()
AMOUNTS = np.abs(X[:, 0]) + 1.0
LABELS = (X[:, 0] > 0).astype(float)
PUBLIC = np.random.default_rng(1).integers(-2, 3, size=(9, D)).astype(float)
NUMBERS = ("list", "object", "float", "objects of pandas", "Float64", "inferred by pandas")
TABLES = (*NUMBERS, "sparse")
KINDS = {
    name: kind
    for name in tables.__all__
    if inspect.isclass(kind := getattr(tables, name)) and issubclass(kind, PrivateEstimator)
}
RESTARTED = {"clip": 1.0, "batch_size": 8.0, "learning_rate": 0.1, "steps": 3, "runs": 2}
BY_HAND: dict[str, dict[str, Any]] = {
    "restarted": RESTARTED,
    "flat": {"steps": 4},
    "averaged": {"steps": 4, "clip": 1.0, "batch_size": 8.0, "learning_rate": 0.1},
    "simple": {"steps": 4, "clip": 1.0, "learning_rate": 0.1},
    "iterative": {"steps": 3, "groups": 4, "clip": 1.0, "learning_rate": 0.1},
    "robust_gd": {"steps": 4, "scale": 1.0, "learning_rate": 0.1},
}
BY_THEOREM: dict[str, dict[str, Any]] = {
    "restarted": RESTARTED,
    "flat": {"steps": 4},
    "averaged": {"steps": 4},
    "simple": {"steps": 4},
    "iterative": {"steps": 3, "groups": 4},
    "robust_gd": {"steps": 4},
}
SQUARED = ("PrivateRidge", "PrivateLinearRegression")


def fitted(model: Any, x: Any, y: Any, **more: Any) -> Any:
    """Return a fitted model with what it says of public rows."""
    model.fit(x, y, **more)
    say = next(getattr(model, name) for name in ("predict", "transform") if hasattr(model, name))
    return model, say(PUBLIC)


def kept_sparse(model: Any, x: Any, y: Any) -> Any:
    """Return a model fitted as if the table were too wide to be kept dense."""
    with mock.patch.object(design, "_DENSE_NUMBERS", 0):
        return fitted(model, x, y)


def estimator_uses() -> Iterator[Use]:
    """Return uses of every estimator: neighbours in the table, and in the target."""
    for name, kind in KINDS.items():
        options = [("", {})]
        if "method" in kind().get_params():
            given = BY_THEOREM if name == "PrivateLogisticRegression" else BY_HAND
            options = [
                (f" by {method}", {"method": METHODS[method](**given.get(method, {}))})
                for method in METHODS
                if method != "suffstats" or name in SQUARED
            ]
        for label, more in options:
            if "feature_bound" in kind().get_params():
                more |= {"feature_bound": 3.0}
            few = label not in ("", " by whitened", " by flat")
            make = lambda kind=kind, more=more: kind(**TERMS, **more)  # noqa: E731
            yield from (use.in_few() if few else use for use in uses_of(name + label, make))


def uses_of(name: str, make: Callable[[], Any]) -> Iterator[Use]:
    """Return uses of one estimator with one choice of settings."""
    model, labelled = make(), is_classifier(make())
    y = LABELS if labelled else AMOUNTS
    tags = get_tags(model)
    containers = TABLES if tags.input_tags.sparse else NUMBERS
    if tags.input_tags.categorical:
        containers = (*NUMBERS, "category")
    yield Use(name, lambda x: fitted(make(), x, y), containers, X)
    if tags.input_tags.sparse and "suffstats" not in name:  # which refuses such a shape
        yield Use(f"{name}, wide", lambda x: kept_sparse(make(), x, y), ("sparse",), X)
    if not tags.target_tags.required:
        return
    of_target = NUMBERS
    yield Use(f"{name}, y", lambda t: fitted(make(), X, t), of_target, y, labelled)
    if labelled:
        known = {"classes": [0.0, 1.0]}
        yield Use(f"{name}, y of classes", lambda t: fitted(make(), X, t, **known), of_target, y)
    if hasattr(model, "partial_fit") and "flat" in name:
        known = {"classes": [0.0, 1.0]} if labelled else {}
        yield Use(f"{name}, partial_fit", lambda t: make().partial_fit(X, t, **known), of_target, y)
    if "exposure" in inspect.signature(model.fit).parameters:
        more = {"loss": "poisson"} if "loss" in model.get_params() else {}
        yield Use(
            f"{name}, exposure",
            lambda t: make().set_params(**more).fit(X, AMOUNTS, exposure=t),
            of_target,
            AMOUNTS,
        )


def statistic_uses() -> Iterator[Use]:
    """Return uses of the statistics of `winsor.tables`."""
    radius = tables.PrivateRadius(0.1, 10.0)
    person = np.arange(N) // 2
    calls: dict[str, Callable[[Any], Any]] = {
        "clipped_mean": lambda x: tables.clipped_mean(x, radius=3.0, **TERMS),
        "clipped_mean, radius": lambda x: tables.clipped_mean(x, radius=radius, **TERMS),
        "clipped_mean, unit": lambda x: tables.clipped_mean(x, radius=3.0, unit=person, **TERMS),
        "averaged_mean": lambda x: tables.averaged_mean(x, clip=3.0, **TERMS),
        "averaged_mean, batch": lambda x: tables.averaged_mean(x, clip=3.0, batch_size=8, **TERMS),
        "iterative_mean": lambda x: tables.iterative_mean(x, radius=3.0, groups=4, **TERMS),
        "winsorised_mean": lambda x: tables.winsorised_mean(x, **TERMS),
        "describe": lambda x: tables.describe(x, **TERMS),
        "private_bins": lambda x: tables.private_bins(x, bins=4, **TERMS),
    }
    for name, call in calls.items():
        yield Use(name, call, NUMBERS, X)
        if name != "private_bins":
            yield Use(f"{name}, column", call, NUMBERS, AMOUNTS)
    for name in ("winsorised_mean", "describe"):
        call = getattr(tables, name)
        yield Use(
            f"{name}, by",
            lambda by, call=call: call(AMOUNTS, by=by, **TERMS),
            NUMBERS,
            LABELS,
            True,
        )
    categories = (*NUMBERS, "category")
    yield Use("private_categories", lambda x: tables.private_categories(x, **TERMS), categories, X)
    for name, examples in all_statistics().items():
        for each in examples:
            table = np.tile(X[:, :1], each.columns)
            yield Use(name, lambda x, each=each: release(each, x, **TERMS), NUMBERS, table)


def partition_uses() -> Iterator[Use]:
    """Return uses of `winsor.tables.partitions`."""

    def parts(x: Any) -> partitions.Partitions:
        halves = (x.iloc[:20], x.iloc[20:]) if hasattr(x, "iloc") else (x[:20], x[20:])
        return partitions.Partitions.of_loaders([lambda h=h: h for h in halves], columns=D)

    def judged(table: np.ndarray) -> dict[str, Any]:
        return {"targets": table[:, 0], "predictions": table[:, 1], "losses": table[:, 2]}

    both = {"a": metrics.Accuracy(), "b": metrics.ClippedLoss(1.0)}
    calls: dict[str, Callable[[Any], Any]] = {
        "clipped_mean": lambda x: partitions.clipped_mean(parts(x), radius=3.0, **TERMS),
        "quantiles": lambda x: partitions.quantiles(parts(x), [0.5], **TERMS),
        "second_moments": lambda x: partitions.second_moments(parts(x), bound=3.0, **TERMS),
        "measure": lambda x: partitions.measure(both, parts(x), judged, **TERMS),
        "fit_scaler": lambda x: partitions.fit_scaler(tables.PrivateScaler(**TERMS), parts(x)),
        "fit_ridge": lambda x: partitions.fit_ridge(
            tables.PrivateRidge(method="suffstats", **TERMS), parts(x)
        ),
        "fit_additive": lambda x: partitions.fit_additive(
            tables.PrivateAdditiveClassifier(**TERMS), parts(x), classes=[-2, -1, 0, 1, 2]
        ),
    }
    for name, call in calls.items():
        use = Use(f"partitions.{name}", call, NUMBERS, X)
        yield use.in_few() if name == "fit_additive" else use


METRICS: dict[str, metrics.Metric] = {
    "AUC": metrics.AUC(bins=4),
    "Accuracy": metrics.Accuracy(),
    "ByGroup": metrics.ByGroup(metrics.Accuracy(), [0, 1]),
    "Calibration": metrics.Calibration(bins=4),
    "ClippedLoss": metrics.ClippedLoss(2.0),
    "ConfusionMatrix": metrics.ConfusionMatrix([0, 1]),
    "DevianceExplained": metrics.DevianceExplained([0, 1]),
    "Quantiles": metrics.Quantiles([0.5], -2.0, 2.0, bins=4),
    "R2": metrics.R2(-2.0, 2.0),
}


def metric_uses() -> Iterator[Use]:
    """Return uses of every metric, with a neighbour in each of its columns."""
    columns = dict.fromkeys(("targets", "predictions", "scores", "losses", "groups"), LABELS)
    for name, metric in METRICS.items():
        for own in columns:
            yield Use(
                f"metrics.{name}, {own}",
                lambda t, own=own, metric=metric: metrics.measure(
                    metric, **(columns | {own: t}), **TERMS
                ),
                (*NUMBERS, "category") if own in ("targets", "predictions", "groups") else NUMBERS,
                LABELS,
            )


def feature_uses() -> Iterator[Use]:
    """Return uses of the transforms of tensors."""
    terms = {"epsilon": 1.0, "delta": 1e-4, "seed": KEY}
    shapes = {"PrivateNorm": (N, D), "PrivateWhitening": (N, D), "PrivateAxes": (N, D, 1)}
    for name, shape in shapes.items():
        kind = getattr(features, name)
        yield Use(
            f"features.{name}",
            lambda x, kind=kind, shape=shape: kind(**terms).fit(torch.tensor(x).view(shape)),
            ("float",),
            X,
        )


def search_uses() -> Iterator[Use]:
    """Return uses of the searches: with a class of which one row is left out, too."""

    def search(model: Any, x: Any, y: Any, **more: Any) -> Any:
        found = tuning.PrivateRandomizedSearchCV(
            model, {"alpha": [0.1, 1.0]}, n_iter=2, score_std=0.2, random_state=KEY,
            epsilon=3.0, delta=1e-4, **more,
        )  # fmt: skip
        return found.fit(x, y)

    model = tables.PrivateLogisticRegression(method=METHODS["flat"](steps=2))
    ridge = tables.PrivateRidge(method=METHODS["flat"](steps=2))
    name = "PrivateRandomizedSearchCV"
    yield Use(name, lambda x: search(model, x, LABELS), TABLES, X)
    yield Use(f"{name}, y", lambda y: search(model, X, y), NUMBERS, LABELS, True)
    rare = np.where(np.arange(N) < 2, 2.0, LABELS)
    yield Use(f"{name}, a rare class", lambda y: search(model, X, y), ("float",), rare, True)
    ranges = {"target_range": (0.0, 5.0)}
    yield Use(f"{name}, amounts", lambda y: search(ridge, X, y, **ranges), NUMBERS, AMOUNTS)


WITHOUT_ROWS = {
    # options, results and parts of others
    "tables": """AveragedDescent BinEdges Bins Description Distribution FlatDescent FoundCategories
        Iterative MeanEstimate PrivacyBudget PrivateRadius Restarted RobustGD Ruled Shape Simple
        SufficientStatistics Whitened WinsorisedMean Zoom additive as_bounds codes linear means
        partitions ranges total_guarantee""",
    "metrics": "Columns Estimate Measurement Metric Size event_of",
    # of public rows, or of each row alone
    "features": """MirrorShared Pretrained RandomFeatures Scattering frozen_features
        oriented_gradients scattering_features""",
    # what a trial does with rows is the caller's
    "tuning": """PRUNED Choice Integer Job LogUniform PrivateScore Pruning Recipe Recommendation
        Space TrialRow TuningResult Uniform importance recipe recommend tune""",
    "partitions": "ColumnQuantiles Moments Partitions",
}
HOMES = {"tables": tables, "metrics": metrics, "features": features, "tuning": tuning,
         "partitions": partitions}  # fmt: skip


def all_uses() -> list[Use]:
    """Return every use of every public name."""
    makers = (estimator_uses, statistic_uses, partition_uses, metric_uses, feature_uses,
              search_uses)  # fmt: skip
    return [use for make in makers for use in make()]


def untried() -> set[str]:
    """Return public names that are neither used here nor said to take no private rows."""
    tried = " ".join(use.name for use in all_uses()).replace(",", " ").replace(".", " ").split()
    found = set()
    for home, module in HOMES.items():
        known = {*tried, *WITHOUT_ROWS[home].split()}
        found |= {f"{home}.{name}" for name in module.__all__ if name not in known}
    return found


def labels_of(column: Any) -> set[Any]:
    """Return the labels that a classifier may name as public: what is no label is none."""
    from winsor.planning.cells import as_keys, read_labels

    try:
        return set(read_labels(as_keys(column))[0].tolist())
    except ValueError:
        return {"of two kinds"}


def all_cases() -> Iterator[tuple[Use, Neighbour]]:
    """Return every use with every neighbour, but those whose labels are a named condition."""
    for use in all_uses():
        for container in use.containers:
            for name, change in changes(container, use.ordinary).items():
                pair = Neighbour(container, name, use.ordinary, change)
                if not use.reads_labels or labels_of(pair.table) == labels_of(pair.other):
                    yield use, pair


def chosen(count: int, seed: int = 0) -> list[tuple[Use, Neighbour]]:
    """Return a choice of cases in which every use occurs."""
    by_use: dict[str, list[tuple[Use, Neighbour]]] = {}
    for use, pair in all_cases():
        by_use.setdefault(use.name, []).append((use, pair))
    draw = random.Random(seed)
    each = max(1, count // len(by_use))
    return [case for cases in by_use.values() for case in draw.sample(cases, min(each, len(cases)))]


def main(arguments: list[str]) -> int:
    """Run a choice, or everything with ``--all``; names of uses may follow."""
    words = [each for each in arguments if not each.startswith("--")]
    cases = list(all_cases()) if "--all" in arguments else chosen(300)
    cases = [case for case in cases if all(word in case[0].name for word in words)]
    if "--even" in arguments or "--odd" in arguments:  # two processes share the work
        names = sorted({use.name for use, _ in cases})["--odd" in arguments :: 2]
        cases = [case for case in cases if case[0].name in names]
    guilty = 0
    for use, pair in cases:
        for found in differences(use, pair):
            guilty += 1
            print(f"{use.name} | {pair.container}: {pair.name} | {found}", flush=True)
    uses = len({use.name for use, _ in cases})
    kinds = len({pair.name for _, pair in cases})
    print(f"{len(cases)} cases: {uses} uses, {kinds} kinds of neighbour, {guilty} differences")
    return int(guilty > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
