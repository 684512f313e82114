"""The adversary of a one-run audit: what it computes from released gradients or the final model.

At each step the release is x = sum over the batch of clipped gradients + N(0, s^2 I). Along the
direction of canary i's own clipped gradient v_i, in units of s,

    y = <x - E, v_i> / (|v_i| s),   a = |v_i| / s,   evidence += log(1 - q + q exp(a y - a^2/2)),

the log-likelihood ratio of "joined this batch with probability q" against "not in the data". E is
what the adversary expects without the canary: q times the clipped sum over the data it knows and,
with their coins' probability, over the other canaries.

v_i is taken as the gradient scaled to the rule's sensitivity. For rules that bound rows otherwise
this is only a good guess; a worse score gives a lower bound that is still a bound.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from winsor.audit.canaries import rows, size
from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients import Need, View, make_engine, trainable_parameters
from winsor.rules.rule import clip_weights
from winsor.training.loop import PrivateTraining
from winsor.training.update import OptimizerUpdate

Loss = Callable[[nn.Module, Any], Tensor]
Floats = NDArray[np.float64]
Fields = tuple[Tensor, ...]

KNOWN_ROWS = 1_024
"""Rows of the data from which the adversary estimates the expected sum."""
CHUNK = 256
"""Rows of a forward pass."""


@dataclass(frozen=True)
class Moment:
    """The public facts at which the next gradient is taken."""

    parameters: Tree
    bound: float
    std: float


class GradientWatcher:
    """Collects evidence for each canary from every released gradient."""

    def __init__(
        self, private: PrivateTraining, loss: Loss, canaries: Dataset[Any], known: Dataset[Any]
    ) -> None:
        self._private = private
        self._loss = loss
        private._engine.detach()  # the copy must be a plain module
        self._model = copy.deepcopy(private.model)
        private._engine.attach()
        self._parameters = trainable_parameters(self._model)
        needs = Need.NORMS | Need.WEIGHTED_SUM | Need.ROWS
        self._engine = make_engine(self._model, self._parameters, "auto", needs)
        self._engine.attach()
        self._canaries = rows(canaries, list(range(size(canaries))))
        spread = np.linspace(0, size(known) - 1, min(size(known), KNOWN_ROWS)).astype(int)
        self._known = rows(known, spread.tolist())
        self._known_weight = size(known) / len(spread)
        self.scores: Floats = np.zeros(size(canaries))
        self._gradient: list[Tensor] | None = None
        update = private._update
        if isinstance(update, OptimizerUpdate):  # others hide the gradient
            update.optimizer.register_step_pre_hook(self._keep_gradient)

    def _keep_gradient(self, *_: Any) -> None:
        """What the optimiser is given is public; the run clears it after the step."""
        found = trainable_parameters(self._private.model).values()
        self._gradient = [p.grad.detach().flatten().clone() for p in found if p.grad is not None]

    def moment(self) -> Moment:
        """Return the public facts of the next step; to be called before each step."""
        private = self._private
        parts = private.public_parts()
        name = "grad" if "grad" in parts else next(iter(parts))
        return Moment(
            {k: p.detach().clone() for k, p in trainable_parameters(private.model).items()},
            parts[name].sensitivity.add_remove,
            private._door.mechanism.std(parts)[name],
        )

    def observe(self, moment: Moment) -> None:
        """Weigh the gradient that was just released, which was taken at ``moment``."""
        sampler = self._private.sampler
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(moment.parameters[name])
        expected = self._clipped_sum(self._known, moment.bound) * self._known_weight
        expected += 0.5 * self._clipped_sum(self._canaries, moment.bound)
        residual = self._released() - sampler.rate * expected
        along, lengths = self._projections(residual, moment.bound)
        y = (along + 0.5 * sampler.rate * lengths) / moment.std  # E counted half of the canary
        self.scores += _evidence(y, lengths / moment.std, sampler.rate)

    def _released(self) -> Tensor:
        """The released sum, read off the gradients that the optimiser was given."""
        if self._gradient is None:
            raise ConfigurationError(
                "the adversary needs the released gradient. Got none: this update hides it. Use "
                'access="model".'
            )
        return torch.cat(self._gradient) * self._private.sampler.expected_size

    def _views(self, fields: Fields) -> Iterator[View]:
        self._engine.recording(True)
        try:
            for batch in batches(fields):
                yield self._engine.view(self._loss(self._model, batch))
        finally:
            self._engine.recording(False)

    def _clipped_sum(self, fields: Fields, bound: float) -> Tensor:
        total: Tensor | None = None
        for view in self._views(fields):
            tree = view.weighted_sum(clip_weights(view.norms(), bound))
            vector = torch.cat([tree[name].flatten() for name in self._parameters])
            total = vector if total is None else total + vector
        assert total is not None
        return total

    def _projections(self, direction: Tensor, bound: float) -> tuple[Floats, Floats]:
        """<direction, v_i/|v_i|> and |v_i| for each canary."""
        pieces = direction.split([p.numel() for p in self._parameters.values()])
        named = dict(zip(self._parameters, pieces, strict=True))
        inner: list[Tensor] = []

        def project(chunk: dict[str, Tensor]) -> dict[str, Tensor]:
            inner.append(sum(chunk[k].flatten(1) @ v for k, v in named.items()))
            return chunk

        norms = []
        for view in self._views(self._canaries):
            view.map_sum(project)
            norms.append(view.norms())
        length = torch.cat(norms).clamp_min(1e-12)
        products = torch.cat(inner)
        if len(products) != len(length):
            raise ConfigurationError(
                "canaries must have finite gradients. Got "
                f"{len(length) - len(products)} that are not: use a smaller scale."
            )
        along, clipped = products / length, length.clamp_max(bound)
        return along.double().numpy(), clipped.double().numpy()


def batches(fields: Fields) -> Iterator[Any]:
    """Yield rows in chunks, in the form that a loss function expects."""
    for start in range(0, len(fields[0]), CHUNK):
        batch = tuple(field[start : start + CHUNK] for field in fields)
        yield batch if len(batch) > 1 else batch[0]


def _evidence(y: Floats, a: Floats, q: float) -> Floats:
    exponent = a * y - a * a / 2
    if q >= 1:
        return exponent
    return np.asarray(np.logaddexp(np.log1p(-q), np.log(q) + exponent))


def model_scores(model: nn.Module, loss: Loss, canaries: Dataset[Any]) -> Floats:
    """Return minus the final loss of each canary."""
    fields = rows(canaries, list(range(size(canaries))))
    with torch.no_grad():
        pieces = [-loss(model, batch) for batch in batches(fields)]
    return torch.cat(pieces).double().numpy()
