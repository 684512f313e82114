"""What may update a model: an optimiser of its own parameters, with what the door released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from winsor.contract import ConfigurationError, Released, UnsoundRelease


def refuse_unreleased(released: Any, seal: object) -> NoReturn:
    """Say why this gradient may not be applied."""
    if not isinstance(released, Released) or released.seal is not seal:
        raise UnsoundRelease(
            "an update accepts only values that its run's door released and its ledger records. "
            "Got something else: do not build gradients by hand, nor take another run's."
        )
    raise UnsoundRelease(f"the release of step {released.entry} was already used.")


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
