"""Claims ordered by their noise: how much noise do the runs leave room for?

A history of events with its noise scaled is a family of claims. If a mechanism is of that kind at
all, it has, with the confidence of the test, no more noise than the largest that is not refuted,
hence at least the epsilon of that noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dp_accounting import dp_event

from winsor.audit.claims import Claim, certified_claim
from winsor.core.contract import UnsupportedEvent

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from winsor.core.contract import Neighbouring
    from winsor.core.events.registry import History

Refutes = Callable[[Claim], bool]


def measured_epsilon(
    history: History,
    relation: Neighbouring,
    delta: float,
    refutes: Refutes,
    noise: tuple[float, float] = (0.5, 4.0),
) -> float | None:
    """Return epsilon of the history at the largest noise factor in ``noise`` that is not refuted.

    0 where not even the most noise is refuted, None if some event's noise cannot be scaled.
    """
    from winsor.core.accounting import account

    try:
        scaled(history, 1.0)
    except UnsupportedEvent:
        return None
    low, high = noise
    claim_at = lambda factor: certified_claim(scaled(history, factor), relation, points=16)  # noqa: E731
    factor = invert(claim_at, refutes, low, high, tolerance=0.005)
    return 0.0 if factor >= high else account(scaled(history, factor), delta, relation).epsilon


def invert(
    family: Callable[[float], Claim],
    refutes: Refutes,
    low: float,
    high: float,
    tolerance: float = 5e-4,
) -> float:
    """Return the largest noise in [low, high] whose claim is not refuted.

    ``family`` maps a noise scale to a claim and must promise more privacy for more noise. Returns
    ``low`` when even that claim is refuted, ``high`` when nothing is.
    """
    if not refutes(family(high)):
        return high
    least = low
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refutes(family(middle)) else (middle, high)
    return least if low == least and refutes(family(least)) else high


def scaled(history: History, factor: float) -> list[tuple[DpEvent, int]]:
    """Return the same history with ``factor`` times the noise."""
    return [(_scaled_event(event, factor), count) for event, count in history]


def _scaled_event(event: DpEvent, factor: float) -> DpEvent:
    if isinstance(event, dp_event.GaussianDpEvent | dp_event.LaplaceDpEvent):
        return type(event)(event.noise_multiplier * factor)
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
        deviation = event.standard_deviation * factor
        return dp_event.MixtureOfGaussiansDpEvent(
            deviation, event.sensitivities, event.sampling_probs
        )
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        inner = _scaled_event(event.event, factor)
        return dp_event.PoissonSampledDpEvent(event.sampling_probability, inner)
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        inner = _scaled_event(event.event, factor)
        return dp_event.SampledWithoutReplacementDpEvent(
            event.source_dataset_size, event.sample_size, inner
        )
    raise UnsupportedEvent(
        f"only Gaussian and Laplace events, sampled or not, form a family. Got {event!r} instead."
    )
