"""The update of a model that FSDP2 has sharded: each rank's optimiser steps on its own shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel, Update
from winsor.core.noise.protocol import Correlated, Mechanism
from winsor.core.noise.source import NoiseSource
from winsor.gradients.tree import PartTree
from winsor.rules.rule import Rule
from winsor.training.bare_step import scale_
from winsor.training.ranks.noise import SharedNoise
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.shard_sums import (
    ShardedNoise,
    ShardingRanks,
    parts_of,
)
from winsor.training.ranks.sharded import Shards, own_part, sliced
from winsor.training.update import OptimizerUpdate


class ShardedUpdate(OptimizerUpdate):
    """As `OptimizerUpdate`; the optimiser sees shards of weights and of the release."""

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
        scale_(grad, self._scale)
        self.shards.slice()  # weights may have been projected, averaged or loaded since
        part = own_part if isinstance(grad, PartTree) else sliced
        for name, shard in self.owned.items():
            whole = grad[name]
            shard.grad = whole if shard is self.parameters[name] else part(whole, shard)
        self.optimizer.step()
        for shard in self.owned.values():
            shard.grad = None  # a stray optimizer.step() must find nothing to apply
        self.shards.gather()


def with_parts(
    ranks: Ranks, update: Update, rule: Rule, mechanism: Mechanism
) -> tuple[Ranks, Callable[[bytes], NoiseSource]]:
    """How ranks add up and noise sums: in parts, where the model is sharded and nothing that
    happens to the sum needs it whole."""
    if (
        isinstance(update, ShardedUpdate)
        and not rule.bound_reads_sum
        and not isinstance(mechanism, Correlated)
    ):
        parts = parts_of(update.parameters, update.owned, ranks)
        if parts is not None:
            ranks = sharding = ShardingRanks(ranks, parts)
            return ranks, functools.partial(ShardedNoise, ranks=sharding)
    return ranks, functools.partial(SharedNoise, ranks=ranks)


def refuse_shards(shards: Shards | None) -> None:
    """A mechanism with an update of its own moves whole weights."""
    if shards is not None:
        raise UnsupportedModel(
            "a mechanism that updates the weights itself (ModelMix) must have them whole. Got a "
            "model sharded by fully_shard instead. Use plain data parallelism."
        )
