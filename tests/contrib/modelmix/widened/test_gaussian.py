"""The ModelMix event: section 4.3, monotonicity, the plain step as a limit, and the registry."""

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from winsor.contrib.modelmix import mixed_gaussian as module
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent, without_mixing
from winsor.core.accounting import account, event_from_json, event_to_json, rdp
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.events.registry import entry_of

NOISE = 0.3633  # of section 4.3
ADD_REMOVE = Neighbouring.ADD_OR_REMOVE_ONE


def epsilon(event, steps=5000, delta=1e-5, relation=ADD_REMOVE):
    return account([(event, steps)], delta, relation).epsilon


CERTIFIED = {  # (tau/eta, p): certified, as in the table of docs/modelmix.md
    (0.3, 1): 32.0, (0.3, 25): 4.95, (0.3, 100): 4.32,
    (0.15, 1): 43.2, (0.15, 25): 8.27, (0.15, 100): 7.25,
    (0.075, 1): 62.0, (0.075, 25): 16.6, (0.075, 100): 14.6,
}  # fmt: skip


@pytest.mark.parametrize("width,p", CERTIFIED)
def test_section_43(width, p):
    event = MixedGaussianDpEvent(0.02, NOISE, width / 0.02, p)
    assert epsilon(event) == pytest.approx(CERTIFIED[width, p], rel=0.005)


def test_without_width_it_is_the_plain_step():
    for q, noise, steps in [(0.02, NOISE, 5000), (0.01, 1.1, 1000), (1.0, 5.0, 10)]:
        event = MixedGaussianDpEvent(q, noise, 0.0, 25)
        plain = PoissonSampledDpEvent(q, GaussianDpEvent(noise))
        assert epsilon(event, steps) == epsilon(plain, steps)
        for relation in Neighbouring:
            expected = entry_of(plain).rdp(plain, relation, rdp.ORDERS)
            assert np.array_equal(module.rdp(event, relation, rdp.ORDERS), expected)


def test_a_width_far_below_the_noise_is_the_plain_step_too():
    event = MixedGaussianDpEvent(0.01, 1.0, 0.009)
    assert not event.mixes
    assert epsilon(event, 500) == epsilon(without_mixing(event), 500)


@given(
    q=st.sampled_from([0.003, 0.05]),
    noise=st.sampled_from([0.5, 1.0, 3.0]),
    width=st.floats(0.01, 80),
    p=st.floats(1, 400),
)
@settings(max_examples=8)
def test_never_above_the_plain_step(q, noise, width, p):
    event = MixedGaussianDpEvent(q, noise, width, p)
    assert epsilon(event, 500) <= epsilon(without_mixing(event), 500)


def falling(values):
    return all(a >= b for a, b in itertools.pairwise(values))


@pytest.mark.parametrize("noise,p", [(NOISE, 1), (NOISE, 25), (1.2, 9)])
def test_falls_with_the_width(noise, p):
    widths = [0.0, 0.2, 1.0, 1.1, 15.0, 60.0]
    values = [epsilon(MixedGaussianDpEvent(0.02, noise, w, p), 1000) for w in widths]
    assert falling(values)
    assert values[-1] < 0.5 * values[0]


def test_falls_with_p():
    values = [epsilon(MixedGaussianDpEvent(0.02, NOISE, 15.0, p), 1000) for p in (1, 1.05, 9, 100)]
    assert falling(values)
    assert values[-1] < 0.3 * values[0]


def test_grows_with_steps_and_rate():
    steps = [epsilon(MixedGaussianDpEvent(0.02, 0.6, 8.0, 4), t) for t in (1, 10, 11, 3000)]
    assert falling(steps[::-1])
    rates = [
        epsilon(MixedGaussianDpEvent(q, 0.6, 8.0, 4), 200) for q in (1e-3, 0.01, 0.011, 0.5, 1)
    ]
    assert falling(rates[::-1])
    assert epsilon(MixedGaussianDpEvent(0.0, 0.6, 8.0, 4), 200) == 0


