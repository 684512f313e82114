"""ModelMix under attack: the densities are densities, and the exact law is exact."""

import numpy as np
import pytest
from winsor_papers.modelmix import experiment as mixing
from winsor_papers.modelmix.experiment import (
    LOG_DENSITIES,
    SLACK,
    MixingExperiment,
    exact_step_claim,
)

from winsor.audit.claims import gaussian_delta


@pytest.mark.parametrize("noise", LOG_DENSITIES)
@pytest.mark.parametrize("width", [0.01, 1.0, 30.0])
def test_densities_of_widened_noise_are_those_of_a_sum(noise, width):
    r = np.linspace(-60, 60, 40_001)
    density = np.exp(LOG_DENSITIES[noise](r, np.asarray(width), 0.8)) / width
    assert np.trapezoid(density, r) == pytest.approx(1.0, abs=1e-4)
    variance = 0.8**2 * (2 if noise == "laplace" else 1) + width**2 / 12
    assert np.trapezoid(density * r**2, r) == pytest.approx(variance, rel=1e-3)


def test_densities_far_out_are_finite_logarithms():
    for log_density in LOG_DENSITIES.values():
        far = log_density(np.array([-200.0, 200.0]), np.asarray(1.0), 1.0)
        assert np.isfinite(far).all() and far[0] == pytest.approx(far[1])


@pytest.mark.parametrize("noise", LOG_DENSITIES)
def test_the_integral_is_within_its_slack(noise, monkeypatch):
    experiment = MixingExperiment(0.1, 1.0, q=1.0, steps=1, noise=noise)
    coarse = exact_step_claim(experiment)
    linspace = np.linspace
    monkeypatch.setattr(mixing.np, "linspace", lambda a, b, n: linspace(a, b, 4 * (n - 1) + 1))
    fine = exact_step_claim(experiment)
    assert np.abs(coarse.deltas - fine.deltas).max() < SLACK / 2


def test_almost_no_mixing_is_the_gaussian_curve():
    claim = exact_step_claim(MixingExperiment(1e-5, 1.0, q=1.0, steps=1))
    exact = gaussian_delta(claim.epsilons, 1.0)
    assert np.abs(claim.deltas - exact - SLACK).max() < 1e-6
