"""The clipped mean: clip every row to a ball, average, add Gaussian noise.

    y_i = c + min(1, R/|x_i - c|) (x_i - c),    mu = (1/n) sum_i y_i + N(0, s^2 I)

Paper 2 (Zhao et al. 2025), Algorithm 2, with R from (16), by hand, or from a private quantile of
the norms (`PrivateRadius`).

Guarantee
---------
Every y_i lies in a ball of radius R about the public centre c and depends on row i only; n is the
public divisor. One record moves the mean by at most R/n when added or removed, by at most 2R/n when
replaced (Lemma 4). One Gaussian release: epsilon from its exact profile, not through zCDP; with
``rho`` given, s^2 = 2R^2/(rho n^2) under replace-one, exactly the paper's noise.

The paper's moments are about the origin; with ``centre`` they are about c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic import rows as arithmetic
from winsor.core.checks import positive, probability
from winsor.core.contract import ConfigurationError, Neighbouring, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target
from winsor.planning.shares import Session
from winsor.tables.inputs import as_centre
from winsor.tables.means.radius import PrivateRadius
from winsor.tables.means.result import MeanEstimate
from winsor.tables.units import Unit, protected_rows

if TYPE_CHECKING:
    from winsor.tails.theorems import MeanError

Array = NDArray[np.float64]


class Moments(NamedTuple):
    """E|<u, x>|^p <= moment^p in d dimensions; ``groups`` noisy means will be averaged."""

    p: float
    moment: float
    d: int
    groups: int = 1

    @staticmethod
    def of(moments: tuple[float, float] | None, d: int, groups: int = 1) -> Moments | None:
        """Check ``moments`` = (p, M); None stays None."""
        if moments is None:
            return None
        try:
            p, moment = moments
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"moments must be a pair (p, M). Got {moments!r} instead."
            ) from error
        positive("M of moments = (p, M)", moment)
        positive("p of moments = (p, M)", p)
        if p < 2:
            raise ConfigurationError(
                f"p of moments = (p, M) must be at least 2 (paper 2, Assumption 1c). Got {p!r} "
                "instead. Data with fewer moments need a radius by hand or a PrivateRadius."
            )
        return Moments(float(p), float(moment), d, groups)


@arithmetic.quiet
def clipped_mean(
    x: ArrayLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    radius: float | PrivateRadius | None = None,
    moments: tuple[float, float] | None = None,
    centre: ArrayLike | None = None,
    beta: float = 0.05,
    unit: Unit | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Estimate the mean of heavy-tailed rows (paper 2, Algorithm 2).

    Parameters
    ----------
    x
        (n,) or (n, d) numbers, one record per row.
    epsilon, delta, rho
        The budget: ``epsilon`` at ``delta``, or ``rho`` of zCDP (reported at ``delta``). None
        for ``delta`` means 1e-5, or 1/(2n) if that is smaller.
    radius
        Clipping radius R about ``centre``; None takes (16) from ``moments``; a `PrivateRadius`
        finds it privately between public bounds.
    moments
        (p, M): the public assumption E|<u, x - centre>|^p <= M^p for every unit vector u, p >= 2.
        Needed for (16) and for the error bound.
    centre
        Public guess of the mean (default the origin).
    beta
        The error bound holds with probability 1 - beta.
    unit
        Whose each row is, where a person has several: the mean over persons of their own means is
        estimated, and a person with all rows is protected. ``n`` then counts persons.
    relation
        ``"add_or_remove_one"`` or ``"replace_one"``.
    random_state
        None draws a fresh secret key. An int makes the noise reproducible, hence not secret.
    allow_large_delta
        Accept a ``delta`` of 1/n or more, at which publishing one record at random would pass.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_t(3, size=(20_000, 2)) + 1.0
    >>> result = clipped_mean(x, epsilon=1.0, moments=(2.5, 3.0), random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 0.1), round(result.guarantee.epsilon, 3)
    (True, 0.999)
    """
    rows, column, conditions = protected_rows(x, unit)
    n, d = rows.shape
    probability("beta", beta)
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    point = as_centre(centre, d)
    norms = arithmetic.row_norms(rows, point)
    key = key_for(random_state, None, "clipped mean", target, radius, moments, point, rows)
    session = Session.open(target, key, {"method": "clipped_mean", "n": n, "d": d}, unit=unit)
    assumed, main = Moments.of(moments, d), Payment(FullBatch(n), mean_sensitivity(1.0, n), 1)
    reach, multiplier = settle_radius(radius, main, session, norms, d, assumed)
    receipt = session.door.pay(Gaussian(multiplier), FullBatch(n), mean_sensitivity(reach, n), 1, d)
    estimate = receipt.release(clipped_sum(rows, point, reach) / n) + point
    spent_rho = (receipt.sensitivity.under(target.relation) / receipt.std) ** 2 / 2
    return MeanEstimate(
        estimate=estimate[0] if column else estimate,
        guarantee=session.guarantee(*conditions),
        error_bound=_error_bound(assumed, reach, receipt.std, n, beta),
        radius=reach,
        noise_std=receipt.std,
        rho=None if isinstance(radius, PrivateRadius) else spent_rho,
        ledger=session.ledger,
    )


