"""Ghost norms of convolutions: the library has the digits of the pure path, and both are right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from winsor.gradients.layers import patches as module
from winsor.gradients.layers.patches import Axis, in_pure, library, patch_grams, patch_squares


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, Axis]:
    """The length of a side, and how a kernel walks along it."""
    kernel, stride = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation, padding = draw(st.integers(1, 2)), draw(st.integers(0, 4))
    side = dilation * (kernel - 1) + 1 + draw(st.integers(0, 16))
    places = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return side, Axis(kernel, stride, padding, dilation, places)


def case(down: tuple[int, Axis], across: tuple[int, Axis]) -> tuple[Tensor, Tensor, list[Axis]]:
    generator = torch.Generator().manual_seed(down[0] * across[0])
    x = torch.randn(3, 2, down[0], across[0], generator=generator)
    e = torch.randn(3, 4, down[1].places, across[1].places, generator=generator)
    return x, e, [down[1], across[1]]


def exact(x: Tensor, e: Tensor, walk: list[Axis]) -> tuple[Tensor, Tensor]:
    e = e.double().flatten(2)
    gram = patch_grams(x.double(), walk) * (e.mT @ e)
    return gram.sum((1, 2)), gram.diagonal(dim1=1, dim2=2).sum(1)


@given(axes(), axes())
@settings(max_examples=60, deadline=None)
def test_the_library_has_the_digits_of_the_pure_path_and_both_are_right(down, across):
    x, e, walk = case(down, across)
    found = library()
    assert found is not None  # CI has a compiler
    flat, sides = (x.flatten(2), e.flatten(2)), x.shape[2:]
    grams = [part.mT @ part for part in flat]
    mine, pure = found.squares(*grams, sides, walk), in_pure(*grams, sides, walk)
    for a, b in zip(mine, pure, strict=True):
        assert torch.equal(a, b)
    square, diagonal = exact(x, e, walk)
    assert torch.allclose(pure[0], square, rtol=0, atol=1e-4 * float(diagonal.max()))
    torch.testing.assert_close(pure[1], diagonal, rtol=1e-5, atol=0)


@pytest.mark.parametrize("compiled", [True, False])
def test_whether_there_is_a_compiler_changes_no_norm(compiled, monkeypatch):
    x, e, walk = case((8, Axis(3, 1, 1, 1, 8)), (8, Axis(3, 1, 1, 1, 8)))
    first = patch_squares(x, e, walk)
    if not compiled:
        monkeypatch.setattr(module, "library", lambda: None)
    asked = []
    monkeypatch.setattr(module, "in_pure", lambda *given: (asked.append(1), in_pure(*given))[1])
    again = patch_squares(x, e, walk)
    assert bool(asked) != compiled
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_other_numbers_and_other_dimensions_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(module, "library", lambda: 1 / 0)
    x, e, walk = case((6, Axis(3, 2, 1, 1, 3)), (5, Axis(2, 1, 0, 1, 4)))
    found = patch_squares(x.double(), e.double(), walk)
    for a, b in zip(found, exact(x, e, walk), strict=True):
        torch.testing.assert_close(a, b)
    x, e = x[:, :, 0], e[:, :, 0]
    found = patch_squares(x, e, walk[1:])
    for a, b in zip(found, exact(x, e, walk[1:]), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
