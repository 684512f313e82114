"""Sub-Weibull tails by maximum likelihood, with a power-law continuation.

    S(x) = P(|X| > x) = exp(-H),   y = (x/K)^(1/theta),
    H = y                          Weibull: sub-Weibull with exactly this theta and K (xi = 0)
    H = log(1 + xi y) / xi         bends upwards into a power law with index alpha = 1/(xi theta)

The second line (Singh-Maddala, or Burr XII) contains the first, so a likelihood ratio decides
whether the data want the bend. Values at or below the threshold u are left-censored:

    log L = sum_{x_i > u} log f(x_i) + #{x_i <= u} log(1 - S(u)).

On the bent curve the index depends on the depth at which one looks. At depth h = log(1/S),

    theta(h) = 1 / (d log H / d log x) = theta xi h / (1 - exp(-xi h)),

which is theta for xi = 0, grows with h for xi > 0 and becomes h/alpha in the far tail: a power law
has no finite theta, only a theta for each depth.

Everything is vectorised over a leading axis, so that a bootstrap is one Newton iteration on a
matrix of resampled weights. The family's parameters are (log K, log theta, xi).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from winsor.tails.points import Floats, TailPoints, tail_line

XI_MAX = 10.0
"""Here the upper half of the curve is a Pareto law to within 0.1 %. Well before that, xi and theta
are no longer told apart (only their product is): from `XI_HELD` on, the bootstrap and the standard
errors hold xi and let theta carry the index."""

XI_HELD = 2.0

_SMALL = 1e-7

ROWS = 20
"""Bootstrap rows refitted at a time: few enough that the work stays in the processor's cache."""


@dataclass(frozen=True)
class WeibullFit:
    """Parameters, log-likelihood (per the whole sample) and covariance of the free ones."""

    log_scale: float
    log_theta: float
    xi: float
    loglik: float
    free: tuple[int, ...]
    covariance: Floats

    @property
    def params(self) -> Floats:
        """log K, log theta and xi, as an array."""
        return np.array([self.log_scale, self.log_theta, self.xi])

    @property
    def gamma(self) -> float:
        """Extreme value index xi theta = 1/alpha."""
        return self.xi * float(np.exp(self.log_theta))

    def gamma_deviation(self) -> float:
        """Return the standard error of gamma by the delta method."""
        theta = float(np.exp(self.log_theta))
        slope = np.array([0.0, self.gamma, theta])[list(self.free)]
        return float(np.sqrt(max(0.0, slope @ self.covariance @ slope)))

    def depth(self, z: Floats) -> Floats:
        """Return H = -log S of the fitted curve at z = log x."""
        return _curve(z, self.params)[3]

    def survival(self, x: Floats) -> Floats:
        """Return S(x) of the fitted curve."""
        return np.exp(-self.depth(np.log(x)))


def quantile(fitted: WeibullFit, probability: float) -> float:
    """Return the x with S(x) = probability."""
    depth = -np.log(probability)
    log_y = np.log(np.expm1(fitted.xi * depth) / fitted.xi) if fitted.xi > _SMALL else np.log(depth)
    return float(np.exp(fitted.log_scale + np.exp(fitted.log_theta) * log_y))


def index_at_depth(log_theta: Floats, xi: Floats, depth: float) -> Floats:
    """Return theta(h), the sub-Weibull index at depth h = log(1/S)."""
    product = np.maximum(np.asarray(xi, dtype=np.float64) * depth, 1e-12)
    return np.exp(log_theta) * product / -np.expm1(-product)


