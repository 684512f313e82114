"""The quick account of each step is an upper bound, and close to the exact one."""

from __future__ import annotations

import math

import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.core.accounting import certify
from winsor.core.accounting.spending import RunningRenyi
from winsor.core.contract import Neighbouring
from winsor.core.events.registry import History


@pytest.mark.parametrize("relation", list(Neighbouring))
@settings(max_examples=12, deadline=None)
@given(
    q=st.floats(0.005, 1.0),
    nm=st.floats(0.7, 20.0),
    count=st.integers(1, 300),
    look=st.integers(0, 3),
)
def test_never_below_the_certified_value(relation, q, nm, count, look):
    history: History = [(PoissonSampledDpEvent(q, GaussianDpEvent(nm)), count)]
    history += [(GaussianDpEvent(10.0), look)] if look else []
    exact = certify(history, 1e-5, relation).epsilon
    assert RunningRenyi(1e-5, relation).epsilon(history) >= exact * (1 - 1e-6)


def test_close_above_and_growing():
    event = PoissonSampledDpEvent(0.05, GaussianDpEvent(1.1))
    running = RunningRenyi(1e-5, Neighbouring.ADD_OR_REMOVE_ONE)
    found = [running.epsilon([(event, count)]) for count in (1, 2, 10, 100, 1000)]
    assert found == sorted(found)
    assert found[-1] < 1.15 * certify([(event, 1000)], 1e-5).epsilon
    assert running.epsilon([]) == 0


def test_what_has_no_renyi_bound_is_infinite(monkeypatch):
    from winsor.core.accounting import spending
    from winsor.core.contract import UnsupportedEvent

    def refuse(*_):
        raise UnsupportedEvent("none")

    monkeypatch.setattr(spending.rdp, "divergences", refuse)
    tally = RunningRenyi(1e-5, Neighbouring.ADD_OR_REMOVE_ONE)
    assert tally.epsilon([(GaussianDpEvent(1.0), 3)]) == math.inf
