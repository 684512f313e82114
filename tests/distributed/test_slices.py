"""Noise drawn in slices, one per rank, is the noise of one process, bit by bit."""

import pytest
import torch

from winsor.distributed import noise
from winsor.distributed.ranks import Ranks
from winsor.mechanisms.noise import NoiseSource

KEY = bytes(range(32))


class Pretend(Ranks):
    """One of several ranks, alone: it keeps its slices, and the others' are missing."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.slices = []

    def gather_slices(self, flat):
        self.slices.append(flat[self.slice_of(len(flat))].clone())


def leaves(dtype):
    chance = torch.Generator().manual_seed(0)
    found = [torch.randn(shape, generator=chance, dtype=dtype) for shape in ((5, 7), (1,), (130,))]
    return [*found, torch.randn(6, 4, generator=chance, dtype=dtype).t()]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_slices_of_all_ranks_are_the_whole(monkeypatch, world, dtype, law):
    monkeypatch.setattr(noise, "SLICED_FROM", 0)
    alone = [leaf.contiguous() for leaf in leaves(dtype)]
    NoiseSource(KEY).add_leaves(9, "grad", alone, 0.7, law=law)
    ranks = [Pretend(rank, world) for rank in range(world)]
    for one in ranks:
        noise.SharedNoise(KEY, one).add_leaves(9, "grad", leaves(dtype), 0.7, law=law)
    for place, whole in enumerate(alone):
        found = torch.cat([one.slices[place] for one in ranks])
        assert torch.equal(found, whole.reshape(-1))


def test_small_sums_are_noised_whole():
    one, alone = Pretend(1, 2), leaves(torch.float32)
    together = [leaf.clone() for leaf in alone]
    NoiseSource(KEY).add_leaves(3, "grad", alone, 0.7)
    noise.SharedNoise(KEY, one).add_leaves(3, "grad", together, 0.7)
    assert one.slices == []
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
