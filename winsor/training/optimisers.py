"""Optimisers that are told how much noise is in the gradient that they step with.

They see released gradients and public settings alone, so whatever they do is post-processing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError, ProtocolError


class NoiseAware(torch.optim.Optimizer):
    """One `_update` for each weight, with the variance of the noise in every coordinate."""

    _noise: float | None = None

    def note_noise(self, std: float) -> None:
        """Note the deviation of the noise in every coordinate of the gradient that comes next."""
        self._noise = float(std)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient; the noise must have been noted before."""
        if closure is not None:
            raise ConfigurationError("a private step takes no closure: its gradient is released.")
        if self._noise is None:
            raise ProtocolError(
                f"{type(self).__name__} must know the noise before it steps: train with "
                "make_private, or call note_noise(std)."
            )
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group, self._noise**2)
        self._noise = None  # of this gradient only

    @abstractmethod
    def _update(self, weight: Tensor, group: dict[str, Any], variance: float) -> None:
        """Move ``weight`` by its released gradient."""


class AdamCorrected(NoiseAware):
    """Adam with the noise's share removed from its second moment (DP-AdamBC).

    A run of `winsor.make_private` tells it the size of its noise::

        m_t = b1 m + (1 - b1) g          v_t = b2 v + (1 - b2) g^2       both divided by 1 - b^t
        s_t = b2 s + (1 - b2) sigma_t^2  the same average of the noise's variance, which is public
        w  -= lr m_t / sqrt(max(v_t - s_t, floor^2))

    A released gradient is g + N(0, sigma^2) per coordinate, so plain Adam's v_t estimates
    E g^2 + sigma^2. In private training sigma^2 is usually the larger part: all coordinates then
    get nearly the same rate, and Adam is momentum with a rescaled rate. Without the noise's share
    it adapts again. ``floor`` keeps coordinates whose second moment is all noise from running away;
    it plays the part of Adam's eps, in units of the gradient.

    Guarantee
    ---------
    Post-processing of released gradients and public numbers.

    References
    ----------
    Tang, Shpilevskiy, Lecuyer: DP-AdamBC: Your DP-Adam is actually DP-SGD (unless you apply bias
    correction), AAAI 2024, Algorithm 1 (their gamma' is floor^2).

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = AdamCorrected([weight], lr=0.1)
    >>> optimizer.note_noise(0.5)
    >>> weight.grad = torch.tensor([3.0, -3.0])
    >>> optimizer.step()
    >>> [round(w, 3) for w in weight.tolist()]
    [-0.101, 0.101]
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-4,
        weight_decay: float = 0.0,
    ) -> None:
        positive("lr", lr)
        positive("floor", floor)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ConfigurationError(f"betas must be two numbers in [0, 1). Got {betas!r} instead.")
        if not weight_decay >= 0:
            raise ConfigurationError(f"weight_decay must be >= 0. Got {weight_decay!r} instead.")
        settings = {"lr": lr, "betas": betas, "floor": floor, "weight_decay": weight_decay}
        super().__init__(params, settings)

    def _update(self, weight: Tensor, group: dict[str, Any], variance: float) -> None:
        state = self.state[weight]
        if not state:
            state["step"], state["noise"] = 0, 0.0
            state["first"], state["second"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        one, two = group["betas"]
        state["first"].lerp_(weight.grad, 1 - one)
        state["second"].mul_(two).addcmul_(weight.grad, weight.grad, value=1 - two)
        state["noise"] = two * state["noise"] + (1 - two) * variance
        age = 1 - two ** state["step"]
        own = (state["second"] - state["noise"]).div_(age).clamp_(min=group["floor"] ** 2).sqrt_()
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(state["first"], own, value=-group["lr"] / (1 - one ** state["step"]))
