"""The iterative mean: noisy group means, then steps towards the bulk of them.

    Q_j, j = 1..k            noisy means of groups of clipped rows            (`groups.py`)
    c_1, c_2, ...            from a start outside to the edge of their bulk   (`updating.py`)

Paper 2 (Zhao et al. 2025), Algorithm 3, with k of Lemma 6, t_c of Lemma 8 and a start outside.
Other ways to combine the Q_j are offered; their geometric median is nearer to the mean, in the
middle of the bulk, where the iteration stops at its edge. `docs/papers.md` sets the two side by
side.

Guarantee
---------
Everything after the Q_j is post-processing, so c_1, t_c and the combination cost nothing. Their
privacy is that of `groups.py`: exact for partitions, amplified by sampling for Poisson groups. With
``rho``, a partition under replace-one has exactly the noise of (19), s^2 = 2R^2/(rho m^2). The
paper's amplification by shuffling (Theorem 6) is unsound and is never used; by its name it runs in
`winsor_papers.sco.published`.

Error
-----
(26) with the smallest constant C_0 that Gaussian group means leave possible (`least_constant`), for
the paper does not name it. For the same budget a partition into k groups has sqrt(k) times the
noise of `clipped_mean`. Lemma 6 asks for k = 800 ln(1/beta), the default as far as groups keep ten
records, but only its proof needs so many: ``groups=10`` is far more accurate (20,000 Student rows
at epsilon 1: error 0.04 for 4.6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import quiet, row_norms
from winsor.core.checks import probability
from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import key_for
from winsor.planning.budget import Target
from winsor.planning.shares import Session
from winsor.tables.inputs import as_centre
from winsor.tables.means.clipped import Moments, clipped_sum, settle_radius
from winsor.tables.means.groups import Groups
from winsor.tables.means.radius import PrivateRadius
from winsor.tables.means.result import MeanEstimate
from winsor.tables.means.updating import checked_updating, combined, least_constant
from winsor.tables.units import Unit, protected_rows

if TYPE_CHECKING:
    from winsor.tails.theorems import MeanError

Array = NDArray[np.float64]


def default_groups(beta: float, n: int) -> int:
    """Return k of Lemma 6, 800 ln(1/beta), as far as groups keep ten records; at least 10, at most
    n."""
    from winsor.tails.theorems import iterative_groups

    return min(n, max(10, min(iterative_groups(beta), n // 10)))


@quiet
def iterative_mean(
    x: ArrayLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    radius: float | PrivateRadius | None = None,
    moments: tuple[float, float] | None = None,
    centre: ArrayLike | None = None,
    beta: float = 0.05,
    groups: int | None = None,
    grouping: str = "poisson",
    combine: str = "iterative",
    start: str | ArrayLike = "outside",
    updates: int | None = None,
    unit: Unit | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Estimate the mean of heavy-tailed rows from noisy group means (paper 2, Algorithm 3).

    Parameters as in `clipped_mean`, and

    groups
        k; None takes ``800 ln(1/beta)`` of Lemma 6, or n/10 if that is smaller. At most n.
    grouping
        ``"poisson"`` (amplified by sampling) or ``"partition"``; ``rho`` needs a partition.
    combine
        ``"iterative"`` (Algorithm 3), ``"coordinate_median"``, ``"geometric_median"``, ``"mean"``.
    start
        c_1: ``"outside"`` (a corner of the box around the group means), ``"centre"``,
        ``"geometric_median"`` (from which nothing is updated), or a public point.
    updates
        t_c: how many points are visited at most; None takes that of Lemma 8.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_t(3, size=(20_000, 2)) + 1.0
    >>> result = iterative_mean(x, epsilon=1.0, moments=(2.5, 3.0), groups=10, random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 0.2), result.guarantee.epsilon <= 1.0
    (True, True)
    >>> result.updates > 0
    True
    """
    rows, column, conditions = protected_rows(x, unit)
    n, d = rows.shape
    probability("beta", beta)
    first = checked_updating(combine, start, updates, d)
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    point = as_centre(centre, d)
    settings = ("iterative mean", target, radius, moments, groups, grouping, combine)
    key = key_for(random_state, None, *settings, point, rows)
    parts = Groups(
        n, default_groups(beta, n) if groups is None else groups, grouping, target.relation
    )
    norms = row_norms(rows, point)
    config = {"method": "iterative_mean", "n": n, "d": d, "k": parts.k, "grouping": grouping}
    session = Session.open(target, key, config, unit=unit)
    assumed = Moments.of(moments, d, parts.k)
    reach, multiplier = settle_radius(radius, parts.payment(1.0), session, norms, d, assumed)
    receipt = parts.pay(session.door, Gaussian(multiplier), reach, d)
    members = parts.members(key, receipt.first)
    sums = np.stack([clipped_sum(rows[who], point, reach) for who in members])
    means = parts.released_means(sums, receipt)
    found = combined(means, combine, first if isinstance(first, str) else first - point, updates)
    estimate = found.point + point
    shift = receipt.sensitivity.under(target.relation)
    amplified = parts.poisson or isinstance(radius, PrivateRadius)
    return MeanEstimate(
        estimate=estimate[0] if column else estimate,
        guarantee=session.guarantee(*conditions),
        error_bound=_error_bound(assumed, reach, receipt.std, n, beta),
        radius=reach,
        noise_std=receipt.std,
        rho=None if amplified else (shift / receipt.std) ** 2 / 2,
        ledger=session.ledger,
        group_means=means + point,
        updates=found.updates,
    )


def _error_bound(
    assumed: Moments | None, radius: float, noise_std: float, n: int, beta: float
) -> MeanError | None:
    if assumed is None:
        return None
    from winsor.tails.theorems import iterative_error

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
        constant=least_constant(assumed.groups, assumed.d, beta),
    )
