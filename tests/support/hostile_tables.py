"""Fits of neighbouring tables, and how far a hostile row moves what is handed to the door."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from statistic_battery import examples

from winsor import metrics, tables
from winsor.core.arithmetic.rows import slack
from winsor.core.contract import Neighbouring
from winsor.core.door import Door
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.features.private_axes import PrivateAxes
from winsor.features.private_norm import PrivateNorm
from winsor.features.private_whitening import PrivateWhitening
from winsor.metrics.metric import Columns
from winsor.tables import losses, partitions
from winsor.tables.additive.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor
from winsor.tables.additive.terms import tent_sums
from winsor.tables.design import Design, clip_residuals
from winsor.tables.linear.scaled import Scaling
from winsor.tables.linear.sufficient import OuterProducts
from winsor.tables.means.clipped import clipped_sum
from winsor.tables.partitions.statistics import Triangle
from winsor.tables.statistics import Statistic, release
from winsor.tables.transformers import CutMoments

SIZES = (1e-320, 1e-308, 1e-250, 1e-170, 1e-155, 1e-100, 1e-30, 1e-9, 0.3, 1.0, 40.0, 1e6)
SIZES = (*SIZES, 1e30, 1e100, 1e150, 1e155, 1e170, 1e250, 1e300, 1e308)


@dataclass
class Passages:
    """What passed the doors of one run. A run that follows another one gets its released values,
    so that both see the same public state."""

    first: Passages | None = None
    values: list[np.ndarray] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    released: list[np.ndarray] = field(default_factory=list)
    sampled: bool = False
    claims: dict[int, Any] = field(default_factory=dict)

    def pay(self, original: Callable[..., Receipt]) -> Callable[..., Receipt]:
        """Remember what a receipt claims."""

        def pay(door: PrepaidDoor, mechanism: Any, sampler: Any, bound: Any, *rest: Any) -> Receipt:
            receipt = original(door, mechanism, sampler, bound, *rest)
            self.sampled |= not isinstance(sampler, FullBatch)
            charged = getattr(receipt, "sensitivity", bound)
            self.claims[id(receipt)] = receipt, charged.under(Neighbouring.REPLACE_ONE)
            return receipt

        return pay

    def release(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note a value and its claim; release, or repeat what the first run released."""

        def release(receipt: Receipt, value: np.ndarray) -> np.ndarray:
            self._note(value, self.claims[id(receipt)][1])
            return self._repeated(original(receipt, value))

        return release

    def of_rule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same at the door of rules, whose parts are trees of tensors."""

        def release(door: Door, step: int, parts: Any) -> Any:
            self.sampled |= not isinstance(door.sampler, FullBatch)
            for part in parts.values():
                tree = part.value if isinstance(part.value, dict) else {"": part.value}
                flat = np.concatenate([np.asarray(leaf).ravel() for leaf in tree.values()])
                self._note(flat.astype(np.float64), part.sensitivity.replace)
            released = original(door, step, parts)
            for value in released.values.values():
                for leaf in value.values() if isinstance(value, dict) else [value]:
                    self._repeated(leaf.numpy())
            return released

        return release

    def _note(self, value: np.ndarray, bound: float) -> None:
        self.values.append(value.copy())
        self.bounds.append(bound)

    def _repeated(self, value: np.ndarray) -> np.ndarray:
        if self.first is not None and len(self.released) < len(self.first.released):
            value[...] = self.first.released[len(self.released)]
        self.released.append(value.copy())
        return value


@contextmanager
def watched(first: Passages | None = None) -> Iterator[Passages]:
    """See what passes the doors; warnings are errors meanwhile."""
    seen = Passages(first)
    with (
        mock.patch.object(PrepaidDoor, "pay", seen.pay(PrepaidDoor.pay)),
        mock.patch.object(Receipt, "release", seen.release(Receipt.release)),
        mock.patch.object(Door, "release", seen.of_rule(Door.release)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        yield seen


def largest_move(one: Passages, other: Passages) -> float:
    """The largest distance of two values at the same place, in units of its bound."""
    assert len(one.values) == len(other.values) > 0
    assert [v.shape for v in one.values] == [v.shape for v in other.values]
    return max(
        scaled_norm((a - b).ravel(), bound)
        for a, b, bound in zip(one.values, other.values, one.bounds, strict=True)
    )


def scaled_norm(gap: np.ndarray, bound: float) -> float:
    """|gap| / bound without overflow; infinite if anything is not a number."""
    with np.errstate(over="ignore"):
        scaled = gap / bound
    if not np.isfinite(scaled).all():
        return np.inf
    largest = float(np.abs(scaled).max(initial=0.0))
    return largest * float(np.linalg.norm(scaled / largest)) if largest > 0 else 0.0


# ----------------------------------------------------------------------------------------- tables


def hostile_row(rng: np.random.Generator, columns: int) -> np.ndarray:
    """A row of any magnitudes, alike or mixed, with zeros of both signs."""
    row = np.full(columns, rng.choice(SIZES)) if rng.random() < 0.5 else rng.choice(SIZES, columns)
    row = row * rng.choice([-1.0, 1.0], columns) * rng.uniform(0.5, 1.0, columns)
    return np.where(rng.random(columns) < 0.15, rng.choice([0.0, -0.0]), row)


def ordinary_rows(rng: np.random.Generator, n: int, columns: int) -> np.ndarray:
    """Rows of one scale for each column, or copies of one row; now and then of odd magnitudes."""
    scales = rng.choice(SIZES, columns) if rng.random() < 0.3 else rng.choice([1.0, 30.0], columns)
    rows = np.clip(rng.standard_normal((n, columns)), -1.5, 1.5)
    if rng.random() < 0.5:
        rows[:] = rows[0]
    rows = rows * scales
    rows[:2, -1] = 1.0, -1.0  # so that there are two classes
    return rows


Case = Callable[[np.ndarray, bytes], Any]
"""A fit of a table, whose last column is the target if there is one, under a key."""


def _model(cls: Any, positive: bool = False, labels: bool = False, **options: Any) -> Case:
    def fit(table: np.ndarray, key: bytes) -> None:
        x, y = table[:, :-1], table[:, -1]
        y = np.abs(y) if positive else y
        if labels:
            y = (y > 0).astype(float)
        cls(random_state=key, **{"epsilon": 8.0} | options).fit(x, y)

    return fit


def _mean(function: Any, **options: Any) -> Case:
    return lambda table, key: function(table, epsilon=8.0, random_state=key, **options)


def _parts(table: np.ndarray) -> Any:
    halves = np.array_split(table, 3)
    return partitions.Partitions.of_loaders(
        [lambda own=own: own for own in halves], columns=table.shape[1]
    )


def _of_parts(function: Any, **options: Any) -> Case:
    return lambda table, key: function(_parts(table), epsilon=8.0, random_state=key, **options)


def _measured(metric: Any, **names: int) -> Case:
    def fit(table: np.ndarray, key: bytes) -> None:
        columns = {name: table[:, place] for name, place in names.items()}
        metrics.measure(metric, epsilon=8.0, random_state=key, **columns)

    return fit


def _transform(kind: Any) -> Case:
    def fit(table: np.ndarray, key: bytes) -> None:
        rows = torch.from_numpy(table)
        shaped = rows if kind is PrivateWhitening else rows[:, :, None].expand(-1, -1, 2)
        with mock.patch("winsor.features.moments.key_for", lambda *_: key):
            kind(noise_multiplier=1.0, delta=1e-5).fit(shaped)

    return fit


def _statistic(one: Statistic) -> Case:
    def fit(table: np.ndarray, key: bytes) -> None:
        columns = np.arange(one.columns) % table.shape[1]
        release(one, table[:, columns], epsilon=8.0, random_state=key)

    return fit


def cases() -> dict[str, Case]:
    """A fit for everything in tables and metrics that releases sums, by name."""
    own = tables
    by_hand = {"clip": 1.0, "batch_size": 1e9, "learning_rate": 0.1, "steps": 4}
    methods = {
        "whitened": own.Whitened(steps=4),
        "suffstats": own.SufficientStatistics(refine=3),
        "flat": own.FlatDescent(steps=4),
        "flat, small bound": own.FlatDescent(1e-9, steps=4, learning_rate=1e9),
        "flat, batches": own.FlatDescent(steps=6, batch_size=20),
        "averaged": own.AveragedDescent(**by_hand),
        "restarted": own.Restarted(**by_hand, runs=2),
        "simple": own.Simple(clip=1.0, steps=4, learning_rate=0.5),
        "iterative": own.Iterative(clip=1.0, steps=3, learning_rate=0.5, groups=4),
        "robust_gd": own.RobustGD(scale=1.0, steps=3, learning_rate=0.5),
        "automatic": own.Ruled("automatic", steps=3, learning_rate=0.5),
        "flat rule": own.Ruled("flat", {"max_grad_norm": 1.0}, steps=3),
    }
    found: dict[str, Case] = {}
    for name, method in methods.items():
        found[f"huber, {name}"] = _model(own.PrivateHuberRegressor, method=method)
        if name not in ("suffstats", "averaged", "restarted"):
            kinds = {"method": method, "labels": True}
            found[f"logistic, {name}"] = _model(own.PrivateLogisticRegression, **kinds)
        if "flat" in name or name in ("simple", "suffstats", "whitened", "robust_gd"):
            found[f"ridge, {name}"] = _model(own.PrivateRidge, method=method)
    del found["huber, suffstats"]
    rough = own.FlatDescent(steps=4)
    found |= {
        "svc": _model(own.PrivateLinearSVC, labels=True, method=rough),
        "median": _model(own.PrivateMedianRegressor, method=rough),
        "bounded ridge": _model(own.PrivateRidge, feature_bound=1e-3),
        "no intercept": _model(own.PrivateRidge, fit_intercept=False, method=rough),
        "no intercept, whitened": _model(own.PrivateRidge, fit_intercept=False),
        "linear": _model(own.PrivateLinearRegression),
        "poisson": _model(own.PrivatePoissonRegressor, positive=True),
        "gamma": _model(own.PrivateGammaRegressor, positive=True),
        "bounded gamma": _model(own.PrivateGammaRegressor, positive=True, bounds=(-1, 1)),
        "additive classes": _model(PrivateAdditiveClassifier, labels=True, interactions=1),
        "clipped": _mean(own.clipped_mean, radius=1.0),
        "clipped, tiny": _mean(own.clipped_mean, radius=1e-100, centre=1e-110),
        "clipped, huge": _mean(own.clipped_mean, radius=1e120, centre=-1e118),
        "clipped, searched": _mean(own.clipped_mean, radius=own.PrivateRadius(1e-3, 1e9)),
        "averaged": _mean(own.averaged_mean, clip=1.0),
        "averaged, batch": _mean(own.averaged_mean, clip=1e-9, batch_size=20),
        "iterative": _mean(own.iterative_mean, radius=1.0, groups=4),
        "winsorised": _mean(own.winsorised_mean),
        "described": _mean(own.describe),
        "bins": _mean(own.private_bins),
        "scaled": lambda t, key: own.PrivateScaler(epsilon=8.0, random_state=key).fit(t),
        "scaled, learnt": lambda t, key: own.PrivateScaler(None, None, 8.0, random_state=key).fit(
            t
        ),
        "binned": lambda t, key: own.PrivateBinner(epsilon=8.0, random_state=key).fit(t),
        "encoded": lambda t, key: own.PrivateEncoder(epsilon=8.0, random_state=key).fit(t[:, :1]),
        "parts, mean": _of_parts(partitions.clipped_mean, radius=1.0),
        "parts, quantiles": _of_parts(partitions.quantiles, levels=[0.5]),
        "parts, moments": _of_parts(partitions.second_moments, bound=1.0),
        "parts, tiny moments": _of_parts(partitions.second_moments, bound=1e-50),
        "parts, ridge": lambda t, key: partitions.fit_ridge(
            own.PrivateRidge(8.0, random_state=key, method="suffstats"), _parts(t)
        ),
        "parts, scaler": lambda t, key: partitions.fit_scaler(
            own.PrivateScaler(epsilon=8.0, random_state=key), _parts(t)
        ),
    }
    for loss in ("squared", "huber", "poisson", "gamma"):
        options = {"loss": loss, "interactions": 1, "positive": loss in ("poisson", "gamma")}
        found[f"additive, {loss}"] = _model(PrivateAdditiveRegressor, **options)
    for kind in (PrivateNorm, PrivateWhitening, PrivateAxes):
        found[kind.__name__] = _transform(kind)
    for one in examples():
        found[f"statistic {one!r}"] = _statistic(one)
    pair = {"targets": 0, "predictions": 1}
    found |= {
        "loss": _measured(metrics.ClippedLoss(3.0), losses=0),
        "r2": _measured(metrics.R2(-1.0, 1.0), **pair),
        "r2, tiny": _measured(metrics.R2(-1e-300, 1e-300, 1e-310), **pair),
        "residual quantiles": _measured(metrics.Quantiles([0.5], -1.0, 1.0), **pair),
        "calibration": _measured(metrics.Calibration(), targets=0, scores=1),
        "auc": _measured(metrics.AUC(), targets=0, scores=1),
        "accuracy": _measured(metrics.Accuracy(), **pair),
        "deviance": _measured(metrics.DevianceExplained([0.0, 1.0]), targets=0, losses=1),
        "confusion": _measured(metrics.ConfusionMatrix([0.0, 1.0]), **pair),
        "by group": _measured(
            metrics.ByGroup(metrics.ClippedLoss(3.0), [0.0, 1.0]), losses=0, groups=1
        ),
    }
    return found


def move_of(case: Case, seed: int, n: int = 64) -> float:
    """The largest move when the last row of a table becomes another, in units of the claims: of a
    fit, and of one to rows in another order where the fit looks at all of them."""
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(2, 5))
    rows = ordinary_rows(rng, n, columns)
    hostile, other = hostile_row(rng, columns), hostile_row(rng, columns)
    if rng.random() < 0.3:
        other = -hostile
    elif rng.random() < 0.3:
        other = rows[0]
    key = rng.bytes(32)
    with watched() as one:
        case(np.vstack([rows, hostile]), key)
    turned = not one.sampled and rng.random() < 0.5
    with watched(one) as two:
        case(np.vstack([other, rows] if turned else [rows, other]), key)
    return largest_move(one, two)


# -------------------------------------------------------------- sums of n rows, and of one row more


def sums(columns: int) -> dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]]:
    """Functions of rows that releases add up, with the bound of a row: any numbers may be in it."""
    rng = np.random.default_rng(columns)
    weights, root = rng.standard_normal(columns), rng.standard_normal((columns, columns))
    scaling = Scaling(np.full(columns - 1, -1.0), np.ones(columns - 1), np.zeros(columns - 1))
    knots, point = [np.array([-1e300, -1.0, 0.0, 2.0, 1e300])] * columns, np.full(columns, 0.1)

    def pulled(rows: np.ndarray, loss: losses.Loss, intercept: bool = True) -> np.ndarray:
        design, every = Design(rows[:, :-1], intercept), np.arange(len(rows))
        theta, y = weights[: design.size], rows[:, -1]
        if loss.outputs > 1:
            theta, y = np.stack([theta] * loss.outputs, axis=1), (y > 0).astype(float)
        residual = loss.residual(design.rows(every).scores(theta), y)
        return design.rows(every).pull(clip_residuals(residual, design.limits(0.5)))

    def whitened(rows: np.ndarray) -> np.ndarray:
        design, every = Design(rows[:, :-1], True).whitened(root), np.arange(len(rows))
        return design.rows(every).pull(clip_residuals(rows[:, -1].copy(), design.limits(0.5)))

    def of_metric(metric: metrics.Metric) -> tuple[Callable[[np.ndarray], np.ndarray], float]:
        def total(rows: np.ndarray) -> np.ndarray:
            given = {"targets": rows[:, 0], "predictions": rows[:, 1], "losses": rows[:, 0]}
            return metric.total(Columns.of(**given))

        return total, metric.bound

    products = OuterProducts(scaling, True, 0.0, 1.0, 0.7)
    return {
        "squared": (lambda rows: pulled(rows, losses.Squared()), 0.5),
        "no intercept": (lambda rows: pulled(rows, losses.Squared(), False), 0.5),
        "hinge": (lambda rows: pulled(rows, losses.Hinge()), 0.5),
        "softmax": (lambda rows: pulled(rows, losses.Softmax(2)), 0.5),
        "whitened": (whitened, 0.5),
        "clipped": (lambda rows: clipped_sum(rows, point, 1e-9), 1e-9),
        "triangle": (Triangle(point, 0.7, 0.3), 0.49),
        "moments": (CutMoments(point, point), (2 * columns) ** 0.5),
        "products": (lambda rows: products(rows[:, :-1], rows[:, -1]), 0.49),
        "tents": (lambda rows: tent_sums(rows, knots, 5), columns**0.5),
        "r2": of_metric(metrics.R2(-1.0, 1.0, 0.3)),
        "loss": of_metric(metrics.ClippedLoss(1e-9)),
    }


def joining_moves(seed: int, n: int) -> dict[str, float]:
    """How far a row that joins ``n`` others, put last or first, moves every one of `sums`."""
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(2, 5))
    rows, hostile = ordinary_rows(rng, n, columns), hostile_row(rng, columns)
    hostile = np.where(rng.random(columns) < 0.2, rng.choice([np.nan, np.inf, -np.inf]), hostile)
    joined = np.vstack([rows, hostile] if rng.random() < 0.5 else [hostile, rows])
    found = {}
    for name, (total, bound) in sums(columns).items():
        with np.errstate(all="ignore"):  # as in every fit
            one, two = total(rows), total(joined)
        found[name] = scaled_norm((two - one).ravel(), bound * (1 + slack(n + 1, one.size)))
    return found
