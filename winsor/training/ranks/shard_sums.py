"""Clipped sums of a model that FSDP2 has sharded: each rank adds up, noises and keeps its part.

    sum of own rows     whole, bounded by the rule; freed after the next line
    reduce-scatter      the part of this rank, of the sum over all ranks' rows
    digest              of all ranks' parts together: that is what the ledger binds the noise to
    noise               of those places of the one draw, as one process would have drawn it

So no rank holds the sum over all rows, and none holds noise that another one applies.

Guarantee
---------
The parts of all ranks are the release of one process: the same noise bits, places and price, which
is that of the whole vector and not of a part. A value that is not a part of it is refused.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from winsor.core.buffers import PartTree
from winsor.core.contract import UnsoundRelease, UnsupportedModel
from winsor.core.noise.protocol import Correlated, Mechanism
from winsor.core.noise.slices import SlicedNoise, Source
from winsor.rules.rule import Rule, Sums
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.sharded import Shards, own_part, sliced
from winsor.training.ranks.shared import shared_noise
from winsor.training.update import OptimizerUpdate, Update, scale_


@dataclass(frozen=True)
class Part:
    """Rows [first, first + rows) of a leaf of ``shape``, the same for every rank if it is whole."""

    shape: tuple[int, ...]
    first: int
    rows: int
    is_whole: bool

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Shape of this rank's part of the leaf."""
        return (self.rows, *self.shape[1:]) if self.shape else self.shape

    @property
    def width(self) -> int:
        """Values of one row."""
        return int(torch.Size(self.shape[1:]).numel())

    @staticmethod
    def of(parameter: Tensor, owned: Any, world: int, rank: int) -> Part | None:
        """Find which rows of it ``owned`` (a shard, or the parameter itself) is; None if not rows
        of it."""
        shape = tuple(parameter.shape)
        if owned is parameter:
            return Part(shape, 0, shape[0] if shape else 1, is_whole=True)
        if owned.placements[0].dim != 0:
            return None
        wide = -(-shape[0] // world)
        first = min(shape[0], rank * wide)
        rows = min(shape[0], first + wide) - first
        return Part(shape, first, rows, False) if len(owned.to_local()) == rows else None


def parts_of(
    parameters: Mapping[str, Tensor], owned: Mapping[str, Any], ranks: Ranks
) -> dict[str, Part] | None:
    """Find this rank's part of every leaf; None if some are sharded otherwise than by rows."""
    found = {
        name: Part.of(p, owned[name], ranks.world, ranks.rank) for name, p in parameters.items()
    }
    usable = all(part is not None for part in found.values())
    everywhere = all(ranks.from_all(usable))
    return {name: part for name, part in found.items() if part is not None} if everywhere else None


class ShardingRanks(Ranks):
    """Ranks that add up clipped sums into parts."""

    def __init__(self, ranks: Ranks, parts: Mapping[str, Part]) -> None:
        self.rank, self.world, self.device = ranks.rank, ranks.world, ranks.device
        self.parts = dict(parts)

    def add_up(self, sums: Sums) -> Sums:
        """Add up sums over ranks, of which this rank keeps its part."""
        grad = sums.get("grad")
        if not isinstance(grad, Mapping):
            return super().add_up(sums)
        del sums["grad"]  # nobody shall keep the whole of it
        super().add_up(sums)
        sums["grad"] = self._scattered(grad)
        return sums

    def _scattered(self, tree: Mapping[str, Tensor]) -> PartTree:
        found, place, first = PartTree(), 0, {}
        for name, leaf in tree.items():
            part = self.parts[name]
            found[name] = self._part_of_all(leaf, part)
            first[name] = place + part.first * part.width
            place += leaf.numel()
        found.places, found.whole_size = list(first.values()), place
        return found

    def _part_of_all(self, leaf: Tensor, part: Part) -> Tensor:
        """Return the sum over ranks of this rank's rows of a leaf."""
        if part.is_whole:
            held = leaf.clone()  # a part must not keep the memory of the whole tree
            self._do(dist.all_reduce, held)
            return held
        wide = -(-part.shape[0] // self.world)
        own = leaf.new_empty((wide, *part.shape[1:]))
        padded = leaf.contiguous()
        if wide * self.world != part.shape[0]:
            padded = leaf.new_zeros((wide * self.world, *part.shape[1:]))
            padded[: part.shape[0]] = leaf
        self.scatter_sum(own, padded)
        return own if part.rows == wide else own[: part.rows].clone()

    def digest_of_all(self, digest: str) -> str:
        """Return one digest of all ranks' parts. Tags of single ranks are not shown to anybody:
        they share nonces."""
        own = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8, device=self.device)
        found = [torch.empty_like(own) for _ in range(self.world)]
        self._do(dist.all_gather, found, own)
        joined = b"".join(bytes(one.tolist()) for one in found)
        return hashlib.blake2b(joined, digest_size=16).hexdigest()


def sharded_noise(key: bytes, ranks: ShardingRanks) -> SlicedNoise:
    """Return the noise source of one rank that noises its parts of "grad", and the rest whole."""
    return SlicedNoise(key, functools.partial(_pieces, list(ranks.parts.values())))


def _pieces(
    parts: Sequence[Part], stream: str, leaves: Sequence[Tensor]
) -> tuple[int, list[tuple[Tensor, int]]] | None:
    if stream != "grad":
        return None
    if [tuple(leaf.shape) for leaf in leaves] != [part.own_shape for part in parts]:
        raise UnsoundRelease(
            "a sharded run must release this rank's part of every parameter, in their order. "
            "Got other shapes instead: noise would be that of other places."
        )
    found, place = [], 0
    for leaf, part in zip(leaves, parts, strict=True):
        found.append((leaf, place + part.first * part.width))
        place += int(torch.Size(part.shape).numel())
    return place, found


class ShardedUpdate(OptimizerUpdate):
    """An `OptimizerUpdate` whose optimiser sees shards of weights and of the release."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        expected_size: float,
        shards: Shards,
    ) -> None:
        super().__init__(parameters, optimizer, scheduler, expected_size)
        self.shards = shards
        self.owned = shards.owned_by_optimizer(parameters)

    def step_with(self, grad: Mapping[str, Tensor]) -> None:
        """Step on this rank's shards, then gather whole weights."""
        scale_(grad, self._scale)
        self.shards.slice()  # weights may have been projected, averaged or loaded since
        part = own_part if isinstance(grad, PartTree) else sliced
        for name, shard in self.owned.items():
            whole = grad[name].to(shard.dtype)
            shard.grad = whole if shard is self.parameters[name] else part(whole, shard)
        self.optimizer.step()
        for shard in self.owned.values():
            shard.grad = None  # a stray optimizer.step() must find nothing to apply
        self.shards.gather()


def with_parts(
    ranks: Ranks, update: Update, rule: Rule, mechanism: Mechanism
) -> tuple[Ranks, Source]:
    """Choose how ranks add up and noise sums: in parts, where the model is sharded and nothing that
    happens to the sum needs it whole."""
    if (
        isinstance(update, ShardedUpdate)
        and not rule.bound_reads_sum
        and not isinstance(mechanism, Correlated)
    ):
        parts = parts_of(update.parameters, update.owned, ranks)
        if parts is not None:
            ranks = sharding = ShardingRanks(ranks, parts)
            return ranks, functools.partial(sharded_noise, ranks=sharding)
    return ranks, functools.partial(shared_noise, ranks=ranks)


def refuse_shards(shards: Shards | None) -> None:
    """Refuse shards under a mechanism with an update of its own, which moves whole weights."""
    if shards is not None:
        raise UnsupportedModel(
            "a mechanism that updates the weights itself (ModelMix) must have them whole. Got a "
            "model sharded by fully_shard instead. Use plain data parallelism."
        )
