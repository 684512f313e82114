"""What happens to the model with a released gradient.

Everything here is post-processing of released values, so any `torch.optim` optimiser and
scheduler is sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from winsor.contract import ConfigurationError, Tree
from winsor.tree import FlatTree


class Update(Protocol):
    """Consumes released gradients. ModelMix replaces the optimiser's step by one of its own."""

    parameters: dict[str, nn.Parameter]
    hides_randomness: bool

    def apply(self, grad: Tree, expected_size: float) -> None: ...
    def use_key(self, key: bytes) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OptimizerUpdate:
    """Divide by the expected batch size, hand over to the optimiser, then to the scheduler."""

    hides_randomness = False

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> None:
        refuse_foreign_optimizer(parameters, optimizer)
        self.parameters = parameters
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._ordered = list(parameters.items())

    def apply(self, grad: Tree, expected_size: float) -> None:
        if isinstance(grad, FlatTree):
            grad.flat.mul_(1 / expected_size)
        else:
            torch._foreach_mul_(list(grad.values()), 1 / expected_size)
        for name, parameter in self._ordered:
            parameter.grad = grad[name]
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def use_key(self, key: bytes) -> None:
        del key  # an optimiser's step draws nothing

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state  # the optimiser's own state_dict is the user's to save, as in plain PyTorch


def refuse_foreign_optimizer(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """The optimiser must own exactly the model's trainable parameters."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(
            "optimizer must take one gradient per step. Got LBFGS, which evaluates the loss "
            "several times per step; each evaluation would have to be paid for. Use SGD or Adam."
        )
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trainable = {id(p): name for name, p in parameters.items()}
    missing = [name for key, name in trainable.items() if key not in owned]
    if missing:
        raise ConfigurationError(
            "optimizer must own every trainable parameter of the model. Missing: "
            f"{', '.join(missing[:5])}. Build it from model.parameters(), or freeze these with "
            "requires_grad_(False)."
        )
    foreign = sum(
        1
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) not in trainable and p.requires_grad
    )
    if foreign:
        raise ConfigurationError(
            f"optimizer must own parameters of the model only. Got {foreign} that are not in the "
            "model: they would be trained without protection."
        )
