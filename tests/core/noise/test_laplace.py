"""The Laplace mechanism: its noise, its joint events, what it refuses, and mixing on top of it."""

from __future__ import annotations

import math

import pytest
import torch
from dp_accounting.dp_event import LaplaceDpEvent, PoissonSampledDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.modelmix.mechanism import MixedLaplace, ModelMix
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
from winsor.core.events.mixed_laplace import MixedLaplaceDpEvent
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace, joint_event
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.rules import L1, Flat, Quantile

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def part(c, share=1.0, bound=None):
    """Bounded by c in L1; its L2 bound is of no concern here."""
    sensitivity = Sensitivity.per_sample(c / 10, "test", l1=c)
    return Bounded(torch.zeros(3), sensitivity, share, coordinate_bound=bound)


# ---------------------------------------------------------------------------------------- noise


def test_the_noise_is_laplace_of_the_claimed_scale():
    sampler = FullBatch(10)
    door = Door(Ledger({"test": 1}), Laplace(0.5), sampler, ADD, new_key(seed=1))
    value = {"a": torch.zeros(30_000), "b": torch.zeros(100, 200)}
    parts = {"grad": Bounded(value, Sensitivity.per_sample(1.0, "test", l1=4.0))}
    released = door.release(0, parts)
    scale = 0.5 * 4.0
    assert released.std["grad"] == pytest.approx(math.sqrt(2) * scale, rel=5e-4)
    assert released.std["grad"] > math.sqrt(2) * scale  # wider, for the grid
    noise = torch.cat([v.flatten() for v in released.values["grad"].values()]).double().numpy()
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 0.01
    assert noise.std() == pytest.approx(released.std["grad"], rel=0.02)
    assert abs(stats.pearsonr(noise[:-1], noise[1:]).statistic) < 0.02


def test_noise_is_added_to_what_is_there_in_the_dtype_of_the_value():
    value = torch.full((4,), 7.0, dtype=torch.float64)
    parts = {"x": Bounded(value, Sensitivity.per_sample(1.0, "test", l1=1.0))}
    draw = NoiseOfStep(NoiseSource(7, prefetch=False), 3, {"x": 30})
    noised = Laplace(1.0).add_noise(parts, {"x": 2 * math.sqrt(2)}, draw)
    noise = NoiseSource(7, prefetch=False)
    alone = torch.zeros(4, dtype=torch.float64)
    noise.add(3, "x", alone, 2.0, law="laplace", bits=30)
    assert noised["x"].dtype is torch.float64
    torch.testing.assert_close(noised["x"], 7 + alone, rtol=0, atol=2.0**-28)


def test_a_part_without_coordinates_is_released():
    parts = {"x": Bounded(torch.zeros(0), Sensitivity.per_sample(1.0, "test", l1=1.0))}
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
    short = {"grad": Bounded(torch.zeros(3), Sensitivity.per_sample(1.0, "test"))}
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


# ------------------------------------------------------------------------------------- training


def start(mechanism, rule=None, **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": rule or L1(1.0, p=4),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 4,
        "batch_size": 16,
        "seed": 0,
        "mechanism": mechanism,
    }
    return winsor.make_private(**{**arguments, **changes})


def train(private):
    for x, y in private.batches():
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    return private


def test_a_run_with_laplace_noise_records_its_event():
    private = train(start("laplace"))
    assert private.ledger.history() == [(MixedLaplaceDpEvent(0.2, 1.0, 0.0, 4.0), 4)]
    plain = train(start("laplace", L1(1.0)))
    assert plain.ledger.history() == [(PoissonSampledDpEvent(0.2, LaplaceDpEvent(1.0)), 4)]
    assert private.spent().epsilon <= plain.spent().epsilon


def test_laplace_noise_is_calibrated():
    private = train(start("laplace", noise_multiplier=None, epsilon=1.0))
    assert 0.99 <= private.spent().epsilon <= 1.0


def test_mixing_records_its_event_and_never_costs():
    mixed = train(start(ModelMix(0.5, noise="laplace")))
    event = MixedLaplaceDpEvent(0.2, 1.0, width_ratio=0.5 * 16, coordinates=4.0)
    assert mixed.ledger.history() == [(event, 4)]
    still = train(start(ModelMix(0.0, noise="laplace")))
    plain = train(start("laplace"))
    assert mixed.spent().epsilon < plain.spent().epsilon
    assert still.ledger.history() == plain.ledger.history()
    assert mixed.state_dict()["key"] is None


def test_mixing_on_the_full_batch():
    parts = {"grad": part(2.0, bound=0.5)}
    mechanism = MixedLaplace(1.0, ModelMix(0.25, noise="laplace"), expected_size=8.0)
    whole = FullBatch(8).amplify(mechanism.event(parts), ADD)
    assert whole == MixedLaplaceDpEvent(1.0, 1.0, 0.25 * 8 / 2, 4.0)
    assert Poisson(8, 1.0).amplify(mechanism.event(parts), ADD) == whole
    with pytest.raises(UnsupportedRelation, match="Poisson"):
        mechanism.event(parts).fixed_size(8, 2, REPLACE)
    still = MixedLaplace(1.0, ModelMix(0.0, noise="laplace"), expected_size=8.0)
    assert still.event(parts).whole(ADD) == MixedLaplaceDpEvent(1.0, 1.0, 0.0, 4.0)


def test_what_does_not_fit_is_refused():
    with pytest.raises(UnsoundRelease, match="bounded in L1"):
        start("laplace", Flat(1.0))
    with pytest.raises(UnsoundRelease, match="bounded in L1"):
        start(ModelMix(0.1, noise="laplace"), Flat(1.0))
    with pytest.raises(UnsoundRelease, match="one bounded part"):
        start(ModelMix(0.1, noise="laplace"), Quantile(1.0))
    with pytest.raises(UnsupportedRelation, match="fixed size"):
        start("laplace", sampling="fixed", relation="replace_one")
    with pytest.raises(ConfigurationError, match="mechanism must be"):
        start("cauchy")
    with pytest.raises(ConfigurationError, match="noise must be"):
        ModelMix(0.1, noise="cauchy")


def test_gaussian_noise_accepts_the_rule_with_its_bound_in_l2():
    """L1 bound c with coordinates below c/p: L2 bound c/sqrt(p), spread over p coordinates."""
    private = train(start(ModelMix(0.5)))
    event, _ = private.ledger.history()[0]
    assert event.coordinates == pytest.approx(4)
    assert event.width_ratio == pytest.approx(0.5 * 16 / 0.5)
