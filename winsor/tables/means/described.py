"""Mean, variance and quantiles of numbers, whole and by group, under one budget.

    mean, groups   `winsorised_mean`                                       share 0.5
    quantiles      four joint histograms that zoom in (`winsor.tables.ranges`)    share 0.2
    variance       the winsorised mean of (x - m)^2, m the released mean   share 0.3

Guarantee
---------
Each part is a list of Gaussian releases; all are calibrated together and written in one ledger. The
variance is measured about a released point, so a row's square depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import quiet, squares
from winsor.core.checks import all_probabilities, probability
from winsor.core.contract import Guarantee, Neighbouring
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import key_for
from winsor.planning.budget import Target
from winsor.planning.shares import Part, Session
from winsor.tables.inputs import as_rows
from winsor.tables.means.winsorised import HeavyMean, WinsorisedGroup, as_groups, read
from winsor.tables.ranges.zoom import Zoom

Array = NDArray[np.float64]

MEAN, QUANTILES, VARIANCE = 0.5, 0.2, 0.3
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Description:
    """What a table shows of itself; numbers for (n,), arrays with an entry per column else."""

    mean: Any
    low: Any
    high: Any
    """The interval of the mean."""
    variance: Any
    quantiles: dict[float, Any]
    groups: dict[Hashable, WinsorisedGroup] | None
    guarantee: Guarantee
    ledger: Ledger = field(repr=False)


@quiet
def describe(
    x: ArrayLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    by: ArrayLike | None = None,
    quantiles: tuple[float, ...] = LEVELS,
    level: float = 0.95,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> Description:
    """Describe heavy-tailed numbers within one budget; parameters as in `winsorised_mean`.

    Examples
    --------
    >>> import numpy as np
    >>> stays = np.random.default_rng(0).lognormal(1, 1, size=20_000)
    >>> found = describe(stays, epsilon=1.0, random_state=0)
    >>> bool(abs(found.quantiles[0.5] / np.e - 1) < 0.1), bool(found.low < 4.48 < found.high)
    (True, True)
    >>> bool(abs(found.variance / stays.var() - 1) < 0.3)
    True
    """
    rows, column = as_rows(x)
    n, d = rows.shape
    probability("level", level)
    all_probabilities(**{f"quantiles[{i}]": each for i, each in enumerate(quantiles)})
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    labels, codes = as_groups(by, n)
    key = key_for(random_state, None, "describe", target, quantiles, rows, codes)
    session = Session.open(target, key, {"method": "describe", "n": n, "d": d})
    mean = HeavyMean(n, d, len(labels), MEAN, "mean")
    square = HeavyMean(n, d, share=VARIANCE, name="variance")
    zoom = Zoom(d, cells=64, rounds=4)
    histograms = {"quantiles": Part(zoom.sensitivity, zoom.rounds, QUANTILES)}
    shares = session.shares(n, {**mean.parts(), **square.parts(), **histograms})

    cuts, totals, _ = mean.release(rows, shares, codes)
    estimate, low, high, groups = read(totals, cuts, n, level, labels, column)
    middle = np.atleast_1d(estimate)
    spread, sums, _ = square.release(squares(rows - middle), shares)
    variance = np.maximum(spread.mean(sums.sums[0] / n), 0.0)
    found = zoom.release(rows, *shares["quantiles"])
    at = {each: np.array([one.quantile(each) for one in found]) for each in quantiles}
    conditions: tuple[str, ...] = (f"n = {n} is public",)
    if by is not None:
        conditions += ("the labels of groups are public: they were read off by",)
    return Description(
        mean=estimate,
        low=low,
        high=high,
        variance=float(variance[0]) if column else variance,
        quantiles={each: float(value[0]) if column else value for each, value in at.items()},
        groups=groups,
        guarantee=session.guarantee(*conditions),
        ledger=session.ledger,
    )
