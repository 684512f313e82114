"""An optimiser's own step without its ceremony.

`optimizer.step()` of a small model spends most of its time around the arithmetic: profiler, hooks,
graph breaks for the compiler. Here the same code of torch runs without them:

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
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import optimizer as hooks

from winsor.core.values import FlatTree
from winsor.training.guard import count_fused_steps

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
        """Whether nobody would notice that the ceremony is left out."""
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
        """The learning rate, if all that is done is w += -lr g for the same lr everywhere."""
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
