"""Keys: the same seed gives the same key for the same data and settings only."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.core.contract import ConfigurationError
from winsor.core.noise.source import NoiseSource
from winsor.core.randomness import KEY_BYTES, bound_key, key_for, new_key

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
