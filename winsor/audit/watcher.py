"""The adversary of a one-run audit: what it computes from released gradients or the final model.

At each step the release is x = sum over the batch of clipped gradients + N(0, s^2 I). Along the
direction of canary i's own clipped gradient v_i, in units of s,

    y = <x - E, v_i> / (|v_i| s),   a = |v_i| / s,   evidence += log(1 - q + q exp(a y - a^2/2)),

the log-likelihood ratio of "joined this batch with probability q" against "not in the data". E is
what the adversary expects without the canary: q times the clipped sum over the data it knows and,
with their coin's probability, the other canaries.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from winsor.audit.canaries import rows, size
from winsor.contract import ConfigurationError, Tree
from winsor.grads import Need, make_engine, trainable_parameters
from winsor.training import PrivateTraining

Loss = Callable[[nn.Module, Any], Tensor]
Floats = NDArray[np.float64]

KNOWN_ROWS = 2_048
"""Rows of the data from which the adversary estimates the expected sum."""
CHUNK = 256
"""Rows of a forward pass."""


class GradientWatcher:
    """Collects evidence for each canary from every released gradient."""

    def __init__(
        self, private: PrivateTraining, loss: Loss, canaries: Dataset[Any], known: Dataset[Any]
    ) -> None:
        self._private = private
        self._loss = loss
        private._engine.detach()
        self._model = copy.deepcopy(private.model)
        private._engine.attach()
        parameters = trainable_parameters(self._model)
        self._engine = make_engine(self._model, parameters, "auto", Need.ROWS)
        self._engine.attach()
        self._parameters = parameters
        self._canaries = rows(canaries, list(range(size(canaries))))
        spread = np.linspace(0, size(known) - 1, min(size(known), KNOWN_ROWS)).astype(int)
        self._known = rows(known, spread.tolist())
        self._known_weight = size(known) / len(spread)
        self.scores: Floats = np.zeros(size(canaries))

    def snapshot(self) -> Tree:
        """The parameters at which the next gradient will be taken."""
        return {k: p.detach().clone() for k, p in trainable_parameters(self._private.model).items()}

    def observe(self, before: Tree) -> None:
        """Weigh the gradient that was just released, which was taken at ``before``."""
        sampler = self._private.sampler
        release = self._released(sampler.expected_size)
        bound, std = self._noise()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(before[name])
        own, mutual = self._clipped(self._canaries, bound)
        expected = _summed(self._clipped(self._known, bound)[1], self._known_weight)
        expected = expected + 0.5 * _summed(mutual, 1.0)
        lengths = own.norm(dim=1).clamp_min(1e-12)
        along = own @ (release - sampler.rate * expected) / lengths
        # The expectation counted half of the canary itself.
        y = (along + 0.5 * sampler.rate * lengths) / std
        a = lengths / std
        self.scores += _evidence(y, a, sampler.rate).numpy()

    def _released(self, expected_size: float) -> Tensor:
        """The released sum, read off the gradients that the optimiser was given."""
        leaves = []
        for name, parameter in trainable_parameters(self._private.model).items():
            if parameter.grad is None:
                raise ConfigurationError(
                    f"the adversary needs the released gradient of {name}. Got none: this update "
                    'hides it. Use access="model".'
                )
            leaves.append(parameter.grad.detach().flatten())
        return torch.cat(leaves).double() * expected_size

    def _noise(self) -> tuple[float, float]:
        """Sensitivity and noise of the gradient part, public numbers of the run."""
        parts = self._private.public_parts()
        mechanism = self._private._door.mechanism
        std = mechanism.std(parts)
        name = "grad" if "grad" in parts else next(iter(parts))
        return parts[name].sensitivity.add_remove, std[name]

    def _clipped(self, fields: tuple[Tensor, ...], bound: float) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def _summed(rows_: Tensor, weight: float) -> Tensor:
    return weight * rows_.sum(0)


def _evidence(y: Tensor, a: Tensor, q: float) -> Tensor:
    exponent = a * y - a * a / 2
    if q >= 1:
        return exponent
    return torch.logaddexp(
        torch.tensor(1 - q, dtype=y.dtype).log(), torch.tensor(q, dtype=y.dtype).log() + exponent
    )


def model_scores(model: nn.Module, loss: Loss, canaries: Dataset[Any]) -> Floats:
    """Minus the final loss of each canary."""
    fields = rows(canaries, list(range(size(canaries))))
    pieces = []
    with torch.no_grad():
        for start in range(0, len(fields[0]), CHUNK):
            batch = tuple(field[start : start + CHUNK] for field in fields)
            pieces.append(-loss(model, batch if len(batch) > 1 else batch[0]))
    return torch.cat(pieces).double().numpy()
