"""Epsilon and delta of a history from Renyi divergences: the cross-check, and the fallback.

Renyi bounds of single events add up; the sum is turned into (epsilon, delta) by `dp_accounting`
(Canonne, Kamath & Steinke 2020, Prop. 12), at the best of many orders.

Guarantee
---------
Upper bounds throughout. `dp_accounting` evaluates log-moments in floating point, where those of a
tiny step (q = 1e-4, nm = 50) are mostly rounding and can come out negative, for which the library
reports epsilon = 0. Every log-moment is therefore raised by more than its rounding error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    ZCDpEvent,
)
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp.rdp_privacy_accountant import (
    DEFAULT_RDP_ORDERS,
    RdpAccountant,
    compute_delta,
    compute_epsilon,
)

from winsor.core.contract import Neighbouring, UnsupportedEvent, UnsupportedRelation
from winsor.core.events.registry import History, Orders, entry_of, flatten

ORDERS: Orders = np.unique(np.concatenate([np.asarray(DEFAULT_RDP_ORDERS, float), [1.02, 1.05]]))
"""Orders close to 1 serve epsilons of hundreds, large ones epsilons far below one."""


def epsilon(history: History, delta: float, relation: Neighbouring) -> float:
    """Upper bound on the smallest epsilon of the history at ``delta``."""
    return float(compute_epsilon(ORDERS, divergences(history, relation, ORDERS), delta)[0])


def delta(history: History, epsilon: float, relation: Neighbouring) -> float:
    """Upper bound on the smallest delta of the history at ``epsilon``."""
    return float(compute_delta(ORDERS, divergences(history, relation, ORDERS), epsilon)[0])


def deltas(history: History, epsilons: Orders, relation: Neighbouring) -> Orders:
    """Upper bounds on delta at many epsilons."""
    total = divergences(history, relation, ORDERS)
    return np.array([compute_delta(ORDERS, total, float(e))[0] for e in epsilons], float)


def divergences(history: History, relation: Neighbouring, orders: Orders) -> Orders:
    """Upper bounds on the Renyi divergences of the whole history."""
    total = np.zeros_like(orders)
    for event, count in flatten(history):
        total += count * _best(event, relation, orders)
    return total


def _best(event: DpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """The smallest bound at each order, over the event's own and those of its relaxations."""
    entry = entry_of(event)
    bounds: list[Orders] = []
    refusals: list[UnsupportedEvent | UnsupportedRelation] = []
    if entry.rdp is not None:
        try:
            bounds.append(np.asarray(entry.rdp(event, relation, orders), float))
        except (UnsupportedEvent, UnsupportedRelation) as refusal:
            refusals.append(refusal)
    for relaxed in entry.relaxations(event) if entry.relaxations is not None else ():
        try:
            bounds.append(_best(relaxed, relation, orders))
        except (UnsupportedEvent, UnsupportedRelation) as refusal:
            refusals.append(refusal)
    if bounds:
        return np.asarray(np.min(bounds, axis=0), float)
    if refusals:
        raise refusals[0]
    raise UnsupportedEvent(
        f"event must have a Renyi bound. Got {event!r} ({entry.name}) instead. Account for it with "
        "winsor.core.accounting.spending, which finds an accountant that can."
    )


# ------------------------------------------------------------------- the events of dp_accounting


def nothing(event: NoOpDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Zero at every order."""
    return np.zeros_like(orders)


def gaussian(event: GaussianDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """order / (2 nm^2): Gaussian noise, whatever the relation (see `events`)."""
    if event.noise_multiplier == 0:
        return np.full_like(orders, np.inf)
    return orders / (2 * event.noise_multiplier**2)


def laplace(event: LaplaceDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Mironov 2017, Prop. 6."""
    if event.noise_multiplier == 0:
        return np.full_like(orders, np.inf)
    return _of_library(event, NeighboringRelation.ADD_OR_REMOVE_ONE, orders)


def zcdp(event: ZCDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """xi + rho order, by definition."""
    return event.xi + event.rho * orders


def sampled(event: PoissonSampledDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Poisson-sampled Gaussian noise (Mironov, Talwar & Zhang 2019).

    Replace-one is removal followed by addition. With N the law without either record, and by
    Hoelder (Mironov 2017, Prop. 11), D_a(P||R) <= (a - 1/2)/(a - 1) D_2a(P||N) + D_(2a-1)(N||R).
    """
    if not isinstance(event.event, GaussianDpEvent):
        raise UnsupportedEvent(
            "a Poisson-sampled event must hold a GaussianDpEvent to have a Renyi bound. Got "
            f"{event.event!r} instead. Account for it with privacy loss distributions."
        )
    one = NeighboringRelation.ADD_OR_REMOVE_ONE
    if event.sampling_probability == 0:
        return np.zeros_like(orders)
    if relation is Neighbouring.ADD_OR_REMOVE_ONE:
        return _of_library(event, one, orders)
    first = _of_library(event, one, 2 * orders)
    second = _of_library(event, one, 2 * orders - 1)
    return np.asarray((orders - 0.5) / (orders - 1) * first + second, float)


def subset(
    event: SampledWithoutReplacementDpEvent, relation: Neighbouring, orders: Orders
) -> Orders:
    """Gaussian noise on a subset of fixed size (Wang, Balle & Kasiviswanathan 2019, Thm 27)."""
    return _of_library(event, NeighboringRelation.REPLACE_ONE, orders)


def _of_library(event: DpEvent, relation: NeighboringRelation, orders: Orders) -> Orders:
    """`dp_accounting`'s divergences, raised by a bound on the rounding of the log-moments.

    A log-moment at order a sums a + 1 terms with logarithms up to a log a (binomials); fractional
    orders sum up to a thousand.
    """
    accountant = RdpAccountant(orders, relation)
    with _quiet_library():
        accountant.compose(event)
    rounding = 1e-15 * (1000 + 4 * orders * np.log(orders)) / (orders - 1)
    return np.asarray(np.maximum(accountant.rdp, 0.0) * (1 + 1e-12) + rounding, float)


@contextmanager
def _quiet_library() -> Iterator[None]:
    """`dp_accounting` logs each order at which a series does not converge; it is then infinite."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
