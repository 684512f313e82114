"""One of several events: never below any mixture of them, and accounted for like other events."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from winsor.core.accounting import account, delta_curve, event_from_json, event_to_json
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.alternatives import AlternativesDpEvent

DELTA = 1e-5
FEW = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 50)
MANY = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8)), 500)
EITHER = AlternativesDpEvent((FEW, MANY))


def test_the_worst_alternative_counts_at_every_epsilon():
    epsilons = np.linspace(0.2, 4, 12)
    worst = np.max([delta_curve([(one, 1)], epsilons) for one in (FEW, MANY)], axis=0)
    found = delta_curve([(EITHER, 1)], epsilons)
    kept = worst > 1e-9
    assert np.all(found[kept] >= worst[kept] * 0.999)
    assert found[kept] == pytest.approx(worst[kept], rel=0.05)


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_alone_and_composed(relation):
    one = max(account([(event, 1)], DELTA, relation).epsilon for event in (FEW, MANY))
    both = account([(EITHER, 1)], DELTA, relation).epsilon
    assert both == pytest.approx(one, rel=5e-3) and both >= one * (1 - 2e-3)
    more = account([(EITHER, 1), (GaussianDpEvent(3.0), 1)], DELTA, relation).epsilon
    assert more > both


def test_laws_of_different_kinds():
    event = AlternativesDpEvent((LaplaceDpEvent(2.0), GaussianDpEvent(4.0)))
    assert account([(event, 1)], DELTA).epsilon >= 0.9
    alone = AlternativesDpEvent((GaussianDpEvent(0.0),))
    assert account([(alone, 1)], DELTA).epsilon == math.inf


def test_json_keeps_every_digit():
    assert event_from_json(event_to_json(EITHER)) == EITHER
    with pytest.raises(ConfigurationError):
        event_to_json(AlternativesDpEvent(()))
