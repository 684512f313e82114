"""Correlated noise against dense linear algebra; who may use it; how many bands pay."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from scipy import linalg

from winsor.core.contract import (
    Bounded,
    CalibrationError,
    ConfigurationError,
    Neighbouring,
    Sensitivity,
    UnsoundRelease,
    UnsupportedEvent,
)
from winsor.core.noise.banded import BandedGaussian, inverse_column
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.grid import on_grid
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson
from winsor.gradients.tree import Layout
from winsor.planning.bands import (
    Banded,
    Workload,
    choose,
    compare,
    optimised_coefficients,
    powers_of_two,
    square_root_coefficients,
)

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
        leaves[0] += scale * torch.from_numpy(self.normals)


def run(mechanism, sums, normals, bounds=None, first=0):
    """Release ``sums[first:]`` one after another."""
    released = []
    for step in range(first, len(sums)):
        bound = 1.0 if bounds is None else bounds[step]
        parts = {"grad": bounded(torch.tensor(sums[step]), bound)}
        std = mechanism.std(parts)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, Scripted(normals[step]))
        released.append(values["grad"].numpy().copy())
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
            parts = {"grad": bounded(torch.tensor(sums[step] + present * moved[step]))}
            value = mechanism.covered(parts, {"grad": 1.0}, step)["grad"]
            seen.append(value.numpy().copy())
            # both runs release the same values: those of the first, without any noise
            target = torch.tensor(sums[step] * mechanism.column[0])
            mechanism.add_noise(parts, {"grad": 1.0}, Scripted((target - value).numpy()))
        covered.append(np.array(seen))
    difference = covered[1] - covered[0]
    assert np.allclose(difference, dense(mechanism.column, steps) @ moved, atol=1e-12)
    for visit in (3, 7, 11):
        assert np.linalg.norm(difference[visit : visit + bands]) <= 1 + 1e-9


def test_several_parts_of_several_kinds():
    rng = np.random.default_rng(2)
    mechanism = BandedGaussian.of_bands(1.0, 3)
    layout = Layout({"a": torch.zeros(2, 2), "b": torch.zeros(3)})
    normals = {"grad": rng.standard_normal((6, 7)), "count": rng.standard_normal((6, 1))}
    inverse = np.linalg.inv(dense(mechanism.column, 6))

    class ByName:
        def __init__(self, step):
            self.step = step

        def add(self, name, leaves, scale, law):
            Scripted(normals[name][self.step]).add(name, leaves, scale, law)

    for step in range(6):
        tree = layout.empty()
        tree.flat.fill_(float(step))
        parts = {"grad": bounded(tree, 1.0, 0.9), "count": bounded(torch.ones(1), 0.5, 0.1)}
        std = mechanism.std(parts)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, ByName(step))
        expected = step + std["grad"] * (inverse @ normals["grad"])[step]
        assert values["grad"] is tree
        assert np.allclose(tree.flat.numpy(), expected, atol=1e-5)
        count = 1 + std["count"] * (inverse @ normals["count"])[step]
        assert np.allclose(values["count"].numpy(), count, atol=1e-5)


def test_noise_of_a_real_source_has_the_claimed_size():
    mechanism, source = BandedGaussian.of_bands(2.0, 4), NoiseSource(7, prefetch=False)
    for step in range(6):
        parts = {"grad": bounded(torch.zeros(20_000))}
        sizes = {"grad": 20_000 * mechanism.roundings}
        std, bits = on_grid(mechanism, parts, sizes)
        mechanism.covered(parts, std, step)
        values = mechanism.add_noise(parts, std, NoiseOfStep(source, step, bits))["grad"]
        expected = 2.0 * mechanism.growth(step)
        assert float(values.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * 20_000))


def test_one_band_is_gaussian_noise():
    mechanism, plain = BandedGaussian.of_bands(1.3, 1), Gaussian(1.3)
    parts = {"grad": bounded(torch.zeros(3))}
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
    parts = {"grad": bounded(torch.ones(2))}
    first = mechanism.covered(parts, {"grad": 1.0}, 4)["grad"].clone()
    assert torch.equal(first, mechanism.covered(parts, {"grad": 1.0}, 4)["grad"])


def test_steps_out_of_turn_are_refused():
    mechanism = BandedGaussian.of_bands(1.0, 3)
    run(mechanism, np.ones((2, 2)), np.ones((2, 2)))
    parts = {"grad": bounded(torch.ones(2))}
    for step in (0, 1, 3):
        with pytest.raises(UnsoundRelease, match="step after step"):
            mechanism.covered(parts, {"grad": 1.0}, step)
    with pytest.raises(UnsoundRelease, match="prepared"):
        mechanism.add_noise(parts, {"grad": 1.0}, Scripted(np.ones(2)))
    with pytest.raises(UnsoundRelease, match="same parts"):
        mechanism.covered({"grad": bounded(torch.ones(3))}, {"grad": 1.0}, 2)


def test_a_state_of_another_run_is_refused():
    state = BandedGaussian.of_bands(1.0, 3).state() | {"step": 5, "noises": {"grad": []}}
    with pytest.raises(ConfigurationError, match="another run"):
        BandedGaussian.of_bands(1.0, 3).load_state(state)


def test_memory_is_one_gradient_less_than_bands():
    mechanism = BandedGaussian.of_bands(1.0, 5)
    run(mechanism, np.ones((9, 30)), np.ones((9, 30)))
    kept = mechanism.state()["noises"]["grad"]
    assert sum(noise.numel() * 8 for noise in kept) == mechanism.memory(30) == 8 * 30 * 4


# ------------------------------------------------------------------------------------- the price


def test_only_cyclic_sampling_can_price_it():
    local = BandedGaussian.of_bands(1.2, 4).event({"grad": bounded(torch.zeros(2))})
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
    parts = {"grad": Bounded(torch.zeros(2), sensitivity)}
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


# ----------------------------------------------------------------------------- how many bands pay


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("schedule", [None, "cosine"])
@pytest.mark.parametrize("bands", [1, 6])
def test_the_error_is_the_dense_one(momentum, schedule, bands):
    steps = 80
    rates = 0.5 + 0.5 * np.cos(np.pi * np.arange(steps) / steps)
    column = square_root_coefficients(bands)
    workload = Workload(steps, momentum, None if schedule is None else tuple(rates))
    scale = np.diag(np.ones(steps) if schedule is None else rates)
    filtered = linalg.toeplitz(momentum ** np.arange(steps), np.zeros(steps))
    whole = (
        np.tril(np.ones((steps, steps))) @ scale @ filtered @ np.linalg.inv(dense(column, steps))
    )
    assert workload.error(column) == pytest.approx(np.linalg.norm(whole) / math.sqrt(steps))


def test_a_long_schedule_is_sampled():
    steps = 3000
    constant = Workload(steps).error(square_root_coefficients(8))
    listed = Workload(steps, 0.0, (1.0,) * steps).error(square_root_coefficients(8))
    assert listed == pytest.approx(constant, rel=2e-3)


@pytest.mark.parametrize(
    ("per_epoch", "epochs", "epsilon", "expected"),
    [(200, 1, 8.0, 0.475), (100, 5, 8.0, 0.54), (200, 1, 1.0, 0.70), (50, 20, 3.0, 0.96)],
)
def test_reference_errors(per_epoch, epochs, epsilon, expected):
    """Of at most 16 bands, against independent noise. The numbers came without the steps of an
    epoch; these are round ones at which they are met."""
    workload = Workload(per_epoch * epochs)
    rows = compare(workload, 1 / per_epoch, epsilon, 1e-5, [1, 2, 4, 8, 16])
    assert rows[0].relative_error == 1.0
    assert min(row.relative_error for row in rows) == pytest.approx(expected, abs=0.02)


def test_long_runs_with_small_epsilon_choose_independent_noise():
    assert choose(Workload(40 * 59), 1 / 59, 3.0, 1e-5).bands == 1


def test_few_epochs_with_large_epsilon_choose_many_bands():
    chosen = choose(Workload(100), 0.01, 8.0, 1e-5)
    assert chosen.bands >= 8
    assert chosen.relative_error < 0.6


def test_a_falling_learning_rate_and_momentum_enter():
    steps = 100
    falling = tuple(1 - step / steps for step in range(steps))
    plain = compare(Workload(steps), 0.01, 8.0, 1e-5, [16])[0]
    other = compare(Workload(steps, 0.9, falling), 0.01, 8.0, 1e-5, [16])[0]
    assert other.noise_multiplier == plain.noise_multiplier
    assert other.relative_error != pytest.approx(plain.relative_error, rel=0.01)


def test_candidates():
    assert powers_of_two(1000, 1 / 59) == [1, 2, 4, 8, 16, 32]
    assert powers_of_two(3, 0.01) == [1, 2]
    assert powers_of_two(1000, 1.0) == [1]
    with pytest.raises(CalibrationError, match="1/rate"):
        compare(Workload(10), 0.5, 1.0, 1e-5, [4])


def test_what_a_user_asks_for():
    workload = Workload(40 * 59)
    assert Banded().settled(workload, 1 / 59, 3.0, 1e-5).bands == 1
    four = Banded(4).settled(Workload(10), 0.1, 1.0, 1e-5)
    assert four.with_noise(1.5, 10.0).column == BandedGaussian.of_bands(1.5, 4).column
    fitted = Banded(4, optimised=True).settled(Workload(500), 0.1, 1.0, 1e-5)
    assert fitted.with_noise(1.5, 10.0).column != four.column
    with pytest.raises(ConfigurationError, match="settled"):
        Banded(4).with_noise(1.0, 10.0)
    with pytest.raises(ConfigurationError, match="bands"):
        Banded(0)


@pytest.mark.parametrize(("steps", "bands", "gain"), [(500, 4, 0.93), (500, 16, 0.93), (100, 1, 1)])
def test_optimised_coefficients_are_a_column_and_no_worse(steps, bands, gain):
    workload = Workload(steps)
    column = optimised_coefficients(bands, workload)
    assert len(column) == bands
    assert 1 - 1e-4 < np.linalg.norm(column) <= 1
    assert workload.error(column) <= gain * workload.error(square_root_coefficients(bands))
    BandedGaussian(1.0, column.tolist())


def test_optimised_coefficients_of_a_long_run_with_a_schedule():
    steps = 6000
    workload = Workload(steps, 0.5, tuple(1 - step / steps for step in range(steps)))
    column = optimised_coefficients(2, workload)
    assert workload.error(column) <= workload.error(square_root_coefficients(2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: Workload(0),
        lambda: Workload(3, 1.0),
        lambda: Workload(3, 0.0, (1.0,)),
        lambda: square_root_coefficients(2.5),
    ],
)
def test_bad_workloads_are_refused(build):
    with pytest.raises(ConfigurationError, match="Got"):
        build()
