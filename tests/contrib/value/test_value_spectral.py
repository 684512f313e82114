"""Operator norms are bounded from above, closely, and carried between steps only as bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from winsor.contrib.value.bounds.spectral import (
    DRIFT,
    OperatorNorms,
    convolution_norm,
    gram_norm,
    largest_squared,
    spectral_norm,
)
from winsor.contrib.value.bounds.windows import cover, meetings, overlap, sums_by_offset

sizes = st.integers(1, 12)


@given(sizes, sizes, st.integers(0, 2**16), st.sampled_from([1e-8, 1.0, 1e8]))
def test_matrix_norms_are_bounds_within_a_thousandth(m, k, seed, scale):
    matrix = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * scale
    true = float(torch.linalg.matrix_norm(matrix.double(), 2))
    assert true <= spectral_norm(matrix) <= true * (1 + 1e-6)
    by_gram = float(gram_norm(matrix.double()[None], squarings=10)[0])
    assert true <= by_gram <= true * 1.001


@given(sizes, st.integers(1, 40), st.integers(0, 2**16), st.sampled_from([1e-18, 1e-6, 1.0, 1e12]))
def test_rows_are_bounded_in_single_precision_at_any_scale(m, k, seed, scale):
    e = torch.randn(3, m, k, generator=torch.Generator().manual_seed(seed)) * scale
    true = torch.linalg.matrix_norm(e.double(), 2).square()
    bound = largest_squared(e).double()
    assert (true <= bound * (1 + 1e-6)).all()
    # |G^2|_F^(1/2) <= rank^(1/4) |G|_2
    assert (bound <= true * min(m, k) ** 0.25 * 1.01).all()


def materialised(conv, shape):
    """The matrix of a convolution without its bias."""
    basis = torch.eye(math.prod(shape)).view(-1, *shape)
    with torch.no_grad():
        out = conv(basis) - (0 if conv.bias is None else conv(torch.zeros(1, *shape)))
    return out.flatten(1).T.double(), out.shape[2:]


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2),
    st.sampled_from([(1, 3, 1), (2, 2, 1), (2, 4, 2), (4, 4, 4)]), st.integers(0, 2**16),
)  # fmt: skip
def test_convolution_norms_are_bounds(kernel, stride, padding, dilation, channels, seed):
    inside, outside, groups = channels
    if dilation * (kernel - 1) + 1 > 7 + 2 * padding:
        return
    torch.manual_seed(seed)
    conv = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, groups)
    matrix, outs = materialised(conv, (inside, 7, 7))
    true = float(torch.linalg.matrix_norm(matrix, 2))
    pair = (stride, stride), (dilation, dilation)
    bound = convolution_norm(conv.weight, *pair, groups, tuple(outs))
    assert true <= bound * (1 + 1e-6)
    assert bound <= 3 * true or dilation > 1 or min(outs) <= 2


def test_frequencies_beat_the_unfolded_matrix():
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=1)
    matrix, outs = materialised(conv, (8, 8, 8))
    true = float(torch.linalg.matrix_norm(matrix, 2))
    bound = convolution_norm(conv.weight, (1, 1), (1, 1), 1, tuple(outs))
    unfolded = 3 * spectral_norm(conv.weight.flatten(1))
    assert true <= bound <= 1.1 * true
    assert unfolded > 1.4 * bound


@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(4, 9)
)
def test_windows_are_counted_as_unfold_does(kernel, stride, pad, dilation, length):
    reach = dilation * (kernel - 1) + 1
    if reach > length + 2 * pad:
        return
    out = (length + 2 * pad - reach) // stride + 1
    axis = (length, out, kernel, stride, pad, dilation)
    ones = torch.ones(1, 1, length, length)
    unfolded = F.unfold(ones, kernel, dilation=dilation, padding=pad, stride=stride)
    folded = F.fold(
        unfolded, (length, length), kernel, dilation=dilation, padding=pad, stride=stride
    )
    assert torch.equal(cover((axis, axis)).float(), folded.flatten())
    sums = sums_by_offset(ones, (axis, axis))
    assert torch.equal(sums.flatten(), unfolded.sum(2).flatten())
    uneven = torch.randn(2, 3, length, length, generator=torch.Generator().manual_seed(length))
    patches = F.unfold(uneven, kernel, dilation=dilation, padding=pad, stride=stride).sum(2)
    torch.testing.assert_close(
        sums_by_offset(uneven, (axis, axis)).flatten(1), patches, rtol=1e-5, atol=1e-5
    )
    assert meetings(*axis).sum(0).max() <= overlap(kernel, stride, dilation)


def test_a_carried_norm_stays_a_bound_and_is_renewed_when_it_drifts():
    torch.manual_seed(1)
    memory = {}
    weight = torch.randn(20, 30)
    first = OperatorNorms(memory).matrix("w", weight)
    renewed = 0
    for _ in range(60):
        weight = weight + 0.005 * torch.randn(20, 30)
        carried = OperatorNorms(memory).matrix("w", weight)
        true = float(torch.linalg.matrix_norm(weight.double(), 2))
        assert true <= carried <= true * (1 + 2 * DRIFT)
        renewed += torch.equal(memory["w"]["weight"], weight)
    assert 0 < renewed < 30
    assert first != carried


def test_a_carried_convolution_norm_stays_a_bound():
    torch.manual_seed(2)
    memory = {}
    conv = nn.Conv2d(2, 3, 3, stride=1, padding=1, bias=False)
    renewed = 0
    for step in range(20):
        with torch.no_grad():
            conv.weight += 0.002 * torch.randn_like(conv.weight)
        matrix, outs = materialised(conv, (2, 6, 6))
        carried = OperatorNorms(memory).convolution("c", conv.weight, (1, 1), (1, 1), 1, outs)
        assert float(torch.linalg.matrix_norm(matrix, 2)) <= carried
        (entry,) = memory.values()
        renewed += torch.equal(entry["weight"], conv.weight) and step > 0
    assert renewed < 19


def test_weights_without_a_name_are_never_carried():
    memory = {}
    assert OperatorNorms(memory).matrix(None, 2 * torch.eye(3)) == pytest.approx(2.0)
    assert OperatorNorms(memory).matrix(None, 9 * torch.eye(3)) == pytest.approx(9.0)
    assert not memory