def test_a_schedule_of_widths_lies_between_its_extremes():
    wide, narrow = (MixedGaussianDpEvent(0.02, NOISE, w, 25) for w in (15.0, 3.75))
    mixed = account([(wide, 2500), (narrow, 2500)], 1e-5).epsilon
    assert epsilon(wide) < mixed < epsilon(narrow)


def test_composes_with_other_events():
    event = MixedGaussianDpEvent(0.02, NOISE, 15.0, 25)
    other = GaussianDpEvent(4.0)
    together = account([(event, 5000), (other, 1)], 1e-5).epsilon
    assert epsilon(event) < together < epsilon(event) + epsilon(other, 1)


def test_replace_one_costs_more_but_never_more_than_the_plain_step():
    event = MixedGaussianDpEvent(0.02, NOISE, 15.0, 25)
    replaced = epsilon(event, relation=Neighbouring.REPLACE_ONE)
    assert epsilon(event) < replaced
    assert replaced < epsilon(without_mixing(event), relation=Neighbouring.REPLACE_ONE)
    small = MixedGaussianDpEvent(0.02, 1.0, 0.1)
    plain = epsilon(without_mixing(small), 100, relation=Neighbouring.REPLACE_ONE)
    assert epsilon(small, 100, relation=Neighbouring.REPLACE_ONE) <= plain


def test_orders_beyond_the_moments_are_left_to_the_relaxation():
    event = MixedGaussianDpEvent(1e-3, 20.0, 100.0)
    bound = module.rdp(event, ADD_REMOVE, np.array([2.0, 256.0, 4096.0]))
    assert np.array_equal(np.isfinite(bound), [True, True, False])
    assert 0 < epsilon(event, 1) < 0.1


def test_round_trip_through_json():
    event = MixedGaussianDpEvent(0.02, NOISE, 1 / 3, 25)
    text = json.dumps(event_to_json(event))
    assert event_from_json(json.loads(text)) == event
    assert json.loads(text)["event"] == "mixed_gaussian"


@pytest.mark.parametrize(
    "fields",
    [
        (-0.1, 1.0, 1.0, 1),
        (1.1, 1.0, 1.0, 1),
        (math.nan, 1.0, 1.0, 1),
        (0.1, 0.0, 1.0, 1),
        (0.1, math.inf, 1.0, 1),
        (0.1, 1.0, -1.0, 1),
        (0.1, 1.0, math.nan, 1),
        (0.1, 1.0, 1.0, 0.5),
        (0.1, 1.0, 1.0, math.inf),
    ],
)
def test_fields_without_a_proof_are_refused(fields):
    with pytest.raises(ConfigurationError, match="Got MixedGaussianDpEvent"):
        MixedGaussianDpEvent(*fields)


@given(width=st.floats(1e-3, 1e3), precision=st.floats(1e-3, 0.5))
def test_narrowing_rounds_down_by_at_most_the_precision(width, precision):
    event = MixedGaussianDpEvent(0.02, 1.0, width)
    narrowed = event.narrowed(precision)
    assert narrowed.width_ratio <= width
    assert narrowed.width_ratio >= width / (1 + precision) * (1 - 1e-9)
    nudged = MixedGaussianDpEvent(0.02, 1.0, narrowed.width_ratio * (1 + precision / 2))
    assert nudged.narrowed(precision).width_ratio == pytest.approx(narrowed.width_ratio)


def test_narrowing_keeps_no_width_and_refuses_no_precision():
    event = MixedGaussianDpEvent(0.02, 1.0, 0.0)
    assert event.narrowed() == event
    with pytest.raises(ConfigurationError, match="precision must be positive"):
        event.narrowed(0.0)


def test_narrowing_never_lowers_epsilon():
    event = MixedGaussianDpEvent(0.02, NOISE, 14.9, 25)
    assert epsilon(event) <= epsilon(event.narrowed(0.1)) <= epsilon(event) * 1.1
