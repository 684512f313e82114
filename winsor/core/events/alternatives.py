"""One of several events, chosen without looking at the rows: priced as the worst of them.

A trial of a tuning draws its setting from a public law, and settings such as the batch size or the
number of steps change what the trial spends. The setting is part of what is released, so the
trial's divergence is the average over settings, at most the largest: at every epsilon the largest
delta, at every order the largest Renyi divergence.

Guarantee
---------
Bounds on any mixture of the alternatives, whatever the public chances.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache

import attr
import numpy as np
from dp_accounting.dp_event import DpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from winsor.core.accounting import rdp
from winsor.core.accounting.dominating import DominatingPair, dominating_pair, on_grid
from winsor.core.accounting.spending import account, delta_curve
from winsor.core.contract import Neighbouring
from winsor.core.events.declared import alternatives, event
from winsor.core.events.registry import Grid, Orders, event_from_json, event_to_json

_NODES = 512
_SMALLEST_DELTA = 1e-19
_LARGEST_EPSILON = 500.0


def _rdp(either: AlternativesDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    bounds = [rdp.divergences([(one, 1)], relation, orders) for one in either.events]
    return np.asarray(np.max(bounds, axis=0), float)


def _pld(
    either: AlternativesDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    return on_grid(_pair_of(json.dumps(event_to_json(either), sort_keys=True), relation), grid)


@lru_cache(maxsize=64)
def _pair_of(text: str, relation: Neighbouring) -> DominatingPair:
    either = event_from_json(json.loads(text))
    assert isinstance(either, AlternativesDpEvent), text
    tops = [account([(one, 1)], _SMALLEST_DELTA, relation).epsilon for one in either.events]
    top = min(max(*tops, 1e-12), _LARGEST_EPSILON)
    epsilons = np.linspace(0.0, top if math.isfinite(top) else _LARGEST_EPSILON, _NODES)
    curves = [delta_curve([(one, 1)], epsilons, relation) for one in either.events]
    return dominating_pair(epsilons, np.asarray(np.max(curves, axis=0), float))


@event("alternatives", pld=_pld, rdp=_rdp)
@attr.s(frozen=True, auto_attribs=True)
class AlternativesDpEvent(DpEvent):
    """One of ``events``; which one is public, or drawn from a public law.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> either = AlternativesDpEvent((GaussianDpEvent(2.0), GaussianDpEvent(4.0)))
    >>> print(*(f"{account([(e, 1)], 1e-5).epsilon:.2f}" for e in (*either.events, either)))
    1.99 0.93 1.99
    """

    events: tuple[DpEvent, ...] = alternatives()
