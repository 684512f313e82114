"""Correlated noise against dense linear algebra; who may use it; how many bands pay."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import linalg

from winsor.core.accounting.lattice import on_grid
from winsor.core.contract import (
    Bounded,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
    UnsupportedEvent,
)
from winsor.core.noise.banded import BandedGaussian, inverse_column, square_root_coefficients
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def dense(column, steps):
    """The matrix C of ``steps`` rows."""
    first = np.zeros(steps)
    first[: min(steps, len(column))] = column[:steps]
    return linalg.toeplitz(first, np.zeros(steps))


def bounded(value, bound=1.0, share=1.0):
    return Bounded(value, Sensitivity.per_sample(bound, "test"), share)


class Scripted:
    """Known normals instead of drawn ones."""

    def __init__(self, normals):
        self.normals = normals

    def add(self, name, leaves, scale, law):
        assert law == "gaussian"
        assert len(leaves) == 1
        leaves[0] += scale * self.normals


def run(mechanism, sums, normals, bounds=None, first=0):
    """Release ``sums[first:]`` one after another."""
    released = []
    for step in range(first, len(sums)):
        bound = 1.0 if bounds is None else bounds[step]
        parts = {"grad": bounded(sums[step].copy(), bound)}
        std = mechanism.std(parts)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, Scripted(normals[step]))
        released.append(values["grad"].copy())
    return np.array(released)


# ------------------------------------------------------------------------------ the coefficients


def test_square_root_coefficients_are_those_of_the_prefix_sums():
    column = square_root_coefficients(12)
    root = linalg.sqrtm(np.tril(np.ones((12, 12))) + 1e-14 * np.eye(12)).real
    whole = dense(column / column[0], 12)
    assert np.allclose(whole @ whole, np.tril(np.ones((12, 12))))
    assert np.allclose(whole, root, atol=1e-2)


@pytest.mark.parametrize("bands", [1, 2, 5, 16])
def test_columns_have_norm_one_and_the_last_ones_less(bands):
    norms = np.linalg.norm(dense(square_root_coefficients(bands), 40), axis=0)
    assert np.allclose(norms[: 40 - bands + 1], 1.0)
    assert np.all(norms <= 1 + 1e-12)


@pytest.mark.parametrize("bands", [1, 3, 8])
def test_the_inverse_is_the_dense_one(bands):
    column = square_root_coefficients(bands)
    assert np.allclose(inverse_column(column, 30), np.linalg.inv(dense(column, 30))[:, 0])


# --------------------------------------------------------------------------------- the recursion


@pytest.mark.parametrize("bands", [1, 2, 4, 7])
def test_the_release_is_the_sum_plus_dense_correlated_noise(bands):
    rng = np.random.default_rng(bands)
    sums, normals = rng.standard_normal((20, 6)), rng.standard_normal((20, 6))
    mechanism = BandedGaussian.of_bands(1.7, bands)
    inverse = np.linalg.inv(dense(mechanism.column, 20))
    assert np.allclose(run(mechanism, sums, normals), sums + 1.7 * inverse @ normals, atol=1e-12)


def test_a_moving_bound_scales_each_step_by_its_own():
    rng = np.random.default_rng(0)
    sums, normals = rng.standard_normal((15, 4)), rng.standard_normal((15, 4))
    bounds = np.exp(rng.standard_normal(15))
    mechanism = BandedGaussian.of_bands(0.9, 5)
    inverse = np.linalg.inv(dense(mechanism.column, 15))
    expected = sums + 0.9 * bounds[:, None] * (inverse @ normals)
    assert np.allclose(run(mechanism, sums, normals, bounds), expected, atol=1e-12)


def test_what_is_covered_moves_by_at_most_the_bound_over_all_steps():
    """A row in steps 3 and 3 + b of two runs that are alike otherwise: given the same releases,
    what is covered differs by C times the row's contributions, of norm at most one a visit."""
    bands, steps = 4, 16
    rng = np.random.default_rng(1)
    sums = rng.standard_normal((steps, 5))
    moved = np.zeros((steps, 5))
    for visit in (3, 7, 11):
        moved[visit] = rng.standard_normal(5)
        moved[visit] /= np.linalg.norm(moved[visit])
    covered = []
    for present in (0.0, 1.0):
        mechanism = BandedGaussian.of_bands(1.0, bands)
        seen = []
        for step in range(steps):
            parts = {"grad": bounded(sums[step] + present * moved[step])}
            value = mechanism.covered(parts, {"grad": 1.0}, step)["grad"]
            seen.append(value.copy())
            # both runs release the same values: those of the first, without any noise
            target = sums[step] * mechanism.column[0]
            mechanism.add_noise(parts, {"grad": 1.0}, Scripted(target - value))
        covered.append(np.array(seen))
    difference = covered[1] - covered[0]
    assert np.allclose(difference, dense(mechanism.column, steps) @ moved, atol=1e-12)
    for visit in (3, 7, 11):
        assert np.linalg.norm(difference[visit : visit + bands]) <= 1 + 1e-9