def _curve(z: Floats, params: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """q = log y, y, xi y and H for params (3, ...) broadcast against z."""
    log_scale, log_theta, xi = params
    # q is cut where y would overflow, and H with it: cutting y alone would reward such values
    q = np.clip((z - log_scale) / np.exp(log_theta), -600.0, 600.0)
    y = np.exp(q)
    bend = xi * y
    straight = xi <= _SMALL
    h = np.log1p(bend) / np.where(straight, 1.0, xi)
    return q, y, bend, np.where(straight, y, h) if np.any(straight) else h


def likelihood_and_score(
    points: TailPoints, weight: Floats, below: Floats, params: Floats
) -> tuple[Floats, Floats]:
    """Return the log-likelihood and its gradient in (log K, log theta, xi).

    ``params`` is (3,) with ``weight`` (m,), or (3, B, 1) with ``weight`` (B, m) and ``below`` (B,);
    the gradient is (3,) or (3, B).
    """
    log_theta, xi = params[1], params[2]
    theta = np.exp(log_theta)
    q, ratio, h, dh_dxi = _derivatives(points.z, params)
    density = q - log_theta - np.where(xi > _SMALL, xi * h, 0.0) - h
    d_q = 1 - (1 + xi) * ratio
    above = np.stack(
        [
            -(weight * d_q).sum(axis=-1) / np.squeeze(theta),
            -(weight * (q * d_q + 1)).sum(axis=-1),
            -(weight * (ratio + dh_dxi)).sum(axis=-1),
        ]
    )
    at_threshold = _derivatives(np.asarray(points.threshold), params)
    q, ratio, h, dh_dxi = (np.squeeze(v) for v in at_threshold)
    h = np.clip(h, 1e-300, 700.0)
    slope = np.stack([-ratio / np.squeeze(theta), -ratio * q, dh_dxi])
    value = (weight * density).sum(axis=-1) + below * np.log(-np.expm1(-h))
    return value, above + below / np.expm1(h) * slope


def _derivatives(z: Floats, params: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """q, y/(1 + xi y) (which is also d log(1 + xi y)/d xi), H and dH/dxi at z."""
    xi = params[2]
    if not np.any(xi):  # the straight curve, at a fraction of the cost
        q = (z - params[0]) / np.exp(params[1])
        y = np.exp(np.clip(q, -300.0, 300.0))
        return q, y, y, -(y * y) / 2
    q, y, bend, h = _curve(z, params)
    ratio = y / (1 + bend)
    near = bend < 1e-3  # (ratio - h)/xi would cancel; its series is exact to 1e-9 there
    if not near.any():
        return q, ratio, h, (ratio - h) / xi
    small = np.where(near, y, 0.0)
    series = small**2 * (xi * small * (2 / 3 - 0.75 * xi * small) - 0.5)
    return q, ratio, h, np.where(near, series, (ratio - h) / np.where(xi > 0, xi, 1.0))


def _start(points: TailPoints) -> tuple[float, float]:
    """log K and log theta of the line through log(-log S) against log x."""
    slope, intercept = tail_line(points, points.weight[None], np.array([points.below]))
    theta = float(np.clip(1 / max(float(slope[0]), 1e-3), 1e-4, 1e3))
    return -float(intercept[0]) * theta, float(np.log(theta))


def _information(points: TailPoints, params: Floats, free: tuple[int, ...]) -> Floats:
    """Observed information of the free parameters, by central differences of the score."""
    below = np.asarray(points.below)
    step = np.maximum(1e-4, 1e-4 * np.abs(params))
    rows = []
    for j in free:
        shift = np.zeros(3)
        shift[j] = step[j]
        low = params - shift
        width = 2 * step[j]
        if j == 2 and low[2] < 0:
            low, width = params, step[j]
        _, at_low = likelihood_and_score(points, points.weight, below, low)
        _, at_high = likelihood_and_score(points, points.weight, below, params + shift)
        rows.append((at_low - at_high)[list(free)] / width)
    matrix: Floats = np.array(rows)
    return np.asarray((matrix + matrix.T) / 2)


def _maximise(points: TailPoints, start: Floats, free: tuple[int, ...]) -> tuple[Floats, float]:
    from scipy.optimize import minimize  # here, so that theorems load without scipy

    n, below, index = points.size, np.asarray(points.below), list(free)

    def negative(values: Floats) -> tuple[float, Floats]:
        params = start.copy()
        params[index] = values
        with np.errstate(over="ignore", invalid="ignore"):
            value, slope = likelihood_and_score(points, points.weight, below, params)
        if not (np.isfinite(value) and np.isfinite(slope[index]).all()):
            return 1e10, np.zeros(len(index))
        return -float(value) / n, -slope[index] / n

    span = float(points.z[0] - points.z[-1])
    bounds = [
        (start[0] - 20 * span - 5, start[0] + 20 * span + 5),
        (start[1] - 6, start[1] + 6),
        (0.0, XI_MAX),
    ]
    result = minimize(
        negative,
        start[index],
        jac=True,
        method="L-BFGS-B",
        bounds=[bounds[j] for j in free],
        options={"maxiter": 200, "ftol": 1e-13, "gtol": 1e-9},
    )
    params = start.copy()
    params[index] = result.x
    return params, -float(result.fun) * n


def _finish(points: TailPoints, params: Floats, loglik: float, free: tuple[int, ...]) -> WeibullFit:
    information = _information(points, params, free)
    covariance = np.asarray(np.linalg.pinv(information, hermitian=True), dtype=np.float64)
    log_scale, log_theta, xi = (float(p) for p in params)
    return WeibullFit(log_scale, log_theta, xi, loglik, free, covariance)


def fit_weibull(points: TailPoints) -> WeibullFit:
    """Fit the straight curve: xi = 0, theta and K by maximum likelihood."""
    log_scale, log_theta = _start(points)
    params, loglik = _maximise(points, np.array([log_scale, log_theta, 0.0]), (0, 1))
    return _finish(points, params, loglik, (0, 1))


def fit_bent(points: TailPoints, straight: WeibullFit) -> WeibullFit:
    """Fit the curve with xi >= 0 free, from several bends of the straight fit."""
    best = straight.params, straight.loglik
    for xi in (0.2, 1.0, 8.0):
        start = straight.params + np.array([0.0, -0.5 * np.log1p(2 * xi), xi])
        found = _maximise(points, start, (0, 1, 2))
        if found[1] > best[1]:
            best = found
    params, loglik = best
    return _finish(points, params, loglik, (0, 1) if params[2] > XI_HELD else (0, 1, 2))


def bootstrap(
    points: TailPoints, fitted: WeibullFit, repeats: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Refit parameters (3, B) on resampled data; return also the weights and the counts below.

    Each of the n observations is drawn a Poisson(1) number of times. The refit is Newton's
    iteration with the information of the original fit, which contracts by a factor of the order
    of 1/sqrt(number of points) per step; it is kept within eight standard errors of the fit.
    """
    weight = rng.poisson(points.weight, size=(repeats, points.weight.size)).astype(np.float64)
    below = rng.poisson(points.below, size=repeats).astype(np.float64)
    refits = [
        _refit(points, fitted, weight[first : first + ROWS], below[first : first + ROWS])
        for first in range(0, repeats, ROWS)
    ]
    return np.concatenate(refits, axis=1), weight, below


def _refit(points: TailPoints, fitted: WeibullFit, weight: Floats, below: Floats) -> Floats:
    """Newton's iteration on some rows of resampled weights."""
    params = np.repeat(fitted.params[:, None, None], below.size, axis=1)
    free = list(fitted.free)
    error = np.sqrt(np.maximum(np.diag(fitted.covariance), 0.0))[:, None] + 1e-12
    centre = fitted.params[free, None]
    for _ in range(8):
        step = fitted.covariance @ likelihood_and_score(points, weight, below, params)[1][free]
        moved = params[free, :, 0] + np.clip(step, -3 * error, 3 * error)
        params[free, :, 0] = np.clip(moved, centre - 8 * error, centre + 8 * error)
        params[2] = np.clip(params[2], 0.0, XI_MAX)
        if (np.abs(step) < 0.03 * error).all():
            break
    return np.asarray(params[:, :, 0])
