"""How many bands of correlated noise pay, and which coefficients."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg

from winsor.core.contract import CalibrationError, ConfigurationError
from winsor.core.noise.banded import BandedGaussian
from winsor.planning.bands import (
    Banded,
    Workload,
    choose,
    compare,
    optimised_coefficients,
    powers_of_two,
    square_root_coefficients,
)


def dense(column, steps):
    """The matrix C of ``steps`` rows."""
    first = np.zeros(steps)
    first[: min(steps, len(column))] = column[:steps]
    return linalg.toeplitz(first, np.zeros(steps))


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
