"""The iterative mean: noisy group means, then steps towards the bulk of them.

    Q_j, j = 1..k            noisy means of groups of clipped rows            (`groups.py`)
    c_1                      geometric median of the Q_j (the paper leaves it open)
    d_l, u_l = (23) at c_l                                                    (`direction.py`)
    c_{l+1} = c_l + d_l u_l / 4,   l = 1..t_c;    the answer is the c_l with the smallest d_l

Paper 2 (Zhao et al. 2025), Algorithm 3. Coordinate median, geometric median and plain mean of the
Q_j are offered as other ways to combine them.

Guarantee
---------
Everything after the Q_j is post-processing. Their privacy is that of `groups.py`: exact for
partitions, amplified by sampling for Poisson groups. The paper's amplification by shuffling
(Theorem 6) is unsound and is never used.

Error
-----
(26) with its unnamed constant C_0 as ``error_constant`` (default 1): a bound up to that constant.
The noise term carries sqrt(k): for the same budget a partition into k groups has sqrt(k) times the
noise of `clipped_mean`. It pays where sub-exponential tails of the plain mean hurt more than that.
Lemma 6 asks for k = 800 ln(1/beta); the default here is 8 ln(1/beta), because only the proof needs
the larger one and every group costs noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.checks import as_delta, as_relation, choice, probability
from winsor.contract import Neighbouring
from winsor.ledger.ledger import Ledger
from winsor.means.budget import Target
from winsor.means.clipped import Moments, clip_factors, distances, settle_radius
from winsor.means.direction import distance_and_direction, lexicographic
from winsor.means.groups import Groups
from winsor.means.inputs import as_centre, as_key, as_rows
from winsor.means.medians import coordinate_median, geometric_median
from winsor.means.radius import PrivateRadius
from winsor.means.result import MeanEstimate
from winsor.mechanisms.gaussian import Gaussian
from winsor.release.prepaid import PrepaidDoor
from winsor.theory import MeanError, iterative_error

Array = NDArray[np.float64]

STEP = 0.25  # eta of Lemma 8
COMBINATIONS = ("iterative", "coordinate_median", "geometric_median", "mean")


def default_groups(beta: float, n: int) -> int:
    """8 ln(1/beta), at least 10, at most n."""
    return min(n, max(10, math.ceil(8 * math.log(1 / beta))))


def iterative_mean(
    x: ArrayLike,
    *,
    epsilon: float,
    delta: float | None = None,
    radius: float | PrivateRadius | None = None,
    moments: tuple[float, float] | None = None,
    centre: ArrayLike | None = None,
    beta: float = 0.05,
    groups: int | None = None,
    grouping: str = "poisson",
    combine: str = "iterative",
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Private mean of heavy-tailed rows from noisy group means (paper 2, Algorithm 3).

    Parameters as in `clipped_mean`, and

    groups
        k; None takes ``8 ln(1/beta)``. At most n.
    grouping
        ``"poisson"`` (amplified by sampling) or ``"partition"``.
    combine
        ``"iterative"`` (Algorithm 3), ``"coordinate_median"``, ``"geometric_median"``, ``"mean"``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_t(3, size=(20_000, 2)) + 1.0
    >>> result = iterative_mean(x, epsilon=1.0, moments=(2.5, 3.0), random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 0.2), result.guarantee.epsilon <= 1.0
    (True, True)
    """
    rows, column = as_rows(x)
    n, d = rows.shape
    probability("beta", beta)
    choice("combine", combine, COMBINATIONS)
    target = Target(epsilon, as_delta(delta, n, allow_large_delta), None, as_relation(relation))
    point = as_centre(centre, d)
    settings = ("iterative mean", target, radius, moments, groups, grouping, combine)
    key = as_key(random_state, *settings, point, rows)
    parts = Groups(
        n, default_groups(beta, n) if groups is None else groups, grouping, target.relation
    )
    norms = distances(rows, point)
    config = {"method": "iterative_mean", "n": n, "d": d, "k": parts.k, "grouping": grouping}
    door = PrepaidDoor(Ledger(config), target.relation, key)
    assumed = Moments.of(moments, d, parts.k)
    reach, multiplier = settle_radius(radius, parts.payment(1.0), target, norms, d, assumed, door)
    receipt = parts.pay(door, Gaussian(multiplier), reach, d)
    members = parts.members(key, receipt.first)
    factors = clip_factors(norms, reach)
    sums = np.stack([factors[who] @ (rows[who] - point) for who in members])
    means = parts.released_means(sums, receipt)
    estimate = combined(means, combine) + point
    amplified = parts.poisson or isinstance(radius, PrivateRadius)
    shift = parts.sensitivity(reach).under(target.relation)
    return MeanEstimate(
        estimate=estimate[0] if column else estimate,
        guarantee=door.guarantee(target.delta, (f"n = {n} is public",)),
        error_bound=_error_bound(assumed, reach, receipt.std, n, beta),
        radius=reach,
        noise_std=receipt.std,
        rho=None if amplified else (shift / receipt.std) ** 2 / 2,
        ledger=door.ledger,
        group_means=means + point,
    )


def _error_bound(
    assumed: Moments | None, radius: float, noise_std: float, n: int, beta: float
) -> MeanError | None:
    if assumed is None:
        return None
    rho = 2 * (radius / (noise_std * (n / assumed.groups))) ** 2  # (19): s^2 = 2R^2/(rho m^2)
    return iterative_error(
        radius,
        p=assumed.p,
        moment=assumed.moment,
        n=n,
        d=assumed.d,
        rho=rho,
        beta=beta,
        groups=assumed.groups,
    )


def combined(means: Array, combine: str = "iterative", steps: int = 40) -> Array:
    """One centre from the (k, d) noisy group means; a function of their set, bit for bit."""
    match combine:
        case "mean":
            return lexicographic(means).mean(axis=0)
        case "coordinate_median":
            return coordinate_median(means)
        case "geometric_median":
            return geometric_median(means)
    return iterative_centre(means, steps)


def iterative_centre(means: Array, steps: int = 40) -> Array:
    """Lines 5 to 10 of Algorithm 3, from the geometric median."""
    cloud = lexicographic(means)
    centre = geometric_median(cloud)
    best, answer = math.inf, centre
    for _ in range(steps):
        distance, direction = distance_and_direction(cloud, centre)
        if distance < best:
            best, answer = distance, centre
        if distance == 0:
            break  # no direction has 90 % of the cloud on its far side: c is inside the bulk
        centre = centre + STEP * distance * direction
    return answer
