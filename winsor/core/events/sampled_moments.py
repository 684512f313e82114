"""From likelihood-ratio moments to the Renyi divergence of a Poisson-sampled step.

Let r be the likelihood ratio of the step with the record in the batch against the step without
it, and A_k >= E[r^k] bounds that grow with k, A_0 = A_1 = 1. The divergence of the sampled step is
D_a = psi(a)/(a - 1) with psi(a) = log E[(1 - q + q r)^a], and psi is bounded

* at integers by the binomial sum  log(sum_k C(a,k) (1-q)^(a-k) q^k A_k)  (ModelMix, Theorem 4.1);
* for 1 < a < 2, where E[r] = 1 makes E[(1 - q + q r)^a] = 1 + E[phi_a(q(r - 1))] with
  phi_a(y) = (1 + y)^a - 1 - a y, by  log(1 + kappa (A_b - 1))  for every b in [a, 2],
  kappa = sup_{y >= -1} phi_a(q y)/phi_b(y);
* in between by the chord, as psi is convex in a and psi(1) = 0.

Guarantee
---------
All bounds are upper bounds, including kappa's supremum: phi_a(y)/y^2 is the integral over u in
[0,1] of a(a-1)(1-u)(1+uy)^(a-2), which falls in y for a <= 2, so that on an interval the quotient
is at most its numerator on the left over its denominator on the right. Beyond the last point
phi_a(x) <= x^a, and phi_b(y)/y^b grows with y (concavity of t^(b-1)). For b = a the supremum is
q^a: phi_a(u)/|u|^a grows with |u| on both sides of 0 (on the left by Bernoulli's inequality).

The direction: D_a of (sampled step) against (step without the record) is the larger of the two for
every a when a reflection swaps the two unsampled laws (Mironov, Talwar, Zhang 2019, Theorem 5). A
symmetric product density and its shift by v are swapped by x -> v - x.

Replace-one is removal followed by addition. With N the law without either record, Hoelder's
inequality gives  D_a(P||R) <= (a - 1/2)/(a - 1) D_2a(P||N) + D_(2a-1)(N||R)  (Mironov 2017,
Proposition 11), and both terms are covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from winsor.core.contract import Neighbouring

Array = NDArray[np.float64]

_FRACTIONAL = (1.02, 1.05, *(1 + x / 10 for x in range(1, 11)))
_SPARSE = tuple(round(20 * 1.09**i) for i in range(31))
ORDERS: Array = np.array([*_FRACTIONAL, *range(3, 20), *_SPARSE])
"""Orders at which moments are computed; h_k is convex in k, so between them the chord serves."""

_ROUNDING = 1e-9
_KAPPA_SLACK = 3e-4
_SERIES_BELOW = 1e-3


def _curvature(order: float, y: Array) -> Array:
    """phi_order(y)/y^2 for y >= -1 and 1 < order <= 2; falls with y."""
    near = np.abs(y) < _SERIES_BELOW
    a = order
    series = 1 + (a - 2) / 3 * y * (1 + (a - 3) / 4 * y * (1 + (a - 4) / 5 * y))
    safe = np.where(near, 1.0, y)
    with np.errstate(divide="ignore"):
        power = np.expm1(a * np.log1p(safe))
    return np.where(near, a * (a - 1) / 2 * series, (power - a * safe) / safe**2)


@lru_cache(maxsize=65536)
def kappa(a: float, b: float, q: float) -> float:
    """An upper bound on sup_{y >= -1} phi_a(q y)/phi_b(y) for 1 < a <= b <= 2, within 0.03 %.

    Branch and bound: intervals whose bound is not above the largest value seen are settled, the
    others are cut into eight.
    """
    if a == b:
        return q**a * (1 + _ROUNDING)
    far = 1e6 / q
    edges = np.concatenate([np.linspace(-1, 0, 65), np.geomspace(1e-3, far, 512)])
    left, right = edges[:-1], edges[1:]
    attained, unsettled = 0.0, math.inf
    for _ in range(8):
        top = q * q * _curvature(a, q * left)
        attained = max(attained, float(np.max(top / _curvature(b, left))))
        upper = top / _curvature(b, right)
        open_ = upper > attained * (1 + _KAPPA_SLACK)
        unsettled = float(np.max(upper, where=open_, initial=0.0))
        if unsettled == 0:
            break
        cut = np.linspace(left[open_], right[open_], 9)
        left, right = cut[:-1].ravel(), cut[1:].ravel()
    beyond = q**a * far ** (a - 2) / float(_curvature(b, np.array([far]))[0])
    return max(attained * (1 + _KAPPA_SLACK), unsettled, beyond) * (1 + _ROUNDING)


def lower_hull(x: Array, y: Array, at: Array) -> Array:
    """The best chord bound at ``at`` on a convex function known to be <= y at increasing x.

    inf outside the range of x.
    """
    kept: list[int] = []
    for i in np.flatnonzero(np.isfinite(y)):
        while len(kept) > 1:
            first, last = kept[-2], kept[-1]
            if (y[last] - y[first]) * (x[i] - x[first]) < (y[i] - y[first]) * (x[last] - x[first]):
                break
            kept.pop()
        kept.append(int(i))
    return np.interp(at, x[kept], y[kept], left=np.inf, right=np.inf)


@lru_cache(maxsize=64)
def _log_binomial(largest: int, q: float) -> Array:
    """log of the binomial probabilities: row a - 2, column k - 2, for 2 <= k <= a <= largest."""
    a = np.arange(2, largest + 1)[:, None].astype(float)
    k = np.arange(2, largest + 1)[None, :].astype(float)
    with np.errstate(invalid="ignore"):
        ways = special.gammaln(a + 1) - special.gammaln(k + 1) - special.gammaln(a - k + 1)
        table = ways + special.xlogy(k, q) + special.xlog1py(a - k, -q)
    return np.where(k <= a, table, -np.inf)


def _log_above_one(log_moment: Array) -> Array:
    """log(A - 1) from log A."""
    with np.errstate(divide="ignore"):
        return np.where(log_moment > 0, log_moment + np.log(-np.expm1(-log_moment)), -np.inf)


def integer_bounds(log_moments: Array, q: float) -> Array:
    """psi(a) for a = 2, 3, ...; ``log_moments`` holds log A_2, log A_3, ..."""
    rows = _log_binomial(log_moments.size + 1, q) + _log_above_one(log_moments)[None, :]
    return np.logaddexp(0.0, special.logsumexp(rows, axis=1)) * (1 + _ROUNDING)


def fractional_bound(a: float, b: Array, log_moments: Array, q: float) -> float:
    """psi(a) for 1 < a < 2, from log A_b at several b in [a, 2]."""
    usable = b >= a
    factors = np.log([kappa(a, float(order), q) for order in b[usable]])
    best = float(np.min(factors + _log_above_one(log_moments[usable])))
    return float(np.logaddexp(0.0, best)) * (1 + _ROUNDING)


def sampled_rdp(moment_orders: Array, log_moments: Array, q: float, orders: Array) -> Array:
    """Certified RDP at ``orders`` > 1 of a step sampled with probability q.

    ``log_moments`` bounds log E[r^k] at the increasing ``moment_orders`` > 1, some of them at most
    2; the logarithm is convex in k and 0 at k = 1, so integers in between are served by chords.
    Orders above the largest moment get inf.
    """
    known = np.isfinite(log_moments)
    k = np.concatenate([[1.0], moment_orders[known]])
    log_a = np.concatenate([[0.0], log_moments[known]])
    integers = np.arange(2.0, math.floor(k[-1]) + 1)
    whole = integer_bounds(lower_hull(k, log_a, integers), q) if integers.size else np.empty(0)
    small = (k > 1) & (k <= 2)
    b, log_b = k[small], log_a[small]
    fractions = np.union1d(b, orders[orders < 2])
    fractions = fractions[(fractions < 2) & (fractions <= b.max(initial=0.0))]
    between = [fractional_bound(float(a), b, log_b, q) for a in fractions]
    x = np.concatenate([[1.0], fractions, integers])
    psi = np.concatenate([[0.0], between, whole])
    return lower_hull(x, psi, orders) / (orders - 1)


def under(relation: Neighbouring, add_remove: Callable[[Array], Array], orders: Array) -> Array:
    """RDP at ``orders`` under a relation, from a function that gives it under add/remove-one."""
    if relation is Neighbouring.ADD_OR_REMOVE_ONE:
        return add_remove(orders)
    both = add_remove(np.concatenate([2 * orders, 2 * orders - 1]))
    return (orders - 0.5) / (orders - 1) * both[: orders.size] + both[orders.size :]
