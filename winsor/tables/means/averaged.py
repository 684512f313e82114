"""The averaged-clipping mean: average a batch, clip the average once, add Gaussian noise.

    a = (1/m) sum_{i in batch} (x_i - c),    mu = c + min(1, lambda/|a|) a + N(0, s^2 I)

Paper 4 (Jin et al. 2024), estimator (7): the mean that AClipped-dpSGD takes of gradients, for data.
The batch holds each record with probability m/n, or all of them; m is the public divisor.

When to use
-----------
Outliers average out before they are clipped, so the bias 2 sigma^2/(m lambda) falls with the batch
(Lemma 1). The noise does not fall with it: for equal epsilon it is 2m times that of `clipped_mean`
at radius lambda. So this is the better estimator only where a wild guess of the radius would cost
more than that: for large budgets and heavy tails. `clipped_mean` is the default choice.

Guarantee
---------
The clipped average lies in a ball of radius lambda about the public centre, whatever the records
are, and one record can carry it from any point of that ball to any other: sensitivity 2 lambda when
a record is added, removed or replaced. The paper takes it to be lambda: its noise, O(lambda
sqrt(ln(1/delta))/epsilon), is `winsor_papers.aclip.estimator`, published and not certified.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winsor.core.arithmetic.rows import clip_rows, quiet, sum_rows
from winsor.core.checks import at_least, positive, probability
from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch, Poisson, Sampler
from winsor.planning.budget import Payment, Target
from winsor.planning.shares import Session
from winsor.tables.inputs import as_centre
from winsor.tables.means.result import MeanEstimate
from winsor.tables.units import Unit, protected_rows

if TYPE_CHECKING:
    from winsor.tails.theorems import MeanError

Array = NDArray[np.float64]


@quiet
def averaged_mean(
    x: ArrayLike,
    *,
    clip: float,
    epsilon: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    batch_size: float | None = None,
    deviation: float | None = None,
    centre: ArrayLike | None = None,
    beta: float = 0.05,
    unit: Unit | None = None,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    random_state: int | bytes | None = None,
    allow_large_delta: bool = False,
) -> MeanEstimate:
    """Estimate a mean by clipping the average of a batch once (paper 4, estimator (7)).

    Parameters
    ----------
    x
        (n,) or (n, d) numbers, one record per row.
    clip
        lambda: a public bound, at least twice the distance of the mean from ``centre`` for Lemma 1.
    epsilon, delta, rho
        The budget, as in `clipped_mean`; ``rho`` without sampling only.
    batch_size
        m: expected size of the Poisson batch. None takes all records.
    deviation
        sigma with E|x - E x|^2 <= sigma^2, a public assumption. Needed for the error bound only.
    centre
        Public guess of the mean (default the origin).
    beta
        The error bound holds with probability 1 - beta.
    unit, relation, random_state, allow_large_delta
        As in `clipped_mean`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_t(3, size=(20_000, 2)) + 1.0
    >>> result = averaged_mean(x, clip=3.0, epsilon=20.0, random_state=0)
    >>> bool(np.linalg.norm(result.estimate - 1.0) < 2.0), result.guarantee.epsilon <= 20.0
    (True, True)
    """
    rows, column, conditions = protected_rows(x, unit)
    n, d = rows.shape
    positive("clip", clip)
    probability("beta", beta)
    sampler = _sampler(n, batch_size)
    target = Target.of(n, epsilon, delta, relation, allow_large_delta, rho)
    point = as_centre(centre, d)
    key = key_for(random_state, None, "averaged mean", target, clip, batch_size, point, rows)
    session = Session.open(target, key, {"method": "averaged_mean", "n": n, "d": d}, unit=unit)
    sensitivity = averaged_sensitivity(clip)
    receipt = session.pay(Payment(sampler, sensitivity, 1), d)
    picked = rows if isinstance(sampler, FullBatch) else rows[sampler.indices(key, receipt.first)]
    average = clipped_average(picked - point, sampler.expected_size, clip)
    estimate = receipt.release(average) + point
    whole = isinstance(sampler, FullBatch)
    return MeanEstimate(
        estimate=estimate[0] if column else estimate,
        guarantee=session.guarantee(*conditions),
        error_bound=_error_bound(clip, sampler, receipt.std, d, deviation, beta),
        radius=clip,
        noise_std=receipt.std,
        rho=(receipt.sensitivity.under(target.relation) / receipt.std) ** 2 / 2 if whole else None,
        ledger=session.ledger,
    )


def averaged_sensitivity(clip: float) -> Sensitivity:
    """Return how far a record moves a clipped average."""
    proof = "the clipped average lies in a ball of radius lambda: one record moves it by 2 lambda"
    return Sensitivity.of_range(clip, proof)


def clipped_average(rows: Array, size: float, clip: float) -> Array:
    """Return AClip (2) of the rows' sum over the public ``size``; zero where it is not finite."""
    return clip_rows(sum_rows(rows)[None] / size, clip)[0]


def _sampler(n: int, batch_size: float | None) -> Sampler:
    if batch_size is None or positive("batch_size", batch_size) >= n:
        return FullBatch(n)
    return Poisson.of_batch_size(n, at_least("batch_size", batch_size, 1))


def _error_bound(
    clip: float, sampler: Sampler, std: float, d: int, deviation: float | None, beta: float
) -> MeanError | None:
    """Distance from the true mean, if that is within lambda/2 of the centre (Lemma 1's condition).

    The true mean lies in the ball, so clipping takes no average farther from it: the bias of Lemma
    1 is part of the first term. Chebyshev with beta/2 for the average, whose batch adds at most
    lambda^2/4 to sigma^2 if its size is random; beta/2 for the norm of the noise.
    """
    if deviation is None:
        return None
    from winsor.tails.theorems import MeanError  # here: an estimate needs no theorem

    spread = positive("deviation", deviation) ** 2
    if not isinstance(sampler, FullBatch):
        spread += clip**2 / 4
    sampling = math.sqrt(spread / (sampler.expected_size * beta / 2))
    noise = std * (math.sqrt(d) + math.sqrt(2 * math.log(2 / beta)))
    return MeanError(sampling, 0.0, noise)
