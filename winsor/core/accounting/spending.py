"""What a history has spent: the smallest certified bound that any accountant can give.

Privacy loss distributions are the default, and the tightest where an event has one. An event that
has none is accounted for through events that dominate it (`relaxations`), through Renyi bounds, or
both; the smaller result for the *whole* history is reported, with the name of its accountant.

Guarantee
---------
(epsilon, delta)-differential privacy of the adaptive composition of the history's events, under
the relation. Every candidate is an upper bound, hence so is their minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from dp_accounting.dp_event import DpEvent, NoOpDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from winsor.core.accounting import lattice, pld, rdp
from winsor.core.contract import (
    ConfigurationError,
    Neighbouring,
    UnsupportedEvent,
    UnsupportedRelation,
)
from winsor.core.events.registry import History, Orders, entry_of, event_to_json, flatten

T = TypeVar("T", float, NDArray[np.float64])


@dataclass(frozen=True)
class Spent:
    """A certified (epsilon, delta) of a history."""

    epsilon: float
    delta: float
    relation: Neighbouring
    accountant: str


def account(
    history: History, delta: float, relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
) -> Spent:
    """Epsilon of the history at ``delta``.

    >>> from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    >>> step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    >>> spent = account([(step, 10_000)], delta=1e-5)
    >>> print(f"{spent.epsilon:.2f} by {spent.accountant}")
    6.19 by pld
    """
    _check_delta(delta)
    events = flatten(history)
    if len(events) == 1 and events[0][1] == 1:
        alone = entry_of(events[0][0]).alone
        if alone is not None:
            epsilon, name = alone(events[0][0], delta, relation)
            return Spent(epsilon, delta, relation, name)
    epsilon, name = min(
        _candidates(
            history,
            lambda h: pld.epsilon(h, delta, relation),
            lambda h: rdp.epsilon(h, delta, relation),
        )
    )
    return Spent(epsilon, delta, relation, name)


def certify(
    history: History, delta: float, relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
) -> Spent:
    """`account` for what a machine released: noise on a grid, from a sampler that is not ideal.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> ideal, real = (f([(GaussianDpEvent(1.0), 1)], 1e-5).epsilon for f in (account, certify))
    >>> 0 < real - ideal < 3e-5
    True
    """
    if all(count == 0 or isinstance(event, NoOpDpEvent) for event, count in history):
        return account(history, delta, relation)  # nothing was drawn
    accountant = ""

    def ideal(at: float) -> float:
        nonlocal accountant
        spent = account(history, at, relation)
        accountant = spent.accountant
        return spent.epsilon

    epsilon = charged_epsilon(ideal, history, delta, relation)
    return Spent(epsilon, delta, relation, accountant)


def charged_epsilon(
    ideal: Callable[[float], float], history: History, delta: float, relation: Neighbouring
) -> float:
    """What a machine's noise makes of ``ideal``, the history's epsilon as a function of delta."""
    least = min((least_multiplier(event) for event, count in history if count), default=math.inf)
    if relation is Neighbouring.REPLACE_ONE:
        least /= 2  # a sampled record is exchanged: two shifts
    return lattice.charge(ideal, delta, least_multiplier=least)


def certify_delta(
    history: History, epsilon: float, relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
) -> Spent:
    """`account_delta` for what a machine released: see `certify`."""
    accountant = ""

    def ideal(at: float) -> float:
        nonlocal accountant
        spent = account_delta(history, at, relation)
        accountant = spent.accountant
        return spent.delta

    delta = lattice.charged_delta(ideal, epsilon)
    return Spent(epsilon, delta, relation, accountant)


def least_multiplier(event: DpEvent) -> float:
    """The smallest noise multiplier inside an event; 0 if there is none to be found."""
    found = _numbers(event_to_json(event))
    return min(found, default=0.0) or 1e-9


def _numbers(data: Any) -> list[float]:
    if isinstance(data, dict):
        own = [float(v) for k, v in data.items() if k in ("noise_multiplier", "standard_deviation")]
        return own + [number for value in data.values() for number in _numbers(value)]
    if isinstance(data, list | tuple):
        return [number for value in data for number in _numbers(value)]
    return []


def account_delta(
    history: History, epsilon: float, relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE
) -> Spent:
    """Delta of the history at ``epsilon``."""
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ConfigurationError(
            f"epsilon must be a finite number, at least 0. Got {epsilon!r} instead."
        )
    delta, name = min(
        _candidates(
            history,
            lambda h: pld.delta(h, epsilon, relation),
            lambda h: rdp.delta(h, epsilon, relation),
        )
    )
    return Spent(epsilon, delta, relation, name)


def epsilon_curve(
    event: DpEvent,
    counts: Iterable[int],
    delta: float,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> list[Spent]:
    """What 1, 2, ... applications of an event have spent, at the given increasing counts.

    Never falls: fewer steps cannot spend more, so a later value also bounds the earlier ones.
    """
    spent = [certify([(event, count)], delta, relation) for count in counts]
    for i in range(len(spent) - 2, -1, -1):
        if spent[i].epsilon > spent[i + 1].epsilon:
            spent[i] = spent[i + 1]
    return spent


def delta_curve(
    history: History,
    epsilons: NDArray[np.float64],
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
) -> NDArray[np.float64]:
    """Deltas of the history at many epsilons. Never rises along increasing epsilons."""
    candidates = _candidates(
        history,
        lambda h: pld.deltas(h, epsilons, relation),
        lambda h: rdp.deltas(h, epsilons, relation),
    )
    smallest = np.min([values for values, _ in candidates], axis=0)
    order = np.argsort(epsilons)
    smallest[order] = np.minimum.accumulate(smallest[order])
    return np.asarray(smallest, float)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigurationError(
            f"delta must be between 0 and 1, both excluded. Got {delta!r} instead. A common choice "
            "is below 1/n, one over the number of records."
        )


# ----------------------------------------------------------------------------------- the minimum


def _candidates(
    history: History, by_pld: Callable[[History], T], by_rdp: Callable[[History], T]
) -> list[tuple[T, str]]:
    """Every bound that is worth computing for the history, with its accountant; at least one."""
    events = flatten(history)
    candidates: list[tuple[T, str]] = []
    refusals: list[UnsupportedEvent | UnsupportedRelation] = []

    def consider(bound: Callable[[History], T], variant: History, name: str) -> None:
        try:
            candidates.append((bound(variant), name))
        except (UnsupportedEvent, UnsupportedRelation) as refusal:
            refusals.append(refusal)

    for variant in _pld_variants(events):
        consider(by_pld, variant, "pld")
    # Loss distributions of the events themselves are never beaten by Renyi bounds.
    exact = all(entry_of(event).pld is not None for event, _ in events)
    if not (exact and candidates and np.all(np.isfinite(candidates[0][0]))):
        consider(by_rdp, events, "rdp")
    if not candidates:
        raise refusals[0]
    return candidates


def _pld_variants(events: Sequence[tuple[DpEvent, int]]) -> list[History]:
    """The history with each event that has no loss distribution replaced by one that has.

    The k-th variant takes the k-th such replacement of every event (or its last).
    """
    choices: list[list[DpEvent]] = []
    for event, _ in events:
        entry = entry_of(event)
        if entry.pld is not None:
            choices.append([event])
            continue
        relaxed = entry.relaxations(event) if entry.relaxations is not None else ()
        choices.append([other for other in relaxed if entry_of(other).pld is not None])
    if not all(choices):
        return []
    counts = [count for _, count in events]
    longest = max((len(options) for options in choices), default=1)
    return [
        [(options[min(k, len(options) - 1)], n) for options, n in zip(choices, counts, strict=True)]
        for k in range(longest)
    ]


class RunningRenyi:
    """Epsilon of a history that grows step by step, in well under a millisecond per step.

    Renyi divergences add up, so those of one event serve all its repetitions. What is left at each
    step is the best of some hundred orders. Infinite where an event has no Renyi bound.

    Guarantee
    ---------
    That of `rdp`, charged for the machine's noise as `certify` does: an upper bound for the very
    history that is given. It is a few per cent above what privacy loss distributions certify.

    >>> from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    >>> running = RunningRenyi(1e-5, Neighbouring.ADD_OR_REMOVE_ONE)
    >>> step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    >>> [round(running.epsilon([(step, count)]), 2) for count in (1, 10, 100)]
    [0.96, 1.04, 1.21]
    """

    def __init__(self, delta: float, relation: Neighbouring) -> None:
        self._delta = delta
        self._relation = relation
        self._known: list[tuple[DpEvent, Orders | None, float]] = []

    def epsilon(self, history: History) -> float:
        """An upper bound on what ``history`` has spent."""
        total, least = np.zeros_like(rdp.ORDERS), math.inf
        for event, count in history:
            if count == 0:
                continue
            divergences, multiplier = self._of(event)
            if divergences is None:
                return math.inf
            total = total + count * divergences
            least = min(least, multiplier)
        if not total.any():
            return 0.0
        if self._relation is Neighbouring.REPLACE_ONE:
            least /= 2  # as in `certify`: a sampled record is exchanged, two shifts

        def ideal(at: float) -> float:
            return float(compute_epsilon(rdp.ORDERS, total, at)[0])

        return lattice.charge(ideal, self._delta, least_multiplier=least)

    def _of(self, event: DpEvent) -> tuple[Orders | None, float]:
        """Return divergences and least multiplier of one event, computed when it is first met."""
        for known, divergences, multiplier in self._known:
            if known is event or known == event:
                return divergences, multiplier
        found: Orders | None = None
        try:
            found = rdp.divergences([(event, 1)], self._relation, rdp.ORDERS)
        except (UnsupportedEvent, UnsupportedRelation):
            found = None  # the caller has other accountants
        self._known.append((event, found, least_multiplier(event)))
        return found, self._known[-1][2]
