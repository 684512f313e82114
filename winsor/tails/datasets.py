"""Synthetic problems with heavy tails, as in the papers' experiments.

| function | problem | source |
|---|---|---|
| `heavy_linear` | ridge or logistic, heavy-tailed features and noise | paper 4, Section 5, App. B |
| `gaussian_design` | linear or logistic, Gaussian design, Student-t noise | papers 2 and 3 |
| `moment_rows` | rows whose p-th directional moment is known | paper 2, Assumption 1(c) |
| `claims_like` | insurance claims: log-normal amounts with a Pareto tail | the example |

Every generator is a function of its seed. None of this is private data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from winsor.core.checks import choice, whole
from winsor.core.contract import ConfigurationError

Array = NDArray[np.float64]

NOISES = ("student_t", "laplace", "chi_squared")


@dataclass(frozen=True)
class LinearProblem:
    """Rows, targets, and the parameters they were made from."""

    x: Array
    y: Array
    coef: Array


def _noise(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draws of paper 4's distributions: t with 2 degrees, Laplace(1, 1), chi-squared with 1."""
    match choice("noise", name, NOISES):
        case "student_t":
            return rng.standard_t(2, size=shape)
        case "laplace":
            return rng.laplace(1.0, 1.0, size=shape)
        case _:
            return rng.chisquare(1, size=shape)


def heavy_linear(
    noise: str, task: str = "ridge", *, n: int = 100_000, d: int = 10, seed: int = 0
) -> LinearProblem:
    """Draw paper 4's synthetic problems: y = <x*, xi> + e (ridge) or its sign (logistic).

    Features and noise come from the same heavy-tailed law, both centred. x* is a random unit vector
    (the paper does not say). The paper prints the labels as 2 sign(1/exp(.) - 1/2) - 1, which is
    neither a sign nor a probability; read as "the logistic probability exceeds 1/2", coded 0 and 1.
    The mean of t with 2 degrees is 0, of Laplace(1, 1) and chi-squared(1) it is 1.
    """
    _check_size(n, d)
    rng = np.random.default_rng(seed)
    centre = 0.0 if noise == "student_t" else 1.0
    x = _noise(noise, rng, (n, d)) - centre
    coef = rng.standard_normal(d)
    coef /= np.linalg.norm(coef)
    signal = x @ coef + _noise(noise, rng, (n,)) - centre
    return LinearProblem(x, _target(signal, task), coef)


def gaussian_design(
    n: int, d: int, *, task: str = "ridge", degrees: float = 3.0, scale: float = 1.0, seed: int = 0
) -> LinearProblem:
    """Draw normal rows with Student-t noise: gradients have as many moments as the noise."""
    _check_size(n, d)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d))
    coef = rng.standard_normal(d)
    coef /= np.linalg.norm(coef)
    signal = x @ coef + scale * rng.standard_t(degrees, size=n)
    return LinearProblem(x, _target(signal, task), coef)


def _target(signal: Array, task: str) -> Array:
    match task:
        case "ridge":
            return signal
        case "logistic":
            return (signal > 0).astype(np.float64)
    raise ConfigurationError(f'task must be "ridge" or "logistic". Got {task!r} instead.')


def moment_rows(
    n: int, d: int, p: float, *, family: str = "student_t", slack: float = 0.1, seed: int = 0
) -> tuple[Array, Array, float]:
    """Draw rows with tail index p + ``slack``; also their mean, and M with E|<u, x>|^p <= M^p.

    * ``"student_t"``: spherical Student t with p + slack degrees of freedom;
    * ``"pareto"``: a Pareto variable minus its mean, along (1, .., 1)/sqrt(d): the hardest case for
      clipping, for all its bias has one sign.
    """
    _check_size(n, d)
    if p < 2 or slack <= 0:
        raise ConfigurationError(
            f"p must be at least 2 and slack positive. Got p={p!r}, slack={slack!r} instead."
        )
    rng = np.random.default_rng(seed)
    index = p + slack
    if family == "student_t":
        shared = np.sqrt(index / rng.chisquare(index, size=(n, 1)))
        return rng.standard_normal((n, d)) * shared, np.zeros(d), _t_moment(index, p)
    if family == "pareto":
        length = rng.pareto(index, size=(n, 1)) + 1
        mean = index / (index - 1)
        rows = (length - mean) * np.full((1, d), 1 / math.sqrt(d))
        # Minkowski: |z - m|_p <= |z|_p + m.
        return rows, np.zeros(d), (index / (index - p)) ** (1 / p) + mean
    raise ConfigurationError(f'family must be "student_t" or "pareto". Got {family!r} instead.')


def _t_moment(degrees: float, p: float) -> float:
    """(E|t|^p)^(1/p) of Student's t, for p below its degrees of freedom."""
    log = (
        (p / 2) * math.log(degrees)
        + special.gammaln((p + 1) / 2)
        + special.gammaln((degrees - p) / 2)
        - special.gammaln(0.5)
        - special.gammaln(degrees / 2)
    )
    return float(np.exp(log / p))


def claims_like(n: int = 20_000, *, seed: int = 0) -> LinearProblem:
    """Draw a stand-in for injury claims: 14 features, log-amounts that are half explained.

    Features lie in [-1, 1] (public ranges); log amounts are linear in them plus noise, and one
    claim in fifty is multiplied by a Pareto(1.7) factor. ``y`` is the amount.
    """
    _check_size(n, 14)
    rng = np.random.default_rng(seed)
    binary = (rng.random((n, 8)) < 0.4).astype(np.float64) * 2 - 1
    graded = 2 * rng.beta(1.5, 4.0, size=(n, 6)) - 1
    x = np.concatenate([binary, graded], axis=1)
    coef = rng.standard_normal(14) * 0.45
    log_amount = 9.5 + x @ coef + rng.standard_normal(n) * 0.9
    large = rng.random(n) < 0.02
    log_amount = log_amount + large * np.log(rng.pareto(1.7, size=n) + 1)
    return LinearProblem(x, np.exp(log_amount), coef)


def _check_size(n: int, d: int) -> None:
    whole("n", n)
    whole("d", d)
