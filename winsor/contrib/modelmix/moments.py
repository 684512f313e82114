"""Certified upper bounds on the likelihood-ratio moments of shifted ModelMix noise.

    h_k(v) = log E[ r^k ],    r(x) = f(x - v)/f(x),  x ~ f,  k > 1 real

with f the density of `Mixed`. Three facts make the numbers bounds rather than estimates.

1. *Between nodes* (`log_moments`). E[r] = 1, so E[r^k] - 1 = E[phi_k(r)] with the convex
   phi_k(r) = r^k - 1 - k(r - 1) >= 0. r is nondecreasing because f is log-concave; on a cell it
   stays between its values at the two ends, and its mean there is the ratio of two exact masses.
   Of all variables with that range and mean the one on the two end points has the largest
   E[phi_k] (Edmundson-Madansky): the integral is at most a weighted sum of phi_k over nodes. It is
   the connect-the-dots construction of privacy loss distributions, applied to one coordinate. No
   derivative is estimated, and the excess falls with the square of the cell.
2. *Between shifts* (`rates`). e^h_k(v) is the integral over y of f(y)^k f(y + v)^(1-k), whose
   integrand is log-convex in v as log f is concave and 1 - k < 0. Sums of log-convex functions are
   log-convex, so **h_k is convex in v**; by the symmetry of f it is even, hence nondecreasing for
   v >= 0. Between two shifts it lies below its chord.
3. *Towards no shift* (`_rates_near_zero`). log r_v(x) is concave in v and vanishes at v = 0. So
   0 <= log r_v <= -v (log f)'(x) where it is positive, and for v <= u it is at least
   -v |(log f)'(x - u)| where negative. With phi~_k(L) = e^(kL) - 1 - k(e^L - 1), whose power series
   has no negative coefficient: phi~_k(L)/L^2 grows with L >= 0, and phi~_k(L) <= k(k-1)L^2/2 for
   L <= 0. Hence h_k(v)/v^2 <= (1/u^2) E[max of the two bounds at u] for all 0 < v <= u.

Rounding: logarithms of densities and masses are good to 5e-12 (tests compare with 60 digits), the
positions of shifted nodes to 3e-13 at the largest width, where the log density has slope at most
46. All logarithms are moved outward by more than both, so that the error is on the safe side.

Shifts and widths here are in units of the noise scale.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from winsor.contrib.modelmix.density import GAUSSIAN, LAPLACE, Array, Mixed
from winsor.core.events.sampled_moments import ORDERS

LARGEST_REACH = 35.0
"""Largest order times shift: beyond, e^h overflows and no epsilon of use could come out."""

_STEP = 0.05  # cell width where the density bends
_FEWEST_CELLS = 200  # a narrow stretch may still hold all of the change in the ratio
_DEPTH = 9.0  # how far inside an edge the density still bends: Q(9) = 1e-19
_MARGIN = 10.0
_LAPLACE_DEPTH = 30.0  # the same for Laplace noise, whose tails are longer: e^-30 = 1e-13
_LAPLACE_REACH = 600.0
_SHARE_ERROR = 1e-10  # on ratios of masses
_LOG_ERROR = 3e-11  # on log likelihood ratios
_SUM_ERROR = 1e-9  # relative, on the sums over nodes

_SMALLEST_SHIFT = 3e-4
_SHIFT_RATIO = 1.1
_FINE_STEP = 1e-3


def excess(log_ratio: Array, orders: Array) -> Array:
    """Return phi~_k(L) = e^(kL) - 1 - k(e^L - 1) >= 0, a row per order, exact near L = 0."""
    k = orders[:, None]
    reach = k * log_ratio
    near = np.maximum(np.abs(reach), np.abs(log_ratio)) < 1e-3
    with np.errstate(over="ignore"):
        direct = np.expm1(np.where(near, 1.0, reach)) - k * np.expm1(log_ratio)
    tail = 1 + log_ratio * ((k + 1) / 3 + (k * k + k + 1) / 12 * log_ratio)
    return np.where(near, k * (k - 1) / 2 * log_ratio**2 * tail, direct)


def _spread(first: float, last: float) -> Array:
    return np.linspace(first, last, max(math.ceil((last - first) / _STEP), _FEWEST_CELLS) + 1)


def _nodes(first: float, last: float, bends: tuple[float, float]) -> Array:
    """Fine nodes from first to bends[0] and from bends[1] to last; one cell across the middle."""
    left_end, right_start = bends
    if left_end >= right_start:
        return _spread(first, last)
    return np.concatenate([_spread(first, left_end), _spread(right_start, last)])


def _log_ratios(mixed: Mixed, nodes: Array, shift: float) -> Array:
    """log r at the nodes, rounded away from zero."""
    ratios = mixed.log_density(nodes - shift) - mixed.log_density(nodes)
    return ratios + np.copysign(_LOG_ERROR, ratios)


def _log_node_weights(mixed: Mixed, nodes: Array, log_ratios: Array, shift: float) -> Array:
    """log of the mass each node receives when every cell is pushed onto its two ends."""
    log_mass = mixed.log_cells(nodes)
    log_mean = mixed.log_cells(nodes - shift) - log_mass  # log of the mean of r over the cell
    low, high = log_ratios[:-1], log_ratios[1:]
    # share of the upper end: (mean - low)/(high - low), in units of `low` to avoid overflow
    span = np.expm1(high - low)
    share = np.expm1(log_mean - low) / np.maximum(span, 1e-300)
    slack = _SHARE_ERROR * np.exp(np.maximum(log_mean - low, 0)) / np.maximum(span, 1e-300)
    share = np.where(log_mean > 0, share + slack, share - slack)  # phi_k grows away from r = 1
    share = np.clip(share, 0.0, 1.0)
    across = (low < 0) & (high > 0)  # there phi_k is small, and each end may take all the mass
    with np.errstate(divide="ignore"):
        to_upper = log_mass + np.log(np.where(across, 1.0, share))
        to_lower = log_mass + np.log(np.where(across, 1.0, 1 - share))
    weights = np.full_like(nodes, -np.inf)
    weights[1:] = to_upper
    weights[:-1] = np.logaddexp(weights[:-1], to_lower)
    return weights


def _weighted_excess(log_weights: Array, log_ratios: Array, orders: Array) -> Array:
    """sum over nodes of weight times phi~_k(log ratio), for every order."""
    large = log_ratios > 0.5
    small = ~large
    total = excess(log_ratios[small], orders) @ np.exp(log_weights[small])
    weight, ratio = log_weights[large], log_ratios[large]
    powers = np.exp(weight + orders[:, None] * ratio).sum(axis=1)
    return (
        total
        + powers
        - np.exp(weight).sum()
        - orders * (np.exp(weight + ratio).sum() - np.exp(weight).sum())
    )


def _gaussian_tail(mixed: Mixed, end: float, shift: float, orders: Array) -> Array:
    """Bound on the integral of f(x - v)^k f(x)^(1-k) beyond ``end``.

    The logarithm of the integrand has slope at most kv - decay(x), since decay grows with slope at
    most 1; beyond ``end`` the integrand falls at least geometrically.
    """
    x = np.array([end])
    at_end = float(mixed.log_density(x)[0])
    ratio = float(mixed.log_density(x - shift)[0]) - at_end + _LOG_ERROR
    fall = float(mixed.decay(x)[0]) * (1 - _SHARE_ERROR) - orders * shift
    return np.exp(at_end + _LOG_ERROR + orders * ratio) / fall


@lru_cache(maxsize=8192)
def log_moments(mixed: Mixed, shift: float) -> Array:
    """Return upper bounds on h_k(shift) for every k of `ORDERS`, Gaussian noise, shift > 0.

    inf where order times shift is beyond `LARGEST_REACH`.
    """
    result = np.full_like(ORDERS, np.inf)
    usable = ORDERS * shift <= LARGEST_REACH
    orders = ORDERS[usable]
    half, reach = mixed.width / 2, float(orders.max(initial=0.0)) * shift
    bends = (-half + shift + _DEPTH, half - _DEPTH)
    nodes = _nodes(-half - _MARGIN, half + reach + _MARGIN, bends)
    ratios = _log_ratios(mixed, nodes, shift)
    weights = _log_node_weights(mixed, nodes, ratios, shift)
    total = _weighted_excess(weights, ratios, orders)
    total += _gaussian_tail(mixed, float(nodes[-1]), shift, orders)
    # Left of the nodes 0 < r < 1, where phi_k <= phi_k(0) = k - 1.
    total += (orders - 1) * math.exp(mixed.log_upper_tail(-float(nodes[0])))
    result[usable] = np.log1p(total * (1 + _SUM_ERROR))
    result.setflags(write=False)
    return result


@lru_cache(maxsize=8192)
def laplace_log_moments(width: float, shift: float) -> Array:
    """Return upper bounds on h_k(shift) for every k of `ORDERS`, Laplace noise, shift > 0.

    Left of the uniform's support r is e^-shift, right of the shifted support e^shift.
    """
    mixed, half = Mixed(LAPLACE, width), width / 2
    result = np.full_like(ORDERS, np.inf)
    usable = ORDERS * shift <= _LAPLACE_REACH
    orders = ORDERS[usable]
    bends = (-half + shift + _LAPLACE_DEPTH, half - _LAPLACE_DEPTH)
    nodes = _nodes(-half, half + shift, bends)
    ratios = np.clip(_log_ratios(mixed, nodes, shift), -shift, shift)
    weights = _log_node_weights(mixed, nodes, ratios, shift)
    total = _weighted_excess(weights, ratios, orders)
    ends = np.array([-shift, shift])
    outside = np.array([mixed.log_upper_tail(half), mixed.log_upper_tail(half + shift)])
    total += _weighted_excess(outside, ends, orders)
    result[usable] = np.log1p(total * (1 + _SUM_ERROR))
    result.setflags(write=False)
    return result


@lru_cache(maxsize=512)
def _rates_near_zero(width: float) -> Array:
    """Upper bounds on sup of h_k(v)/v^2 over 0 < v <= _SMALLEST_SHIFT (fact 3 above)."""
    mixed, u = Mixed(GAUSSIAN, width), _SMALLEST_SHIFT
    edge = max(width / 2 - _DEPTH, 0.0)
    outer = width / 2 + _MARGIN
    right = np.linspace(edge, outer, math.ceil((outer - edge) / _FINE_STEP) + 1)
    nodes = np.unique(np.concatenate([-right, right]))
    mass = np.exp(mixed.log_cells(nodes)) * (1 + _SHARE_ERROR)
    rise = np.maximum(mixed.decay(nodes[1:]), 0) * (1 + _SHARE_ERROR)
    fall = np.maximum(-mixed.decay(nodes[:-1] - u), 0) * (1 + _SHARE_ERROR)
    quadratic = (ORDERS * (ORDERS - 1) / 2)[:, None]
    bounds = np.maximum(excess(u * rise, ORDERS) / u**2, quadratic * fall**2)
    total = bounds @ mass
    # Beyond the nodes: decay(x) <= decay(end) + (x - end), and f falls at least geometrically.
    end = np.array([outer])
    decay, height = float(mixed.decay(end)[0]), math.exp(float(mixed.log_density(end)[0]))
    right_tail = np.exp(ORDERS * u * decay) * height / (decay - ORDERS * u) / u**2
    # On the left |decay(x - u)| <= d + t at distance t: integrate (d + t)^2 e^(-d' t).
    d = -float(mixed.decay(-end - u)[0])
    left_tail = quadratic[:, 0] * height * (d**2 / decay + 2 * d / decay**2 + 2 / decay**3)
    return (total + right_tail + left_tail) * (1 + _SUM_ERROR)


def _shifts(bound: float) -> list[float]:
    """Shifts from the smallest up to ``bound``; all but the last are the same for every bound."""
    count = math.ceil(math.log(bound / _SMALLEST_SHIFT) / math.log(_SHIFT_RATIO) - 1e-9)
    return [*(_SMALLEST_SHIFT * _SHIFT_RATIO**i for i in range(count)), bound]


def _largest_on_chord(left: float, right: float, at_left: Array, at_right: Array) -> Array:
    """max over v in [left, right] of chord(v)/v^2.

    (a + b v)/v^2 has its only stationary point at v = -2a/b; with a < 0 < b that is a maximum.
    """
    slope = (at_right - at_left) / (right - left)
    start = at_left - slope * left
    with np.errstate(divide="ignore", invalid="ignore"):
        turning = -2 * start / slope
        inside = (turning > left) & (turning < right)
        peak = np.where(inside, -(slope**2) / (4 * np.minimum(start, -1e-300)), 0.0)
    return np.maximum.reduce([at_left / left**2, at_right / right**2, peak])


@lru_cache(maxsize=4096)
def rates(width: float, bound: float) -> Array:
    """Return lam_k >= sup over 0 < v <= bound of h_k(v)/v^2, for every k of `ORDERS`.

    Then sum_j h_k(v_j) <= lam_k sum_j v_j^2 for every way to spread a shift over coordinates of at
    most ``bound`` each. Never above k(k-1)/2, the value of the noise without mixing.
    """
    mixed = Mixed(GAUSSIAN, width)
    result = _rates_near_zero(width).copy()
    if bound > _SMALLEST_SHIFT:
        shifts = _shifts(bound)
        values = [log_moments(mixed, v) for v in shifts]
        for i in range(len(shifts) - 1):
            known = np.isfinite(values[i + 1])
            piece = np.full_like(result, np.inf)
            piece[known] = _largest_on_chord(
                shifts[i], shifts[i + 1], values[i][known], values[i + 1][known]
            )
            result = np.maximum(result, piece)
    result = np.minimum(result * (1 + _SUM_ERROR), ORDERS * (ORDERS - 1) / 2)
    result.setflags(write=False)
    return result
