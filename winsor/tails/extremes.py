"""Extreme value indices: Hill, moments (Dekkers, Einmahl and de Haan) and Pickands.

With z_1 >= z_2 >= ... the decreasing logarithms of the norms and M_j the mean over i <= k of
(z_i - z_{k+1})^j:

    Hill       gamma = M_1                                      power laws only (gamma > 0)
    moments    gamma = M_1 + 1 - (1/2) / (1 - M_1^2 / M_2)      any gamma
    Pickands   gamma = log((x_m - x_2m)/(x_2m - x_4m)) / log 2, m = k/4

gamma > 0 is a power law with alpha = 1/gamma: moments of order below alpha are finite. gamma = 0
covers every Weibull and the lognormal, gamma < 0 has an end point. Each is a curve over the number
k of upper order statistics (the stability plot) and a value at one chosen k.

The choice of k follows the second-order theory of the Hill estimator: k_0 minimises its mean
square error given estimates of the second-order parameters rho and beta (Fraga Alves, Gomes and
de Haan 2003; Gomes and Martins 2002), and half of k_0 is used, so that the remaining bias is well
below the standard error. The interval for Hill joins the intervals of the plain and of the
bias-corrected estimate (Caeiro, Gomes and Pestana 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from winsor.tails.points import Floats, normal_quantile

SMALLEST = 20
"""Fewest order statistics for which an index is reported."""


@dataclass(frozen=True)
class Index:
    """One index at the chosen k, with its interval, and its curve over k."""

    name: str
    gamma: float
    interval: tuple[float, float]
    k: int
    curve_k: Floats
    curve: Floats
    curve_low: Floats
    curve_high: Floats

    @property
    def alpha(self) -> float:
        """Tail exponent 1/gamma; infinite where gamma is not positive."""
        return 1 / self.gamma if self.gamma > 0 else float("inf")

    @property
    def alpha_interval(self) -> tuple[float, float]:
        """Confidence interval of the power alpha = 1/gamma of the tail."""
        low, high = self.interval
        return (1 / high if high > 0 else float("inf"), 1 / low if low > 0 else float("inf"))


def _grid(n: int) -> Floats:
    """About 120 values of k, dense where k is small."""
    top = max(SMALLEST + 1, n // 2)
    return np.unique(np.geomspace(SMALLEST, top, 120).astype(np.int64))


def _log_moments(z: Floats, k: Floats) -> tuple[Floats, Floats]:
    """M_1 and M_2 at each k, from cumulative sums."""
    shifted = z[: int(k[-1]) + 1] - z[int(k[-1])]
    first, second = np.cumsum(shifted), np.cumsum(shifted**2)
    edge = shifted[k]
    m1 = first[k - 1] / k - edge
    m2 = second[k - 1] / k - 2 * edge * first[k - 1] / k + edge**2
    return m1, np.maximum(m2, 1e-300)


def second_order(z: Floats) -> tuple[float, float]:
    """Return estimates of (rho, beta) in U(t) = C t^gamma (1 + gamma beta t^rho / rho + ...)."""
    n = z.size
    k = min(n - 1, int(n**0.999))
    d = z[:k] - z[k]
    square = d * d
    sums = d.mean(), square.mean() / 2, square @ d / k / 6
    logs = [np.log(m) / j for j, m in enumerate(sums, start=1)]
    denominator = logs[1] - logs[2]
    t = (logs[0] - logs[1]) / denominator if abs(denominator) > 1e-12 else 1.5
    rho = -abs(3 * (t - 1) / (t - 3)) if abs(t - 3) > 1e-9 else -1.0
    rho = float(np.clip(rho, -4.0, -0.2))
    i = np.arange(1, k + 1)
    spacing = i * (z[:k] - z[1 : k + 1])
    power = (i / k) ** -rho
    a, d0 = power.mean(), spacing.mean()
    d1, d2 = power @ spacing / k, power**2 @ spacing / k
    beta = (k / n) ** rho * (a * d0 - d1) / (a * d1 - d2)
    return rho, float(beta) if np.isfinite(beta) else 1.0


class ChosenK(NamedTuple):
    """How many order statistics the indices use, and the second-order parameters behind it."""

    k: int
    rho: float
    beta: float


def choose_k(z: Floats) -> ChosenK:
    """Return half the number of order statistics that minimises Hill's mean square error."""
    n = z.size
    rho, beta = second_order(z)
    best = ((1 - rho) * n**-rho / (max(abs(beta), 1e-6) * np.sqrt(-2 * rho))) ** (2 / (1 - 2 * rho))
    return ChosenK(int(np.clip(best / 2, SMALLEST, n // 2)), rho, beta)


def hill(z: Floats, choice: ChosenK, confidence: float = 0.95) -> Index:
    """Return Hill's index with the joined interval described above."""
    n, quantile = z.size, normal_quantile(0.5 + confidence / 2)
    k, rho, beta = choice
    grid = _grid(n)
    curve, _ = _log_moments(z, grid)
    width = quantile / np.sqrt(grid)
    plain = float(_log_moments(z, np.array([k]))[0][0])
    corrected = plain * max(0.1, 1 - beta / (1 - rho) * (n / k) ** rho)
    spread = np.exp(quantile / np.sqrt(k))
    interval = (min(plain, corrected) / spread, max(plain, corrected) * spread)
    return Index(
        "hill", plain, interval, k, grid, curve, curve * np.exp(-width), curve * np.exp(width)
    )


def _moment_variance(gamma: Floats) -> Floats:
    """k times the asymptotic variance of the moment estimator."""
    g = np.minimum(gamma, 0.0)
    negative = (
        (1 - g) ** 2
        * (1 - 2 * g)
        * (
            4
            - 8 * (1 - 2 * g) / (1 - 3 * g)
            + (5 - 11 * g) * (1 - 2 * g) / ((1 - 3 * g) * (1 - 4 * g))
        )
    )
    return np.where(gamma >= 0, 1 + np.maximum(gamma, 0.0) ** 2, negative)


def moments(z: Floats, choice: ChosenK, confidence: float = 0.95) -> Index:
    """Return the moment estimator of Dekkers, Einmahl and de Haan (1989)."""
    quantile = normal_quantile(0.5 + confidence / 2)

    def at(k: Floats) -> tuple[Floats, Floats]:
        m1, m2 = _log_moments(z, k)
        ratio = np.minimum(m1**2 / m2, 1 - 1e-9)
        gamma = m1 + 1 - 0.5 / (1 - ratio)
        return gamma, quantile * np.sqrt(_moment_variance(gamma) / k)

    k, grid = choice.k, _grid(z.size)
    gamma, half = (float(v[0]) for v in at(np.array([k])))
    curve, width = at(grid)
    return Index(
        "moments", gamma, (gamma - half, gamma + half), k, grid, curve, curve - width, curve + width
    )


def pickands(z: Floats, choice: ChosenK, confidence: float = 0.95) -> Index:
    """Return Pickands' (1975) estimator, the noisiest, which assumes nothing about the sign."""
    quantile = normal_quantile(0.5 + confidence / 2)
    x = np.exp(z - z[0])

    def at(k: Floats) -> tuple[Floats, Floats]:
        m = np.maximum(k // 4, 1)
        upper = np.maximum(x[m - 1] - x[2 * m - 1], 1e-300)
        lower = np.maximum(x[2 * m - 1] - x[4 * m - 1], 1e-300)
        gamma = np.log(upper / lower) / np.log(2)
        safe = np.where(np.abs(gamma) < 1e-6, 1e-6, gamma)
        spread = safe * np.sqrt(2 ** (2 * safe + 1) + 1) / (2 * (2**safe - 1) * np.log(2))
        return gamma, quantile * np.abs(spread) / np.sqrt(m)

    k, grid = choice.k, _grid(z.size)
    gamma, half = (float(v[0]) for v in at(np.array([k])))
    curve, width = at(grid)
    return Index(
        "pickands",
        gamma,
        (gamma - half, gamma + half),
        k,
        grid,
        curve,
        curve - width,
        curve + width,
    )
