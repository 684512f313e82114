"""What may update a model: an optimiser of its own parameters, with what the door released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from winsor.core.contract import ConfigurationError, Released, UnsoundRelease
from winsor.core.noise.protocol import Choice
from winsor.training.bare_step import BareStep


class Update(Protocol):
    """Changes the model with a released gradient (``values["grad"]``, a sum over rows)."""

    parameters: dict[str, nn.Parameter]
    hides_randomness: bool
    seal: object
    """Of the door whose releases it accepts; the training sets it."""

    def apply(self, released: Released) -> None:
        """Take one step with what the door released."""

    def use_key(self, key: bytes) -> None:
        """Draw any randomness of its own under ``key``."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""


@runtime_checkable
class OwnUpdate(Choice, Protocol):
    """A mechanism that takes the optimiser's place (ModelMix)."""

    @property
    def hides_randomness(self) -> bool:
        """True if privacy rests on more than the noise; the key then stays out of checkpoints."""
        ...

    def update(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        expected_size: float,
        key: bytes,
    ) -> Update:
        """Return the step that replaces the optimiser's own."""
        ...


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
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigurationError(
            "optimizer must take dense gradients: noise is in every coordinate. Got SparseAdam "
            "instead. Use Adam."
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


class OptimizerUpdate:
    """The ordinary update: divide by the expected batch size, then optimiser and scheduler."""

    hides_randomness = False

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        expected_size: float,
    ) -> None:
        self.parameters = parameters
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.seal: object = self  # until the training names its door: nothing carries it
        self._scale = 1 / expected_size
        self._note_noise = getattr(optimizer, "note_noise", None)  # it corrects for public noise
        self._step = BareStep(optimizer, parameters)
        self._last = -1

    def apply(self, released: Released) -> None:
        if released.seal is not self.seal or released.entry <= self._last:
            refuse_unreleased(released, self.seal)
        self._last = released.entry
        grad = released.values["grad"]
        if self._note_noise is not None:
            self._note_noise(released.std["grad"] * self._scale)
        self.step_with(grad)
        if self.scheduler is not None:
            self.scheduler.step()

    def step_with(self, grad: Mapping[str, Tensor]) -> None:
        """Step with the mean gradient: ``grad`` over the expected size."""
        self._step(grad, self._scale)

    def use_key(self, key: bytes) -> None:
        del key  # an optimiser's step draws nothing
        self._last = -1  # a resumed run repeats the steps since its checkpoint

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state  # the optimiser's own state_dict is the user's to save, as in plain PyTorch
