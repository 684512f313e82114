"""What updates a model: an optimiser of its own parameters, with what the door released.

`optimizer.step()` of a small model spends most of its time around the arithmetic: profiler, hooks,
graph breaks for the compiler. `BareStep` runs the same code of torch without them:

    plain SGD         w += -lr g, one call for all parameters
    other known ones  the undecorated `step` of the class, so every digit stays its own

Only where nobody could tell the difference: an optimiser of torch.optim itself, whose `step` nobody
replaced (a scheduler's counter is kept up), without hooks other than winsor's, outside the
profiler. Whatever else comes goes through `optimizer.step()`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as hooks

from winsor.core.buffers import FlatTree
from winsor.core.contract import ConfigurationError, Released, UnsoundRelease
from winsor.core.noise.protocol import Choice
from winsor.gradients.buffers import unflatten
from winsor.training.tamper_guard import count_fused_steps


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
    """Refuse an optimiser that does not own exactly the model's trainable parameters."""
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
        self._types = {p.dtype for p in parameters.values()}
        self._last = -1

    def apply(self, released: Released) -> None:
        """Step with a release of this run's door, each of which may be used once."""
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
        self._step(self.rounded(grad), self._scale)

    def rounded(self, grad: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return a release, which is in float64, in the types of the parameters."""
        if not (isinstance(grad, FlatTree) and len(self._types) == 1):
            return {name: leaf.to(self.parameters[name].dtype) for name, leaf in grad.items()}
        flat = grad.flat.to(*self._types)
        if flat is grad.flat:
            return grad
        narrow = FlatTree(zip(grad, unflatten(flat, [*grad.values()]), strict=True))
        narrow.flat = flat
        return narrow

    def use_key(self, key: bytes) -> None:
        """Accept the releases of a run that continues under ``key``."""
        del key  # an optimiser's step draws nothing
        self._last = -1  # a resumed run repeats the steps since its checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the update has no state beside the optimiser's."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ignore ``state``: the update has none of its own."""
        del state  # the optimiser's own state_dict is the user's to save, as in plain PyTorch


_BARE: dict[type[Optimizer], Callable[..., Any]] = {
    kind: inspect.unwrap(kind.step) for kind in (SGD, Adam, AdamW)
}


class BareStep:
    """Steps ``optimizer`` with gradients by parameter name.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> step = BareStep(SGD([weight], lr=0.5), {"weight": weight})
    >>> with torch.no_grad():
    ...     step({"weight": torch.ones(2)})
    >>> weight.tolist()
    [0.5, 0.5]
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._ordered = list(parameters.items())
        self._weights: list[Tensor] = list(parameters.values())
        self._own = {id(parameter) for parameter in parameters.values()}
        self._kind = type(optimizer)
        self._class_step = self._kind.step
        inner = getattr(getattr(self._class_step, "__wrapped__", None), "__wrapped__", None)
        known = _BARE.get(self._kind)
        self._bare = known if known is not None and inner is known else None

    def __call__(self, grad: Mapping[str, Tensor], scale: float = 1.0) -> None:
        """Step with ``scale * grad``. Where ``scale`` is a power of two (a batch of 256), plain SGD
        multiplies its learning rate by it instead: that is exact, and saves a pass over ``grad``,
        which stays as it is. Otherwise ``grad`` is scaled in place."""
        bare = self._bare
        watched = bare is None or not self._unwatched()
        rate = self._plain_rate() if not watched and self._kind is SGD else None
        if rate is not None and _is_power_of_two(scale):
            rate, scale = rate * scale, 1.0
        if scale != 1.0:
            scale_(grad, scale)
        if rate is not None:
            torch._foreach_add_(self._weights, [grad[n] for n, _ in self._ordered], alpha=-rate)
        elif bare is None or watched:
            self._with_grads(grad, self._optimizer.step)
        else:
            self._with_grads(grad, lambda: bare(self._optimizer))

    def _with_grads(self, grad: Mapping[str, Tensor], step: Callable[[], Any]) -> None:
        for name, parameter in self._ordered:
            parameter.grad = grad[name]
        try:
            step()
        finally:
            for _, parameter in self._ordered:
                parameter.grad = None  # a stray optimizer.step() must find nothing to apply

    def _unwatched(self) -> bool:
        """Tell whether nobody would notice that the ceremony is left out."""
        optimizer = self._optimizer
        replaced = optimizer.__dict__.get("step")
        if replaced is not None:
            counts = getattr(replaced, "_wrapped_by_lr_sched", False)
            if not counts or getattr(replaced, "__wrapped__", None) is not self._class_step:
                return False
            optimizer._opt_called = True  # type: ignore[attr-defined] # schedulers ask for it
        after = hooks._global_optimizer_post_hooks.values()
        return not (
            hooks._global_optimizer_pre_hooks
            or [hook for hook in after if hook is not count_fused_steps]
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch.is_grad_enabled()
            or torch.autograd.profiler._is_profiler_enabled
            or self._kind.step is not self._class_step
            or [g for g in optimizer.param_groups if g.get("fused") or g["differentiable"]]
        )

    def _plain_rate(self) -> float | None:
        """Return the learning rate, if all that is done is w += -lr g for the same lr
        everywhere."""
        (group, *more) = self._optimizer.param_groups
        if more or group["momentum"] or group["maximize"] or len(group["params"]) != len(self._own):
            return None
        rate, decay = group["lr"], group["weight_decay"]
        if not isinstance(rate, float | int) or not isinstance(decay, float | int) or decay:
            return None
        return None if [p for p in group["params"] if id(p) not in self._own] else rate


def _is_power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


def scale_(grad: Mapping[str, Tensor], scale: float) -> None:
    """Multiply every leaf, in place."""
    if isinstance(grad, FlatTree):
        grad.flat.mul_(scale)
    else:
        torch._foreach_mul_(list(grad.values()), scale)
