"""Appendix B of paper 4: the settings of every data set, and the methods that have them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from winsor.tables import AveragedDescent, FlatDescent, RobustGD
from winsor.tables.linear.task import Method
from winsor_papers.aclip.claim import AclipRun
from winsor_papers.reproductions.aclip.printed import DATA, METHODS

REAL = ("diabetes", "adult")
SYNTHETIC = tuple(name for name in DATA if name not in REAL)

NOTES = {
    "logistic": "The logistic loss is log(1 + exp(-y s)). The paper prints log(1 + exp(1 + y s)), "
    "which falls as the score disagrees with the label: a misprint.",
    "ridge": "The squared loss is halved, (s - y)^2/2: at the printed clipping levels and steps a "
    "gradient is half the paper's. Errors are relative to the start, where the factor cancels.",
}
ONE_READING = "DP-SGD answers with the average of its iterates, as CC and UC do, in every table."


@dataclass(frozen=True)
class ConvexSetting:
    """Appendix B's parameters for one data set."""

    epochs: int
    batch_size: int
    clips: tuple[float, float, float]  # CC, UC, DP-SGD
    rates: tuple[float, float, float, float]  # CC, UC, DP-SGD, DP-GD


_LARGE = ConvexSetting(400, 200, (0.54, 0.87, 0.74), (5e-4, 2e-4, 4e-4, 1e-3))
SETTINGS = {
    "diabetes": ConvexSetting(30, 24, (0.54, 0.87, 0.74), (5e-3, 1e-2, 6e-3, 8e-3)),
    "adult": replace(_LARGE, epochs=30),
    "student_t": _LARGE,
    "laplace": _LARGE,
    "chi_squared": _LARGE,
}


def methods_of(setting: ConvexSetting) -> dict[str, Method]:
    """The four columns."""
    common: dict[str, Any] = {"batch_size": setting.batch_size, "epochs": setting.epochs}
    cc, uc, sgd = setting.clips
    rates = dict(zip(METHODS, setting.rates, strict=True))
    return {
        "CC": AveragedDescent(clip=cc, learning_rate=rates["CC"], radius=1.0, **common),
        "UC": AveragedDescent(clip=uc, learning_rate=rates["UC"], constrained=False, **common),
        "DP-SGD": FlatDescent.plain(sgd, learning_rate=rates["DP-SGD"], **common),
        "DP-GD": RobustGD(learning_rate=rates["DP-GD"], steps=setting.epochs, deviation=0.5),
    }


def longer(setting: ConvexSetting) -> FlatDescent:
    """DP-SGD with ten times the printed step, which is not in the paper."""
    flat = methods_of(setting)["DP-SGD"]
    assert isinstance(flat, FlatDescent) and flat.learning_rate is not None
    return replace(flat, learning_rate=10 * flat.learning_rate)


def published_run(
    setting: ConvexSetting, method: Method, epsilon: float, n: int
) -> AclipRun | None:
    """The paper's account of an averaged run; None for the methods that it accounts soundly."""
    if not isinstance(method, AveragedDescent):
        return None
    q = min(1.0, setting.batch_size / n)
    steps = int(np.ceil(setting.epochs / q - 1e-9))
    assert method.clip is not None
    return AclipRun(epsilon, 1 / n, q, steps, method.clip)