def test_several_parts_of_several_kinds():
    rng = np.random.default_rng(2)
    mechanism = BandedGaussian.of_bands(1.0, 3)
    normals = {"grad": rng.standard_normal((6, 7)), "count": rng.standard_normal((6, 1))}
    inverse = np.linalg.inv(dense(mechanism.column, 6))

    class ByName:
        def __init__(self, step):
            self.step = step

        def add(self, name, leaves, scale, law):
            Scripted(normals[name][self.step]).add(name, leaves, scale, law)

    for step in range(6):
        tree = {"a": np.full((2, 2), step, np.float32), "b": np.full(3, step, np.float32)}
        parts = {
            "grad": bounded(tree, 1.0, 0.9),
            "count": bounded(np.ones(1, np.float32), 0.5, 0.1),
        }
        std = mechanism.std(parts)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, ByName(step))
        expected = step + std["grad"] * (inverse @ normals["grad"])[step]
        assert values["grad"] is tree
        assert np.allclose(np.concatenate([tree["a"].ravel(), tree["b"]]), expected, atol=1e-5)
        count = 1 + std["count"] * (inverse @ normals["count"])[step]
        assert np.allclose(values["count"], count, atol=1e-5)


def test_noise_of_a_real_source_has_the_claimed_size():
    mechanism, source = BandedGaussian.of_bands(2.0, 4), NoiseSource(7, prefetch=False)
    for step in range(6):
        parts = {"grad": bounded(np.zeros(20_000, np.float32))}
        sizes = {"grad": 20_000 * mechanism.roundings}
        std, bits = on_grid(mechanism, parts, sizes)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, NoiseOfStep(source, step, bits))["grad"]
        expected = 2.0 * mechanism.growth(step)
        assert float(values.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * 20_000))


def test_one_band_is_gaussian_noise():
    mechanism, plain = BandedGaussian.of_bands(1.3, 1), Gaussian(1.3)
    parts = {"grad": bounded(np.zeros(3))}
    assert mechanism.column == (1.0,)
    assert mechanism.std(parts) == plain.std(parts)
    assert mechanism.event(parts) == plain.event(parts)
    assert mechanism.memory(1000) == 0


# --------------------------------------------------------------------------- order, kill, resume


def test_a_resumed_run_releases_the_same_bits():
    rng = np.random.default_rng(3)
    sums, normals = rng.standard_normal((12, 5)), rng.standard_normal((12, 5))
    whole = run(BandedGaussian.of_bands(1.1, 4), sums, normals)
    for killed in (0, 2, 7):
        first = BandedGaussian.of_bands(1.1, 4)
        before = run(first, sums[:killed], normals)
        second = BandedGaussian.of_bands(1.1, 4)
        second.load_state(first.state())
        after = run(second, sums, normals, first=killed)
        assert np.array_equal(np.concatenate([before.reshape(-1, 5), after]), whole)


