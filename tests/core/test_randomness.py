"""Keys: the same seed gives the same key for the same data and settings only."""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass

import numpy as np
import pytest

from winsor.core import randomness
from winsor.core.contract import ConfigurationError
from winsor.core.noise.source import NoiseSource
from winsor.core.randomness import KEY_BYTES, bound_key, key_for, name_of, new_key

TABLE = np.arange(12.0).reshape(4, 3)
OTHER = TABLE + 2.0**-40


def noise(key: bytes) -> np.ndarray:
    return NoiseSource(key, prefetch=False).normal(0, "x", 50)


@pytest.mark.parametrize("spent", [None, 0, 7])
@pytest.mark.parametrize("seed", [0, 1, 12345, np.int64(3)])
def test_the_same_seed_on_other_data_or_settings_draws_other_noise(seed, spent):
    draws = [
        noise(key_for(seed, spent, *bound))
        for bound in ((TABLE, "mean"), (OTHER, "mean"), (TABLE, "median"), (TABLE.T, "mean"), ())
    ]
    assert len({draw.tobytes() for draw in draws}) == len(draws)
    assert np.array_equal(noise(key_for(seed, spent, TABLE, "mean")), draws[0])


def test_a_continued_fit_draws_other_noise():
    keys = {key_for(0, spent, TABLE) for spent in (None, 0, 1, 2)}
    keys |= {key_for(bytes(32), spent, TABLE) for spent in (None, 0, 1, 2)}
    assert len(keys) == 8


def test_no_seed_gives_a_fresh_key_each_time():
    keys = {key_for(None, spent, TABLE) for spent in (None, 0) for _ in range(20)}
    assert len(keys) == 40
    assert {len(key) for key in keys} == {KEY_BYTES}


def test_every_derivation_is_as_it_was():
    """Estimators, statistics and modules of earlier versions drew their noise under these keys."""
    key = bytes(range(32))
    assert key_for(key, None, TABLE) == key
    assert key_for(key, 3, TABLE) == bound_key(key, 3)
    assert key_for(5, None, TABLE, 0.5) == bound_key(new_key(5), TABLE, 0.5)
    drawn = int(np.random.RandomState(5).randint(2**31 - 1))
    assert key_for(5, 0, TABLE) == bound_key(new_key(drawn), TABLE)
    assert key_for(5, 2, TABLE) == bound_key(new_key(drawn + (2 << 32)), TABLE)
    for spent in (None, 0):
        state = np.random.RandomState(5)
        assert key_for(state, spent, TABLE) == bound_key(new_key(drawn), TABLE)
        assert key_for(state, spent, TABLE) != bound_key(new_key(drawn), TABLE)


@pytest.mark.parametrize("spent", [None, 0])
@pytest.mark.parametrize("given", ["0", 1.5, object(), np.random.default_rng(0)])
def test_other_seeds_are_refused(given, spent):
    with pytest.raises(ConfigurationError, match="random_state must be"):
        key_for(given, spent)


LONG = np.arange(5000.0)
CHANGED = LONG.copy()
CHANGED[2500] += 1e-12


@dataclass
class Setting:
    value: object


class Wider(Setting):
    """Keeps more than its fields."""


class Level(enum.StrEnum):
    LOW = "low"


def wider(more):
    found = Wider(1)
    found.more = more
    return found


PAIRS = {
    "arrays that text abbreviates": (LONG, CHANGED),
    "arrays in a dictionary": ({"edges": LONG}, {"edges": CHANGED}),
    "arrays in a dataclass": (Setting((LONG,)), Setting((CHANGED,))),
    "objects in an array": (np.array([LONG, 1], object), np.array([CHANGED, 1], object)),
    "dtypes": (np.zeros(4, np.int64), np.zeros(4)),
    "shapes": (np.zeros((2, 6)), np.zeros((3, 4))),
    "shapes in a list": ([np.zeros((2, 6))], [np.zeros((3, 4))]),
    "dtypes in a list": ([np.zeros(4, np.int64)], [np.zeros(4)]),
    "precision of a number": (0.1, np.float32(0.1)),
    "digits of a number": ([0.1], [np.nextafter(0.1, 1)]),
    "signs of zero": ([0.0], [-0.0]),
    "a number and its text": (1, "1"),
    "not a number": (float("nan"), "nan"),
    "None and its text": (None, "None"),
    "a list and its text": ([1], "[1]"),
    "a list and a tuple": ([1], (1,)),
    "a class and its text": (Setting, name_of(Setting)),
    "sets": ({1, 2}, {1, 3}),
    "states of a generator": (np.random.RandomState(1), np.random.RandomState(2)),
    "more than the fields": (wider(LONG), wider(CHANGED)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_no_two_settings_have_one_key(pair):
    one, other = PAIRS[pair]
    for bound in ((lambda x: (x,)), lambda x: ({"setting": x},), lambda x: ([x, 2],)):
        assert bound_key(bytes(32), *bound(one)) == bound_key(bytes(32), *bound(one))
        assert bound_key(bytes(32), *bound(one)) != bound_key(bytes(32), *bound(other))


def test_plain_settings_keep_the_name_that_keys_were_bound_to():
    plain = {"a": (1, 2.5, None), "b": [True, "x", (1,)], "c": Setting(Level.LOW), "d": np.int64(3)}
    assert name_of(plain) == str(plain)


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, np.ma.masked_array([1.0]), np.random.default_rng(0), iter(())]
)
def test_what_has_no_name_by_its_value_is_refused(value):
    for place in (value, [value], {"a": value}, Setting(value)):
        with pytest.raises(ConfigurationError, match="must be named by its value"):
            bound_key(bytes(32), place)


def test_a_fresh_key_is_all_of_the_bytes_that_the_system_draws(monkeypatch):
    """A key with 16 random bits would pass every test that looks at its output only."""
    asked = []

    def drawn(count):
        asked.append(count)
        return bytes((7 * i + len(asked)) % 256 for i in range(count))

    monkeypatch.setattr(secrets, "token_bytes", drawn)
    assert randomness.secrets is secrets
    keys = [new_key(), key_for(None, None, TABLE), key_for(None, 3, TABLE)]
    assert asked == [KEY_BYTES] * 3
    assert keys == [bytes((7 * i + n) % 256 for i in range(32)) for n in (1, 2, 3)]
    assert KEY_BYTES >= 32
