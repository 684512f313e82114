"""Section 5.1: epsilon 0.695 for the statistics of scattering features, as the paper has it."""

from __future__ import annotations

from dp_accounting import rdp
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent

from winsor_papers.published import PublishedClaim

PRINTED_EPSILON = 0.695
NOISE_MULTIPLIER = 8.0
"""Of Tramer and Boneh 2021, whose set-up the paper takes over; it gives the printed epsilon."""


def statistics_claim(
    noise_multiplier: float = NOISE_MULTIPLIER, delta: float = 1e-5
) -> PublishedClaim:
    """Two Gaussian releases, channel means and mean squares, by Renyi accounting.

    >>> round(statistics_claim().published_epsilon, 3)
    0.695
    """
    accountant = rdp.RdpAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), 2))
    return PublishedClaim(
        float(accountant.get_epsilon(delta)),
        delta,
        "ModelMix",
        "section 5.1, statistics of the features, after Tramer and Boneh 2021",
        ("their clipping thresholds are medians of the private norms",),
    )
