"""ModelMix's own formula, against the numbers that section 4.3 prints."""

import numpy as np
import pytest
from winsor_papers.modelmix.claim import modelmix_claim
from winsor_papers.published import PublishedClaim
from winsor_papers.reproductions.modelmix.section43 import (
    PRINTED,
    Section43,
    section_43_claims,
    section_43_noise,
)

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent


@pytest.fixture(scope="module")
def noise():
    return section_43_noise()


@pytest.fixture(scope="module")
def claims():
    return section_43_claims()


def test_the_noise_of_section_43(noise):
    assert noise == pytest.approx(0.3633, abs=2e-4)
    setting = Section43()
    plain = modelmix_claim(setting.event(0.0, 1, noise), setting.steps, setting.delta)
    assert plain.published_epsilon == pytest.approx(200, rel=1e-3)


@pytest.mark.parametrize("cell", PRINTED)
def test_within_four_percent_of_print(claims, cell):
    claim = claims[cell]
    assert isinstance(claim, PublishedClaim)
    assert claim.published_epsilon == pytest.approx(PRINTED[cell], rel=0.04)
    assert claim.doubts


def test_the_formula_at_one_order_by_hand():
    """p = 1, no mixing, no subsampling to speak of: order a costs a/(2 nm^2)."""
    event = MixedGaussianDpEvent(1 - 1e-12, 2.0, 0.0)
    orders = 1 + np.arange(1, 100) / 10
    by_hand = np.min(10 * orders / (2 * 4) + np.log(1e5) / (orders - 1))
    claim = modelmix_claim(event, 10, 1e-5)
    assert claim.published_epsilon == pytest.approx(by_hand, rel=1e-6)


def test_the_corollary_with_p_one_coordinate_each_agrees_with_the_theorem():
    """At p barely above 1 the corollary is the theorem at whole orders, hence not smaller."""
    setting, noise = Section43(), 1.0
    theorem = modelmix_claim(setting.event(0.3, 1, noise), 5000, 1e-5)
    corollary = modelmix_claim(setting.event(0.3, 1 + 1e-9, noise), 5000, 1e-5)
    assert corollary.published_epsilon >= theorem.published_epsilon * (1 - 1e-9)
    assert corollary.published_epsilon <= theorem.published_epsilon * 1.1


def test_whole_orders_do_not_explain_the_figure(noise):
    """Why fractional orders are read into Theorem 4.1: whole ones give 83 where 31.7 is shown."""
    claim = modelmix_claim(Section43().event(0.3, 1 + 1e-9, noise), 5000, 1e-5)
    assert claim.published_epsilon == pytest.approx(82.7, rel=0.01)
