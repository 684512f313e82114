"""Power clipping: flat at p = 1, bent lengths below the threshold, and the bound for every p."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.rules.flat import Flat
from winsor.rules.power import Power

LENGTHS = torch.tensor([0.0, 1e-20, 0.01, 0.5, 0.999, 1.0, 3.0, 1e30])


def test_the_power_one_is_flat_clipping():
    torch.testing.assert_close(
        Power(1.0, 1.0).weight_of_norm(LENGTHS), Flat(1.0).weight_of_norm(LENGTHS)
    )


def test_lengths_below_the_threshold_are_bent():
    lengths = torch.tensor([0.25, 0.5, 2.0])
    for p in (0.5, 2.0, 3.0):
        bent = Power(1.0, p).weight_of_norm(lengths) * lengths
        torch.testing.assert_close(bent, lengths.double().clamp(max=1) ** p, rtol=2e-3, atol=0)


@given(st.floats(1e-3, 20), st.floats(1e-3, 1e3))
def test_no_length_exceeds_the_threshold(p, threshold):
    lengths = torch.cat([LENGTHS, LENGTHS[:-1] * threshold])
    bent = Power(threshold, p).weight_of_norm(lengths).double() * lengths.double() * (1 + 8e-6)
    assert bent.isfinite().all()
    assert float(bent.max()) <= threshold
