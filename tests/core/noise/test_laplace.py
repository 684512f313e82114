"""The Laplace mechanism: its noise, its joint events, what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import LaplaceDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from winsor.core.accounting import account
from winsor.core.contract import (
    Bounded,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
    UnsupportedRelation,
)
from winsor.core.door import Door
from winsor.core.events.mixed import MixedLaplaceDpEvent
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace, joint_event
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def part(c, share=1.0, bound=None):
    """Bounded by c in L1; its L2 bound is of no concern here."""
    sensitivity = Sensitivity.per_sample(c / 10, "test", l1=c)
    return Bounded(np.zeros(3), sensitivity, share, coordinate_bound=bound)


# ---------------------------------------------------------------------------------------- noise


def test_the_noise_is_laplace_of_the_claimed_scale():
    sampler = FullBatch(10)
    door = Door(Ledger({"test": 1}), Laplace(0.5), sampler, ADD, new_key(seed=1))
    value = {"a": np.zeros(30_000, np.float32), "b": np.zeros((100, 200), np.float32)}
    parts = {"grad": Bounded(value, Sensitivity.per_sample(1.0, "test", l1=4.0))}
    released = door.release(0, parts)
    scale = 0.5 * 4.0
    assert released.std["grad"] == pytest.approx(math.sqrt(2) * scale, rel=5e-4)
    assert released.std["grad"] > math.sqrt(2) * scale  # wider, for the grid
    noise = np.concatenate([v.flatten() for v in released.values["grad"].values()]).astype(float)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 0.01
    assert noise.std() == pytest.approx(released.std["grad"], rel=0.02)
    assert abs(stats.pearsonr(noise[:-1], noise[1:]).statistic) < 0.02


def test_noise_is_added_to_what_is_there_in_the_dtype_of_the_value():
    value = np.full(4, 7.0)
    parts = {"x": Bounded(value, Sensitivity.per_sample(1.0, "test", l1=1.0))}
    draw = NoiseOfStep(NoiseSource(7, prefetch=False), 3, {"x": 30})
    noised = Laplace(1.0).add_noise(parts, {"x": 2 * math.sqrt(2)}, draw)
    noise = NoiseSource(7, prefetch=False)
    alone = np.zeros(4)
    noise.add(3, "x", alone, 2.0, law="laplace", bits=30)
    assert noised["x"].dtype == np.float64
    np.testing.assert_allclose(noised["x"], 7 + alone, rtol=0, atol=2.0**-28)


def test_a_part_without_coordinates_is_released():
    parts = {"x": Bounded(np.zeros(0), Sensitivity.per_sample(1.0, "test", l1=1.0))}
    draw = NoiseOfStep(NoiseSource(7, prefetch=False), 0, {"x": 30})
    noised = Laplace(1.0).add_noise(parts, {"x": 1.0}, draw)
    assert noised["x"].shape == (0,)


# --------------------------------------------------------------------------------------- events


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.1, 1)), min_size=1, max_size=4),
    st.floats(0.1, 20),
)
def test_the_joint_multiplier_is_that_of_the_scaled_vector(bounds, multiplier):
    total = sum(weight for _, weight in bounds)
    parts = {str(i): part(c, weight / total) for i, (c, weight) in enumerate(bounds)}
    scale = {name: std / math.sqrt(2) for name, std in Laplace(multiplier).std(parts).items()}
    moves = sum(p.sensitivity.l1 / scale[name] for name, p in parts.items())
    event = joint_event(parts, multiplier)
    assert event.add_remove == pytest.approx(multiplier)
    assert 1 / event.add_remove == pytest.approx(moves)
    assert event.replace == pytest.approx(multiplier / 2)
    assert event.coordinates >= 1


def test_coordinate_bounds_count_in_units_of_each_parts_noise():
    assert joint_event({"a": part(2.0, bound=0.5)}, 1.0).coordinates == pytest.approx(4)
    assert joint_event({"a": part(2.0, bound=5.0)}, 1.0).coordinates == 1
    parts = {"a": part(2.0, 0.5, bound=0.5), "b": part(1.0, 0.5, bound=0.5)}
    # scales 4 and 2: coordinates move by 1/8 and 1/4 of the noise, all of it by 1
    assert joint_event(parts, 1.0).coordinates == pytest.approx(4)


def test_events_of_each_sampler_and_relation():
    event = joint_event({"a": part(2.0)}, 3.0)
    spread = joint_event({"a": part(2.0, bound=0.5)}, 3.0)
    assert event.poisson(0.1, ADD) == PoissonSampledDpEvent(0.1, LaplaceDpEvent(3.0))
    assert event.poisson(1.0, ADD) == LaplaceDpEvent(3.0)
    assert event.whole(REPLACE) == spread.whole(REPLACE) == LaplaceDpEvent(1.5)
    assert event.poisson(0.1, REPLACE) == MixedLaplaceDpEvent(0.1, 3.0, 0.0, 1.0)
    assert spread.poisson(0.1, ADD) == MixedLaplaceDpEvent(0.1, 3.0, 0.0, 4.0)
    assert spread.whole(ADD) == MixedLaplaceDpEvent(1.0, 3.0, 0.0, 4.0)
    with pytest.raises(UnsupportedRelation, match="Poisson"):
        event.fixed_size(100, 10, REPLACE)


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("q", [0.05, 1.0])
def test_every_event_has_a_certified_epsilon_and_spreading_never_costs(relation, q):
    def epsilon(bound):
        event = joint_event({"a": part(2.0, bound=bound)}, 5.0).poisson(q, relation)
        return account([(event, 20)], 1e-5, relation).epsilon

    whole, spread = epsilon(None), epsilon(0.1)
    assert 0 < spread <= whole < 20 * (2 if relation is REPLACE else 1) / 5.0 + 1e-9


def test_pure_differential_privacy_is_not_exceeded():
    """Ten full-batch releases of multiplier 2 lose at most 10/2."""
    event = joint_event({"a": part(1.0)}, 2.0).whole(ADD)
    assert 4.5 < account([(event, 10)], 1e-5).epsilon <= 5.0


# -------------------------------------------------------------------------------------- refusals


def test_a_bound_in_l2_only_is_refused_and_one_in_l1_is_no_concern_of_gaussian_noise():
    short = {"grad": Bounded(np.zeros(3), Sensitivity.per_sample(1.0, "test"))}
    with pytest.raises(UnsoundRelease, match=r"bounded in L1.*'grad', bounded in L2 only"):
        Laplace(1.0).event(short)
    with pytest.raises(UnsoundRelease, match="bounded in L1"):
        Laplace(1.0).std(short)
    assert Gaussian(1.5).event({"grad": part(1.0)}).add_remove == 1.5
    assert Gaussian(1.5).std({"grad": part(1.0)}) == {"grad": pytest.approx(0.15)}
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(UnsoundRelease, match="sensitivity l1 must be"):
            Sensitivity.per_sample(1.0, "test", l1=bad)


def test_shares_multipliers_and_changes_by_hand_are_refused():
    with pytest.raises(UnsoundRelease, match="add up to 1"):
        Laplace(1.0).std({"a": part(1.0, 0.5), "b": part(1.0, 0.4)})
    for bad in (0.0, -1.0, float("inf"), float("nan"), "1"):
        with pytest.raises(ConfigurationError, match="noise_multiplier must be"):
            Laplace(bad)
    with pytest.raises(UnsoundRelease, match="by hand"):
        Laplace(1.0).noise_multiplier = 0.1
