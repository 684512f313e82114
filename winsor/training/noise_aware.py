"""Optimisers that are told how much noise is in the gradient that they step with.

They see released gradients and public settings alone, so whatever they do is post-processing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError, ProtocolError


class NoiseAware(torch.optim.Optimizer):
    """One `_update` for each weight, with the variance of the noise in every coordinate."""

    _noise: float | None = None

    def note_noise(self, std: float) -> None:
        """The deviation of the noise in every coordinate of the gradient that comes next."""
        self._noise = float(std)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
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
