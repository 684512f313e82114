"""Densities and masses against 60 digits: the error that `mixed_moments` allows for is honest."""

import mpmath
import numpy as np
import pytest

from winsor.contrib.modelmix.density import GAUSSIAN, LAPLACE, Mixed

ALLOWED = 5e-12  # mixed_moments moves logs by 3e-11 and shares by 1e-10


def exact_tail(noise, t):
    if noise is GAUSSIAN:
        return mpmath.erfc(t / mpmath.sqrt(2)) / 2
    return mpmath.exp(-t) / 2 if t >= 0 else 1 - mpmath.exp(t) / 2


def exact_excess(noise, t):
    if noise is GAUSSIAN:
        return mpmath.npdf(t) - t * exact_tail(noise, t)
    return mpmath.exp(-t) / 2 if t >= 0 else mpmath.exp(t) / 2 - t


def points(width):
    rng = np.random.default_rng(7)
    spread = rng.uniform(-width / 2 - 45, width / 2 + 45, 12)
    return np.concatenate([spread, [0.0, width / 2, -width / 2, 0.3, -width / 2 + 4]])


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE], ids=lambda n: n.name)
@pytest.mark.parametrize("width", [0.01, 0.5, 6.0, 41.3, 4096.0])
def test_logs_keep_their_digits(noise, width):
    mixed = Mixed(noise, width)
    with mpmath.workdps(60):
        half = mpmath.mpf(width) / 2
        for x in points(width):
            size = abs(mpmath.mpf(float(x)))
            gap = exact_tail(noise, size - half) - exact_tail(noise, size + half)
            density = mpmath.log(gap / width)
            assert abs(density - mixed.log_density(np.array([x]))[0]) < ALLOWED
            ends = np.array([x, x + 0.03])
            a, b = (mpmath.mpf(float(e)) for e in ends)
            if x + ends[1] < 0:
                a, b = -b, -a
            near = exact_excess(noise, a - half) - exact_excess(noise, b - half)
            far = exact_excess(noise, a + half) - exact_excess(noise, b + half)
            mass = mpmath.log((near - far) / width)
            assert abs(mass - mixed.log_cells(ends)[0]) < ALLOWED


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE], ids=lambda n: n.name)
@pytest.mark.parametrize("width", [0.01, 3.0, 300.0])
def test_masses_add_up_to_one(noise, width):
    mixed = Mixed(noise, width)
    edge = width / 2 + 6
    nodes = np.concatenate([np.linspace(-edge, edge, 501)])
    total = np.exp(mixed.log_cells(nodes)).sum() + 2 * np.exp(mixed.log_upper_tail(edge))
    assert total == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("width", [0.01, 1.0, 41.3, 2000.0])
def test_decay_is_minus_the_slope_of_the_log_density(width):
    mixed = Mixed(GAUSSIAN, width)
    x = np.linspace(-width / 2 - 20, width / 2 + 20, 301)
    slope = (mixed.log_density(x + 1e-4) - mixed.log_density(x - 1e-4)) / 2e-4
    assert mixed.decay(x) == pytest.approx(-slope, abs=1e-6, rel=1e-6)
    steps = np.diff(mixed.decay(x)) / np.diff(x)
    assert (steps >= -1e-12).all()  # log-concave
    assert (steps <= 1 + 1e-9).all()  # never falls faster than the Gaussian


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE], ids=lambda n: n.name)
@pytest.mark.parametrize("width", [0.2, 20.0])
def test_likelihood_ratio_grows_along_the_line(noise, width):
    mixed = Mixed(noise, width)
    x = np.linspace(-width / 2 - 8, width / 2 + 12, 2001)
    ratio = mixed.log_density(x - 0.7) - mixed.log_density(x)
    assert (np.diff(ratio) >= -1e-12).all()
