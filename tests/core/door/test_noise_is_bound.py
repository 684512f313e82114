"""The same noise never covers two different sums."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import Bounded, LedgerError, Neighbouring, Sensitivity, UnsoundRelease
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import new_key
from winsor.core.sampling import FullBatch

ADD = Neighbouring.ADD_OR_REMOVE_ONE
UNIT = Sensitivity.per_sample(1.0, "test")


def door(ledger=None):
    ledger = Ledger({}) if ledger is None else ledger
    return Door(ledger, Gaussian(2.0), FullBatch(10), ADD, new_key(seed=3))


def release(at, value, step=0):
    return at.release(step, {"grad": Bounded(value, UNIT)}).values["grad"]


def test_the_same_value_again_is_the_same_release_and_free():
    ledger = Ledger({})
    first = release(door(ledger), np.ones(4, np.float32))
    again = release(door(ledger), np.ones(4, np.float32))
    assert np.array_equal(first, again)
    assert len(ledger) == 1


def test_another_value_under_the_same_noise_is_refused_before_it_is_drawn():
    ledger = Ledger({})
    release(door(ledger), np.ones(4, np.float32))
    other = np.array([1.0, 1.0, 1.0, 1.0 + 2**-23], np.float32)  # the smallest difference there is
    with pytest.raises(LedgerError, match="another value"):
        release(door(ledger), other)
    assert other[3] == 1.0 + 2**-23  # nothing was added


def test_parts_are_told_apart_and_in_order():
    ledger = Ledger({})
    half = {"share": 0.5}
    two = {"a": Bounded(np.ones(2), UNIT, **half), "b": Bounded(np.zeros(2), UNIT, **half)}
    door(ledger).release(0, two)
    swapped = {
        "a": Bounded(np.zeros(2), UNIT, **half),
        "b": Bounded(np.ones(2), UNIT, **half),
    }
    with pytest.raises(LedgerError, match="another value"):
        door(ledger).release(0, swapped)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_does_not_pass(bad):
    with pytest.raises(UnsoundRelease, match="finite"):
        release(door(), np.array([1.0, bad]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("other", np.zeros(4, np.float32)),
        ("grad", np.zeros(2, np.float64)),  # the same 16 bytes
        ("grad", np.zeros((2, 2), np.float32)),
        ("grad", {"w": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}),
    ],
)
def test_the_same_bytes_under_another_name_type_or_shape_are_another_value(name, value):
    """Noise depends on name and size: the mean of repeats would have less than was paid for."""
    ledger = Ledger({})
    door(ledger).release(0, {"grad": Bounded(np.zeros(4, np.float32), UNIT)})
    with pytest.raises(LedgerError, match="another value"):
        door(ledger).release(0, {name: Bounded(value, UNIT)})
    same = door(ledger)  # whose price is known from a step before
    same.release(0, {"grad": Bounded(np.zeros(4, np.float32), UNIT)})
    with pytest.raises(LedgerError, match="another value"):
        same.release(0, {name: Bounded(value, UNIT)})
    assert len(ledger) == 1