def test_asking_again_what_is_covered_changes_nothing():
    mechanism = BandedGaussian.of_bands(1.0, 3)
    run(mechanism, np.ones((4, 2)), np.ones((4, 2)))
    parts = {"grad": bounded(np.ones(2))}
    first = mechanism.covered(parts, {"grad": 1.0}, 4)["grad"].copy()
    assert np.array_equal(first, mechanism.covered(parts, {"grad": 1.0}, 4)["grad"])


def test_steps_out_of_turn_are_refused():
    mechanism = BandedGaussian.of_bands(1.0, 3)
    run(mechanism, np.ones((2, 2)), np.ones((2, 2)))
    parts = {"grad": bounded(np.ones(2))}
    for step in (0, 1, 3):
        with pytest.raises(UnsoundRelease, match="step after step"):
            mechanism.covered(parts, {"grad": 1.0}, step)
    with pytest.raises(UnsoundRelease, match="prepared"):
        mechanism.add_noise(parts, {"grad": 1.0}, Scripted(np.ones(2)))
    with pytest.raises(UnsoundRelease, match="same parts"):
        mechanism.covered({"grad": bounded(np.ones(3))}, {"grad": 1.0}, 2)


def test_a_state_of_another_run_is_refused():
    state = BandedGaussian.of_bands(1.0, 3).state() | {"step": 5, "noises": {"grad": []}}
    with pytest.raises(ConfigurationError, match="another run"):
        BandedGaussian.of_bands(1.0, 3).load_state(state)


def test_memory_is_one_gradient_less_than_bands():
    mechanism = BandedGaussian.of_bands(1.0, 5)
    run(mechanism, np.ones((9, 30)), np.ones((9, 30)))
    kept = mechanism.state()["noises"]["grad"]
    assert sum(noise.nbytes for noise in kept) == mechanism.memory(30) == 8 * 30 * 4


# ------------------------------------------------------------------------------------- the price


def test_only_cyclic_sampling_can_price_it():
    local = BandedGaussian.of_bands(1.2, 4).event({"grad": bounded(np.zeros(2))})
    paid = CyclicPoisson(100, 4, 0.05).amplify(local, ADD)
    assert paid == dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(1.2))
    assert CyclicPoisson(100, 8, 0.05).amplify(local, ADD).sampling_probability == 0.4
    for sampler in (
        Poisson(100, 0.05),
        FullBatch(100),
        CyclicPoisson(100, 3, 0.05),
        CyclicPoisson(100, 1, 0.05),
        Allocation(100, 20),
        Loader(100, 5),
    ):
        with pytest.raises(UnsupportedEvent):
            sampler.amplify(local, ADD)
    with pytest.raises(UnsupportedEvent):
        FixedSize(100, 5).amplify(local, Neighbouring.REPLACE_ONE)


def test_a_random_shift_is_taken_at_its_largest():
    sensitivity = Sensitivity(1.0, 2.0, "test", mixture=((0.5, 1.0), (0.5, 0.25)))
    parts = {"grad": Bounded(np.zeros(2), sensitivity)}
    local = BandedGaussian.of_bands(1.2, 2).event(parts)
    assert CyclicPoisson(100, 2, 0.1).amplify(local, ADD) == dp_event.PoissonSampledDpEvent(
        0.2, dp_event.GaussianDpEvent(1.2)
    )


@pytest.mark.parametrize("column", [(), (0.0, 1.0), (-0.5,), (0.9, 0.5), (math.nan,)])
def test_bad_columns_are_refused(column):
    with pytest.raises(ConfigurationError, match="Got"):
        BandedGaussian(1.0, column)


def test_the_ledger_knows_the_column():
    config = BandedGaussian.of_bands(1.0, 3).config()
    assert config["column"] == square_root_coefficients(3).tolist()
