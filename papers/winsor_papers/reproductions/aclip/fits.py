"""One private fit of paper 4, and the baseline without noise, each as a cell."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from winsor.tables import (
    AveragedDescent,
    FlatDescent,
    PrivateLogisticRegression,
    PrivateRidge,
    RobustGD,
)
from winsor.tables.linear.task import Method
from winsor.tables.losses import Logistic, Squared
from winsor_papers.aclip.algorithms import PrintedAclip
from winsor_papers.reproductions.aclip.settings import ConvexSetting
from winsor_papers.reproductions.cells import Values, Wanted, cell, data_name

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ConvexRows:
    """Training and test rows of one column of the tables."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array

    @cached_property
    def name(self) -> str:
        """For the names of cells: 560 of a table are on the same rows."""
        return data_name(*map(torch.from_numpy, (self.x, self.y, self.x_test, self.y_test)))


def relative_error(rows: ConvexRows, coef: Array, task: str) -> float:
    """Mean test loss of ``coef`` over that of zero."""
    loss = Logistic() if task == "logistic" else Squared()
    scores = rows.x_test @ coef
    start = loss.value(np.zeros_like(scores), rows.y_test)
    return float(loss.value(scores, rows.y_test).mean() / start.mean())


POINTS = 6
"""Points of a curve, the last at the end of the run."""


@dataclass(frozen=True)
class Fit:
    """The error of the answer, and those of the answers along the way, by epoch."""

    error: float
    seconds: float
    """Of processor time; not a number where the fit shared its steps with others."""
    epsilon: float
    epochs: list[float]
    curve: list[float]


def every(steps: int) -> int:
    """The distance of the points of a curve, in steps."""
    return max(1, steps // POINTS)


def kept_steps(steps: int) -> list[int]:
    """The steps at which an answer is kept (`winsor.tables.descent.Trail`)."""
    apart = every(steps)
    return [step for step in range(1, steps + 1) if step % apart == 0 or step == steps]


def steps_of(method: Method, n: int) -> int:
    """A step of DP-GD is an epoch, one of the others m/n of it."""
    assert isinstance(method, AveragedDescent | FlatDescent | RobustGD)
    if isinstance(method, RobustGD):
        return method.steps
    assert method.epochs is not None and method.batch_size is not None
    return int(np.ceil(method.epochs * n / method.batch_size - 1e-9))


def fit(
    rows: ConvexRows, task: str, method: Method, epsilon: float, noise: float | None, seed: int
) -> Fit:
    """One private fit, and its error: one cell of a table, and one curve of a figure."""
    steps = steps_of(method, len(rows.x))
    # answers along the way follow from what is released anyway: they cost nothing
    told = replace(method, record=every(steps))  # type: ignore[type-var]
    kept = kept_steps(steps)
    share = getattr(method, "batch_size", len(rows.x)) / len(rows.x)

    def work() -> Values:
        start = time.process_time()
        model = fitted(rows, task, told, epsilon, noise, seed)
        seconds = time.process_time() - start
        return {
            "error": relative_error(rows, np.ravel(model.coef_), task),
            "seconds": seconds,
            "epsilon": model.epsilon_,
            "epochs": [step * share for step in kept],
            "curve": [
                relative_error(rows, np.ravel(point.coef), task) for point in model.trajectory_
            ],
        }

    stand_in = {"error": 0.5, "seconds": 1.0, "epsilon": epsilon, "epochs": kept}
    passes = getattr(method, "epochs", None) or getattr(method, "steps", None)
    wanted = Wanted(
        f"{task} on {len(rows.x):,} rows, {type(method).__name__}, {passes} passes",
        {
            "data": rows.name,
            "method": repr(told),
            "epsilon": epsilon,
            "noise": digits(noise),
            "seed": seed,
        },
        work,
        {**stand_in, "curve": [0.5] * len(kept)},
        int(passes or 1),
        lambda some: fitted(rows, task, _for_passes(method, some), epsilon, noise or 1.0, seed),
    )
    return Fit(**cell(wanted))


def digits(noise: float | None) -> float | None:
    """As it stands in the name of a cell: what a calibration finds differs from one machine to the
    next in its last digits, and the cell would not be found again."""
    return None if noise is None else float(f"{noise:.9g}")


def _for_passes(method: Method, passes: int) -> Method:
    """The same method, cut short to see what a pass costs."""
    length = {"steps": passes} if isinstance(method, RobustGD) else {"epochs": passes}
    return replace(method, **length)  # type: ignore[type-var]


def fitted(
    rows: ConvexRows, task: str, method: Method, epsilon: float, noise: float | None, seed: int
) -> PrivateLogisticRegression | PrivateRidge:
    """The estimator without intercept at delta = 1/n, fitted to the training rows."""
    kind = PrivateLogisticRegression if task == "logistic" else PrivateRidge
    model = kind(
        epsilon=epsilon,
        delta=1 / len(rows.x),
        method=method,
        alpha=0.0,
        fit_intercept=False,
        noise_multiplier=noise,
        random_state=seed,
        allow_large_delta=True,  # the paper's choice
    )
    return model.fit(rows.x, rows.y)


def baseline(rows: ConvexRows, task: str, setting: ConvexSetting, seed: int) -> Fit:
    """One run of AClipped-dpSGD as printed, with the settings of CC and without noise."""
    n, loss = len(rows.x), Logistic() if task == "logistic" else Squared()
    steps = int(np.ceil(setting.epochs * n / setting.batch_size - 1e-9))

    def gradient(w: Array, picked: NDArray[np.int64]) -> Array:
        part = rows.x[picked]
        pulled: Array = loss.residual(part @ w, rows.y[picked]) @ part
        return pulled

    def work(count: int) -> Values:
        run = PrintedAclip(
            n, count, setting.batch_size, setting.rates[0], setting.clips[0], 0.0, radius=1.0
        )
        answers = run.answers(np.zeros(rows.x.shape[1]), gradient, seed=seed)
        return {"curve": [relative_error(rows, answers[at - 1], task) for at in kept_steps(count)]}

    wanted = Wanted(
        f"{task} on {n:,} rows, without noise, {setting.epochs} passes",
        {"data": rows.name, "setting": repr(setting), "seed": seed},
        lambda: work(steps),
        {"curve": [0.5] * len(kept_steps(steps))},
        steps,
        work,
    )
    curve = cell(wanted)["curve"]
    epochs = [step * setting.batch_size / n for step in kept_steps(steps)]
    return Fit(curve[-1], float("nan"), float("inf"), epochs, curve)
