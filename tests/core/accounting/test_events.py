"""The registry: events survive JSON exactly, and what is unknown is refused."""

import json

import attr
import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.accounting import event_from_json, event_to_json, flatten, register, registered
from winsor.core.contract import ConfigurationError, UnsupportedEvent
from winsor.core.events.registry import entry_of

positive = st.floats(1e-300, 1e300)
rates = st.floats(0, 1)
gaussians = st.builds(GaussianDpEvent, positive)
leaves = st.one_of(
    st.just(NoOpDpEvent()),
    gaussians,
    st.builds(LaplaceDpEvent, positive),
    st.builds(ZCDpEvent, positive, positive),
    st.builds(PoissonSampledDpEvent, rates, gaussians),
    st.builds(
        lambda n, g: SampledWithoutReplacementDpEvent(n + 5, 5, g), st.integers(0), gaussians
    ),
    st.builds(
        lambda std, shift, p: MixtureOfGaussiansDpEvent(std, (0.0, shift), (1 - p, p)),
        positive,
        positive,
        st.floats(0, 0.5),
    ),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(SelfComposedDpEvent, inner, st.integers(0, 10**6)),
        st.builds(ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)


@given(events)
def test_an_event_comes_back_from_json_as_it_was(event):
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event


@pytest.mark.parametrize(
    "event",
    [
        dp_event.UnsupportedDpEvent(),
        dp_event.NonPrivateDpEvent(),
        dp_event.RandomizedResponseDpEvent(0.5, 2),
        PoissonSampledDpEvent(0.1, dp_event.UnsupportedDpEvent()),
        ComposedDpEvent([dp_event.UnsupportedDpEvent()]),
    ],
    ids=lambda event: type(event).__name__,
)
def test_unknown_events_are_refused_with_their_type_and_a_remedy(event):
    with pytest.raises(UnsupportedEvent, match=r"Got .*DpEvent.*register a handler"):
        event_to_json(event)
    with pytest.raises(UnsupportedEvent, match="register a handler"):
        flatten([(event, 1)])


def test_a_subclass_is_another_event():
    @attr.s(frozen=True, auto_attribs=True)
    class NoisierDpEvent(GaussianDpEvent):
        extra: float = 0.0

    with pytest.raises(UnsupportedEvent, match="NoisierDpEvent"):
        entry_of(NoisierDpEvent(1.0))


@pytest.mark.parametrize("data", [{}, {"event": "teleported"}, {"event": 3}])
def test_unknown_records_are_refused(data):
    with pytest.raises(UnsupportedEvent, match="import the module that registers the event"):
        event_from_json(data)


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(float("nan")),
        GaussianDpEvent(-1.0),
        GaussianDpEvent("1"),
        PoissonSampledDpEvent(1.1, GaussianDpEvent(1.0)),
        PoissonSampledDpEvent(-0.1, GaussianDpEvent(1.0)),
        SampledWithoutReplacementDpEvent(10, 11, GaussianDpEvent(1.0)),
        SampledWithoutReplacementDpEvent(10, 0, GaussianDpEvent(1.0)),
        SampledWithoutReplacementDpEvent(10.0, 2, GaussianDpEvent(1.0)),
        MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5, 0.4)),
        MixtureOfGaussiansDpEvent(1.0, (0.0, -1.0), (0.5, 0.5)),
        MixtureOfGaussiansDpEvent(1.0, (1.0,), (0.5, 0.5)),
        ZCDpEvent(-1.0),
        SelfComposedDpEvent(GaussianDpEvent(1.0), -1),
    ],
    ids=repr,
)
def test_impossible_numbers_are_refused(event):
    with pytest.raises(ConfigurationError, match=r"must .*Got"):
        event_to_json(event)


def test_nothing_is_registered_twice():
    with pytest.raises(ConfigurationError, match="registered already"):
        register(GaussianDpEvent, name="new", to_json=dict, from_json=dict)
    with pytest.raises(ConfigurationError, match="registered already"):
        register(dp_event.NonPrivateDpEvent, name="gaussian", to_json=dict, from_json=dict)
    assert "new" not in registered()


def test_flatten_unfolds_and_merges():
    a, b = GaussianDpEvent(1.0), LaplaceDpEvent(2.0)
    history = [
        (a, 3),
        (SelfComposedDpEvent(ComposedDpEvent([a, b, NoOpDpEvent()]), 5), 2),
        (NoOpDpEvent(), 7),
        (b, 0),
        (MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]), 1),
        (MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.5, 0.5)), 1),
    ]
    mixture = MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5])
    assert flatten(history) == [(a, 13), (b, 10), (mixture, 2)]


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_counts_are_whole(count):
    with pytest.raises(ConfigurationError, match="count must be a whole number"):
        flatten([(GaussianDpEvent(1.0), count)])
