"""A carried norm is never below the true one, whoever changed the weights and however.

Weights take walks of noise, jumps, edits in place and behind autograd's back. The same walks find
three mutants whose norms are stale.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winsor.contrib.value.bounds.spectral import OperatorNorms, spectral_norm


def noise(weight, generator, size):
    """A new tensor, as an optimiser that is not in place would make."""
    return weight + size * torch.randn(weight.shape, generator=generator)


def in_place(weight, generator, size):
    return weight.add_(size * torch.randn(weight.shape, generator=generator))


def unseen(weight, generator, size):
    """Through .data: autograd's count of versions does not see it."""
    weight.data.add_(size * torch.randn(weight.shape, generator=generator))
    return weight


def one_entry(weight, generator, size):
    weight.data[0, 0] += 30 * size
    return weight


def stretched(weight, generator, size):
    return weight.mul_(1 + size)


def jump(weight, generator, size):
    return torch.randn(weight.shape, generator=generator) * 10 ** (100 * size - 1)


def zeroed(weight, generator, size):
    return weight.zero_()


def still(weight, generator, size):
    return weight


MOVES = [noise, in_place, unseen, one_entry, stretched, jump, zeroed, still]
walks = st.lists(
    st.tuples(st.sampled_from(MOVES), st.sampled_from([1e-5, 1e-3, 5e-3, 2e-2])),
    min_size=1,
    max_size=12,
)
shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def shortfall(norms, shape, walk, seed=0):
    """The most by which a bound lay below the norm that numpy finds, as a share of it."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator)
    memory, worst = {}, -np.inf
    for move, size in [(still, 0.0), *walk]:
        weight = move(weight, generator, size)
        bound = norms(memory).matrix("w", weight)
        true = np.linalg.norm(weight.double().numpy(), 2)
        worst = max(worst, (true - bound) / max(true, 1e-30))
    return worst


@given(shapes, walks, st.integers(0, 2**16))
def test_no_walk_of_the_weights_leads_below_the_norm(shape, walk, seed):
    assert shortfall(OperatorNorms, shape, walk, seed) <= 0


class Unmoved(OperatorNorms):
    """Takes the old norm as it is while the weights moved little."""

    def _carried(self, key, weight, factor, compute):
        bound = super()._carried(key, weight, factor, compute)
        return min(bound, self._memory[key]["norm"])


class FromTheLastStep(OperatorNorms):
    """Adds the way of the last step to the norm, not the way since the norm was computed."""

    def _carried(self, key, weight, factor, compute):
        bound = super()._carried(key, weight, factor, compute)
        self._memory[key]["weight"] = weight.detach().clone()
        return bound


class Trusting(OperatorNorms):
    """Looks again only where autograd counted a change."""

    def _carried(self, key, weight, factor, compute):
        old = self._memory.get(key)
        if old is None or old["at"] != (id(weight), weight._version):
            norm = compute(weight)
            self._memory[key] = {"norm": norm, "at": (id(weight), weight._version)}
        return self._memory[key]["norm"]


@pytest.mark.parametrize("mutant", [Unmoved, FromTheLastStep, Trusting])
def test_stale_norms_are_found(mutant):
    walk = [(stretched, 0.01), (unseen, 1e-3), (one_entry, 5e-3)] * 6
    assert shortfall(mutant, (4, 6), walk) > 1e-4
    assert shortfall(OperatorNorms, (4, 6), walk) <= 0


def test_a_matrix_of_another_shape_is_not_compared():
    """(1, 5) would be broadcast against (4, 5), and the difference from four equal rows is zero."""
    memory = {}
    row = torch.ones(1, 5)
    OperatorNorms(memory).matrix("w", row)
    assert OperatorNorms(memory).matrix("w", row.repeat(4, 1)) >= 20**0.5


@given(shapes, st.integers(0, 2**16), st.sampled_from([1e-300, 1e-190, 1e-30, 1e30, 1e150]))
def test_norms_of_double_precision_hold_at_any_scale(shape, seed, scale):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    true = np.linalg.norm(weight.numpy(), 2)
    assert true <= spectral_norm(weight) <= true * (1 + 1e-6)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_have_no_finite_norm(broken):
    weight = torch.ones(3, 3)
    weight[1, 1] = broken
    try:
        bound = spectral_norm(weight)
    except RuntimeError:  # LAPACK refuses some of them
        return
    assert not np.isfinite(bound)


def test_zero_and_nothing():
    assert spectral_norm(torch.zeros(3, 4)) == 0
    assert spectral_norm(torch.zeros(0, 4)) == 0


def test_half_precision_is_compared_in_single():
    """bfloat16 would round the difference down, to 1.984375."""
    weight, memory = torch.eye(2, dtype=torch.bfloat16) * 64, {}
    weight[0, 1] = 0.03
    first = OperatorNorms(memory).matrix("w", weight)
    moved = weight.clone()
    moved[0, 1] = 2.015625
    exact = moved.double() - weight.double()
    assert float((moved - weight).double().norm()) < float(exact.norm())
    bound = OperatorNorms(memory).matrix("w", moved)
    assert memory["w"]["norm"] == first  # carried
    assert bound >= first + float(exact.norm())


def test_equal_singular_values_and_a_single_one():
    turned, _ = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(3)))
    for matrix in (turned, torch.ones(300, 200)):
        true = np.linalg.norm(matrix.double().numpy(), 2)
        assert true <= spectral_norm(matrix) <= true * (1 + 1e-6)
