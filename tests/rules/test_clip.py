"""The one clipping formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.core.contract import ConfigurationError
from winsor.rules.automatic import PSAC, Automatic
from winsor.rules.flat import Flat
from winsor.rules.power import Power
from winsor.rules.rule import clip_weights

LENGTHS = st.floats(0.0, 2.0**127, width=32)


@given(st.lists(LENGTHS, min_size=1, max_size=8), st.floats(1e-90, 1e38))
def test_no_row_is_longer_than_the_threshold(lengths, threshold):
    norms = torch.tensor(lengths)
    weights = clip_weights(norms, threshold)
    assert weights.isfinite().all()
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights.double() * norms.double() <= threshold).all()


HUGE = [1e33, 3.586049684142277e37, 3.4e38]


@pytest.mark.parametrize("bound", [1e-8, 1e-5, 1e-3])
@pytest.mark.parametrize("norms", [torch.tensor(HUGE), torch.tensor(HUGE).repeat(2000)])
def test_weights_of_huge_rows_keep_their_digits(bound, norms):
    rules = [Flat(bound), Automatic(bound), PSAC(bound, 0.1), Power(bound, 0.5)]
    for rule in rules:
        weights = rule.weight_of_norm(norms)
        assert (weights.double() * norms.double() <= bound).all(), rule
        assert (weights * norms.double() >= 0.999 * bound).all(), rule


@pytest.mark.parametrize("threshold", [1e-90, 1e-45, 1e-40, 1e-20, 1.0])
def test_rows_of_length_zero_have_finite_weights(threshold):
    assert clip_weights(torch.zeros(3), threshold).isfinite().all()


def test_a_bound_too_small_for_its_reciprocal_is_refused():
    with pytest.raises(ConfigurationError, match="at least 2\\^-300"):
        clip_weights(torch.ones(1), 1e-320)


def test_short_rows_keep_their_length():
    assert clip_weights(torch.tensor([0.0, 0.5, 0.9]), 1.0) == pytest.approx([1.0, 1.0, 1.0])
