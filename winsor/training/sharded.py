"""The update of a model that FSDP2 has sharded: each rank's optimiser steps on its own shards."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel
from winsor.core.noise.protocol import Correlated, Mechanism
from winsor.core.noise.slices import Source
from winsor.core.values import PartTree
from winsor.rules.rule import Rule
from winsor.training.bare_step import scale_
from winsor.training.ranks.noise import shared_noise
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.shard_sums import (
    ShardingRanks,
    needs_no_whole_sum,
    parts_of,
    sharded_noise,
)
from winsor.training.ranks.sharded import Shards, own_part, sliced
from winsor.training.update import OptimizerUpdate, Update


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
) -> tuple[Ranks, Source]:
    """How ranks add up and noise sums: in parts, where the model is sharded and nothing that
    happens to the sum needs it whole."""
    if (
        isinstance(update, ShardedUpdate)
        and needs_no_whole_sum(rule)
        and not isinstance(mechanism, Correlated)
    ):
        parts = parts_of(update.parameters, update.owned, ranks)
        if parts is not None:
            ranks = sharding = ShardingRanks(ranks, parts)
            return ranks, functools.partial(sharded_noise, ranks=sharding)
    return ranks, functools.partial(shared_noise, ranks=ranks)


def refuse_shards(shards: Shards | None) -> None:
    """A mechanism with an update of its own moves whole weights."""
    if shards is not None:
        raise UnsupportedModel(
            "a mechanism that updates the weights itself (ModelMix) must have them whole. Got a "
            "model sharded by fully_shard instead. Use plain data parallelism."
        )
