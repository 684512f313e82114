"""Sums by index: the library and torch agree digit by digit, and nothing is written beyond."""

from __future__ import annotations

import pytest
import torch

from winsor.gradients import scatter as module
from winsor.gradients.scatter import by_torch, library, scatter


def case(n, places, width, size, low=-1):
    generator = torch.Generator().manual_seed(n * places + width)
    index = torch.randint(low, size, (n, places), generator=generator)
    right = torch.randn(n, places, width, generator=generator)
    return right, index, torch.rand(n, generator=generator)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 7, 3, 4), (64, 16, 64, 200), (9, 2, 33, 5)])
def test_one_pass_has_the_digits_of_two(shape):
    found = library()
    assert found is not None  # CI has a compiler
    right, index, weights = case(*shape)
    mine, theirs = (torch.zeros(shape[3], shape[2]) for _ in range(2))
    found.scatter(right, index, weights, mine)
    by_torch(right, index, weights, theirs)
    assert torch.equal(mine, theirs)
    exact = torch.zeros(shape[3], shape[2], dtype=torch.float64)
    by_torch(right.double(), index, weights.double(), exact)
    torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=1e-5)


def test_an_index_beyond_the_table_is_refused():
    right, index, weights = case(3, 4, 2, 6, low=0)
    index[1, 2] = 6
    with pytest.raises(IndexError, match="below 6"):
        scatter(right, index, weights, torch.zeros(6, 2))


@pytest.mark.parametrize(
    "change",
    [
        lambda right, index, weights: (right.double(), index, weights.double()),
        lambda right, index, weights: (right.mT.contiguous().mT, index, weights),
        lambda right, index, weights: (right, index.T.contiguous().T, weights),
        lambda right, index, weights: (right, index, None),
    ],
    ids=["float64", "rows across memory", "index across memory", "no weights"],
)
def test_whatever_else_comes_is_left_to_torch(change, monkeypatch):
    asked = []
    monkeypatch.setattr(
        module, "by_torch", lambda *given: (asked.append(given), by_torch(*given))[1]
    )
    right, index, weights = change(*case(5, 4, 3, 6))
    out, expected = (torch.zeros(6, 3, dtype=right.dtype) for _ in range(2))
    scatter(right, index, weights, out)
    by_torch(right, index, weights, expected)
    assert asked and torch.equal(out, expected)
