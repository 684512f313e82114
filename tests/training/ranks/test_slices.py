"""Noise drawn in slices, one per rank, is the noise of one process, bit by bit."""

import pytest
import torch

from winsor.core.buffers import PartTree, values_in
from winsor.core.contract import UnsoundRelease
from winsor.core.noise.source import NoiseSource
from winsor.training.ranks import shard_sums, shared
from winsor.training.ranks.ranks import Ranks

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
    monkeypatch.setattr(shared, "SLICED_FROM", 0)
    alone = [leaf.contiguous() for leaf in leaves(dtype)]
    NoiseSource(KEY).add_leaves(9, "grad", alone, 0.7, law=law)
    ranks = [Pretend(rank, world) for rank in range(world)]
    for one in ranks:
        shared.shared_noise(KEY, one).add_leaves(9, "grad", leaves(dtype), 0.7, law=law)
    for place, whole in enumerate(alone):
        found = torch.cat([one.slices[place] for one in ranks])
        assert torch.equal(found, whole.reshape(-1))


def test_small_sums_are_noised_whole():
    one, alone = Pretend(1, 2), leaves(torch.float32)
    together = [leaf.clone() for leaf in alone]
    NoiseSource(KEY).add_leaves(3, "grad", alone, 0.7)
    shared.shared_noise(KEY, one).add_leaves(3, "grad", together, 0.7)
    assert one.slices == []
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def sharding(rank, world):
    """The ranks of a model of four parameters, one of which FSDP does not shard."""
    parts = {}
    for name, leaf in enumerate(leaves(torch.float32)):
        wide = -(-len(leaf) // world)
        first = min(len(leaf), rank * wide)
        rows = min(len(leaf), first + wide) - first
        whole = name == 1
        shape = tuple(leaf.shape)
        parts[name] = shard_sums.Part(
            shape, 0 if whole else first, len(leaf) if whole else rows, whole
        )
    return shard_sums.ShardingRanks(Pretend(rank, world), parts)


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr(Pretend, "device", torch.device("cpu"), raising=False)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 64])
def test_parts_of_all_ranks_are_noised_as_the_whole(no_device, world):
    alone = [leaf.contiguous() for leaf in leaves(torch.float32)]
    found = [[] for _ in alone]
    for rank in range(world):
        ranks = sharding(rank, world)
        own = [
            leaf[part.first : part.first + part.rows].clone()
            for leaf, part in zip(alone, ranks.parts.values(), strict=True)
        ]
        shard_sums.sharded_noise(KEY, ranks).add_leaves(9, "grad", own, 0.7)
        for place, part in enumerate(own):
            found[place].append(part)
    NoiseSource(KEY).add_leaves(9, "grad", alone, 0.7)
    for place, whole in enumerate(alone):
        if place == 1:  # not sharded: all ranks have the same
            assert all(torch.equal(part, whole) for part in found[place])
        else:
            assert torch.equal(torch.cat(found[place]), whole)


def test_what_is_no_part_is_refused(no_device):
    source = shard_sums.sharded_noise(KEY, sharding(0, 2))
    with pytest.raises(UnsoundRelease, match="this rank's part of every parameter"):
        source.add_leaves(0, "grad", [leaf.contiguous() for leaf in leaves(torch.float32)], 0.7)


def test_parts_are_priced_as_the_whole():
    tree = PartTree(a=torch.zeros(3))
    tree.whole_size, tree.places = 1000, [17]
    assert values_in(tree) == 1000
    assert values_in({"a": torch.zeros(3), "b": torch.zeros(2, 2)}) == 7
    assert values_in(torch.zeros(5)) == 5
