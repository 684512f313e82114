"""What a budget allows: the noise, the number of steps, the sampling rate or the batch size.

Each search inverts the certified accountant itself, so a calibrated run reports what it was
calibrated for. A history of events is given as a function of the number that is looked for.
Epsilon falls with noise and grows with steps and sampling rate; the searches use nothing else.

Guarantee
---------
The certified epsilon of the returned setting is at most the budget's. Noise multipliers and
sampling rates also spend at least 99.5 % of it; whole numbers are the largest that fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from winsor.core.accounting import lattice
from winsor.core.accounting.spending import account
from winsor.core.checks import positive
from winsor.core.contract import CalibrationError, Neighbouring
from winsor.core.events.registry import History

SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e7
SMALLEST_RATE = 1e-12
MOST_STEPS = 10**9

_AIM, _LEAST = 0.9995, 0.998  # shares of the target: what is aimed at, and what is accepted
_FAR = 60.0  # stands for the logarithm of an epsilon of 0 or infinity

HistoryOf = Callable[[Any], History]
"""What a run spends, as a function of the number that is looked for."""


@dataclass(frozen=True)
class Budget:
    """What a history may spend: ``epsilon`` at ``delta``, under a neighbouring relation."""

    epsilon: float
    delta: float
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE


def noise_multiplier(history_of: HistoryOf, budget: Budget) -> float:
    """Return the smallest multiplier (to tolerance) whose history stays within ``budget``.

    >>> from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    >>> history_of = lambda nm: [(PoissonSampledDpEvent(0.01, GaussianDpEvent(nm)), 10_000)]
    >>> print(f"{noise_multiplier(history_of, Budget(3.0, 1e-5)):.2f}")
    1.57
    """
    excess = _excess(history_of, budget)
    found = _crossing(excess, SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER, start=1.0, rising=False)
    if found is None:
        steps = sum(count for _, count in history_of(1.0))
        raise _refusal(
            budget,
            f"be one that some noise multiplier from {SMALLEST_MULTIPLIER:g} to "
            f"{LARGEST_MULTIPLIER:g} spends in {steps} steps",
            ", which is not spent even by the smallest. Lower epsilon, or set the noise "
            "multiplier by hand."
            if excess(SMALLEST_MULTIPLIER) <= 0
            else ", which even the largest exceeds. Raise epsilon or delta, or take fewer steps.",
        )
    return found


def max_steps(event: DpEvent, budget: Budget) -> int:
    """Return the largest number of applications of ``event`` that stays within ``budget``."""
    excess = _excess(lambda steps: [(event, round(steps))], budget)
    found = _largest_whole(excess, MOST_STEPS, start=1024)
    if found == 0:
        must = f"allow at least one step of {event!r}"
        remedy = ", which one step exceeds. Raise epsilon or delta, or add noise."
        raise _refusal(budget, must, remedy)
    if found == MOST_STEPS:
        must = f"be one that {event!r} spends within {MOST_STEPS:g} steps"
        raise _refusal(budget, must, ". Lower epsilon, or set the number of steps by hand.")
    return found


def sampling_rate(history_of: HistoryOf, budget: Budget) -> float:
    """Return the largest rate in (0, 1] (to tolerance) whose history stays within ``budget``."""
    excess = _excess(history_of, budget)
    if excess(1.0) <= 0:
        return 1.0
    found = _crossing(excess, SMALLEST_RATE, 1.0, start=0.01, rising=True)
    if found is None:
        raise _refusal(budget, f"allow some sampling rate from {SMALLEST_RATE:g} to 1")
    return found


def batch_size(history_of: HistoryOf, n: int, budget: Budget) -> int:
    """Return the largest batch size from 1 to ``n`` whose history stays within ``budget``."""
    excess = _excess(lambda size: history_of(round(size)), budget)
    found = _largest_whole(excess, n, start=min(n, 256))
    if found == 0:
        raise _refusal(budget, "allow batches of at least one record")
    return found


def least_records(
    history_of: HistoryOf, budget: Budget, *, least: int = 1, most: int = 10**12
) -> int:
    """Return the smallest number of records, from ``least``, that stays within ``budget``."""
    excess = _excess(lambda n: history_of(round(n)), budget)
    if excess(least) <= 0:
        return least
    # The largest that does not fit, searched in the same way as the largest that does.
    short = _largest_whole(lambda n: -excess(n) or -1e-300, most, start=max(1024, 2 * least))
    if short >= most:
        raise _refusal(budget, f"be one that {most:g} records allow")
    return short + 1


def _refusal(
    budget: Budget,
    must: str,
    remedy: str = ". Raise epsilon or delta, add noise, or take fewer steps.",
) -> CalibrationError:
    return CalibrationError(
        f"epsilon must {must}. Got {budget.epsilon!r} at delta {budget.delta!r} instead{remedy}"
    )


# ------------------------------------------------------------------------------------- searching


def _excess(history_of: HistoryOf, budget: Budget) -> Callable[[float], float]:
    """log(certified epsilon / target) as a function of the setting; at most 0 where it fits."""
    epsilon, delta = lattice.ideal_target(positive("epsilon", budget.epsilon), budget.delta)
    known: dict[float, float] = {}

    def excess(setting: float) -> float:
        if setting not in known:
            spent = account(history_of(setting), delta, budget.relation).epsilon
            known[setting] = _log(spent) - math.log(epsilon)
        return known[setting]

    return excess


def _log(epsilon: float) -> float:
    if epsilon == 0:
        return -_FAR
    return _FAR if math.isinf(epsilon) else math.log(epsilon)


def _crossing(
    excess: Callable[[float], float], least: float, most: float, *, start: float, rising: bool
) -> float | None:
    """A setting that spends between `_LEAST` and all of the target; None if there is none.

    Bracket by factors of 4, then regula falsi (Illinois) on logarithms, where epsilon is close to
    a power of the setting.
    """
    sign = 1.0 if rising else -1.0  # in x = sign * log(setting), the excess rises
    low = high = sign * math.log(start)
    ends = sorted((sign * math.log(least), sign * math.log(most)))

    def value(x: float) -> float:
        return excess(math.exp(sign * x))

    while value(low) > 0:
        if low <= ends[0]:
            return None
        high, low = low, max(ends[0], low - math.log(4))
    while value(high) <= 0:
        if high >= ends[1]:
            return None
        low, high = high, min(ends[1], high + math.log(4))
    aim = math.log(_AIM)
    x = _illinois(lambda x: value(x) - aim, low, high, math.log(_LEAST) - aim, -aim)
    return math.exp(sign * x)


def _illinois(
    f: Callable[[float], float], low: float, high: float, least: float, most: float
) -> float:
    """x with least <= f(x) <= most, or failing that the largest known x with f(x) <= most.

    f rises from f(low) <= most to f(high) > most; it may jump over the goal (epsilon can be 0).
    """
    at_low, at_high = f(low), f(high)
    weight_low, weight_high = at_low, at_high
    for turn in range(80):
        if least <= at_low <= most or high - low < 1e-13:
            break
        share = 0.5 if turn % 4 == 3 or weight_low >= 0 else weight_low / (weight_low - weight_high)
        x = low + min(max(share, 0.01), 0.99) * (high - low)
        at_x = f(x)
        if at_x <= most:
            low, at_low, weight_low = x, at_x, at_x
            weight_high /= 2
        else:
            high, at_high, weight_high = x, at_x, at_x
            weight_low /= 2
    return low


def _largest_whole(excess: Callable[[float], float], most: int, *, start: int) -> int:
    """The largest whole number from 1 to ``most`` with excess <= 0; 0 if there is none."""
    low, high = 0, start
    while excess(high) <= 0:
        low = high
        if high >= most:
            return most
        high = min(most, 4 * high)
    if low == 0 and excess(1) <= 0:
        low = 1
    elif low == 0:
        return 0
    turn = 0
    while high - low > 1:
        middle = _between(low, high, excess, bisect=turn % 3 == 2)
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
        turn += 1
    return low


def _between(low: int, high: int, excess: Callable[[float], float], *, bisect: bool) -> int:
    """A whole number strictly between, where a power law through both ends meets the target."""
    below, above = excess(low), excess(high)
    share = 0.5 if bisect or above <= below else -below / (above - below)
    guess = round(low * (high / low) ** share)
    return min(max(guess, low + 1), high - 1)