def _error_bound(
    assumed: Moments | None, radius: float, noise_std: float, n: int, beta: float
) -> MeanError | None:
    """(11) at the noise that was really added: (10) has s^2 = 2R^2/(rho n^2)."""
    if assumed is None:
        return None
    from winsor.tails.theorems import simple_clipping_error  # here: a radius needs no theorem

    rho = 2 * (radius / (noise_std * n)) ** 2
    return simple_clipping_error(
        radius, p=assumed.p, moment=assumed.moment, n=n, d=assumed.d, rho=rho, beta=beta
    )


def mean_sensitivity(radius: float, divisor: float) -> Sensitivity:
    """Return how far a record moves the mean of clipped rows."""
    return Sensitivity.per_sample(
        radius / divisor, "rows clipped to radius R one by one, public divisor (paper 2, Lemma 4)"
    )


def clipped_sum(rows: Array, point: Array, radius: float) -> Array:
    """Return sum_i min(1, R/|x_i - c|) (x_i - c), without a copy of the data."""
    pieces = (rows[own] for own in arithmetic.blocks(len(rows)))
    return arithmetic.summed(arithmetic.clip_rows(x, radius, point).sum(axis=0) for x in pieces)


def settle_radius(
    radius: float | PrivateRadius | None,
    main: Payment,
    session: Session,
    norms: Array,
    d: int,
    assumed: Moments | None,
) -> tuple[float, float]:
    """Return the radius and the noise multiplier of ``main``, whichever way the radius is given.

    ``main`` is stated for R = 1: multipliers do not depend on R.
    """
    if isinstance(radius, PrivateRadius):
        search, level = radius.payment(main, session.target, len(norms), d)
        multiplier = session.multiplier([main, search])
        reach = radius.search(norms, level, session.door, Gaussian(multiplier * search.scale))
        return reach, multiplier
    multiplier = session.multiplier([main])
    if radius is not None:
        remedy = "Leave it out and give moments, or give a PrivateRadius."
        return positive("radius", radius, remedy), multiplier
    if assumed is None:
        raise ConfigurationError(
            "radius must be given, or something to choose it by. Got neither radius nor moments. "
            "Give radius=R, a public length to which rows are clipped; or moments=(p, M), a public "
            "bound M on the p-th moment; or radius=PrivateRadius(lower, upper), which looks for it "
            "within the budget. winsorised_mean needs none of them."
        )
    from winsor.tails.theorems import simple_clipping_radius

    # (16) writes the noise of the mean as sqrt(2/rho) R/n; here it is multiplier sqrt(groups) R/n.
    rho = 2 / (multiplier**2 * assumed.groups)
    reach = simple_clipping_radius(assumed.p, assumed.moment, len(norms), d, rho)
    return reach, multiplier
