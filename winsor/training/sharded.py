"""The update of a model that FSDP2 has sharded: each rank's optimiser steps on its own shards."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from winsor.contract import UnsupportedModel
from winsor.distributed.sharded import Shards, sliced
from winsor.training.bare_step import scale_
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
        self._owned = shards.owned_by_optimizer(parameters)

    def step_with(self, grad: Mapping[str, Tensor]) -> None:
        scale_(grad, self._scale)
        self.shards.slice()  # weights may have been projected, averaged or loaded since
        for name, shard in self._owned.items():
            whole = grad[name]
            shard.grad = whole if shard is self.parameters[name] else sliced(whole, shard)
        self.optimizer.step()
        for shard in self._owned.values():
            shard.grad = None  # a stray optimizer.step() must find nothing to apply
        self.shards.gather()


def refuse_shards(shards: Shards | None) -> None:
    """A mechanism with an update of its own moves whole weights."""
    if shards is not None:
        raise UnsupportedModel(
            "a mechanism that updates the weights itself (ModelMix) must have them whole. Got a "
            "model sharded by fully_shard instead. Use plain data parallelism."
        )
