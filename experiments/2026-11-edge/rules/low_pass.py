"""SGD on released gradients after a low-pass filter: noise is white, the gradient changes slowly.

    m_t = a m_{t-1} + b (g_t + g_{t-1}),    c_t = a c_{t-1} + b (1 + 1[t > 1]),    w -= lr m_t / c_t

A filter of first order with a zero at the highest frequency; c_t is its answer to a constant 1, so
that the first steps are not shortened. a = 0 averages two gradients; a near 1 averages many.

Guarantee
---------
Post-processing of released gradients and public numbers.

References
----------
Zhang, Bu, Hong, Razaviyayn: DOPPLER: Differentially private optimizers with low-pass filter for
privacy noise reduction, NeurIPS 2024. Their first-order filter has a = 9/11 and b = 1/11.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError


class LowPassSGD(torch.optim.Optimizer):
    """SGD behind a first-order low-pass filter with pole ``pole``.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = LowPassSGD([weight], lr=1.0, pole=0.5)
    >>> for gradient in (1.0, 1.0):
    ...     weight.grad = torch.tensor([gradient])
    ...     optimizer.step()
    >>> round(weight.item(), 6)
    -2.0
    """

    def __init__(self, params: Any, lr: float, pole: float = 9 / 11) -> None:
        positive("lr", lr)
        if not 0 <= pole < 1:
            raise ConfigurationError(f"pole must be in [0, 1). Got {pole!r} instead.")
        super().__init__(params, {"lr": lr, "pole": pole})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise ConfigurationError("a private step takes no closure: its gradient is released.")
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group["lr"], group["pole"])

    def _update(self, weight: Tensor, lr: float, pole: float) -> None:
        state = self.state[weight]
        first = not state
        if first:
            state["smooth"], state["answer"] = torch.zeros_like(weight), 0.0
            state["before"] = torch.zeros_like(weight)
        gain = (1 - pole) / 2
        state["smooth"].mul_(pole).add_(weight.grad + state["before"], alpha=gain)
        state["answer"] = pole * state["answer"] + gain * (1 if first else 2)
        state["before"].copy_(weight.grad)
        weight.add_(state["smooth"], alpha=-lr / state["answer"])
