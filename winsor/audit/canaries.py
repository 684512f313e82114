"""Canaries of a one-run audit, and the adversary: what it computes from gradients or the model.

Default canaries are random inputs with random labels. Nothing in the data explains them, so their
gradients stay long (they are clipped, never fitted away by generalisation), and in many dimensions
they are nearly orthogonal to each other and to the data, so that they hardly interfere.

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
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from winsor.core.contract import ConfigurationError, Tree
from winsor.core.randomness import new_key, stream
from winsor.gradients import Need, View, make_engine, trainable_parameters
from winsor.rules.rule import clip_weights
from winsor.training.loop import PrivateTraining
from winsor.training.update import OptimizerUpdate

LOOK = 2_048
"""Rows of the dataset that are looked at for the range of labels and inputs."""


@dataclass(frozen=True)
class Planted:
    """A dataset with each canary in or out, by its own fair coin."""

    dataset: Dataset[Any]
    canaries: Dataset[Any]
    coins: NDArray[np.bool_]


def plant(dataset: Dataset[Any], canaries: Dataset[Any], seed: int | None) -> Planted:
    """Toss one fair coin per canary and add the winners to the dataset."""
    coins = stream(new_key(seed), "canary coins", 0).random(size(canaries)) < 0.5
    chosen = [int(i) for i in np.flatnonzero(coins)]
    if isinstance(dataset, TensorDataset) and isinstance(canaries, TensorDataset):
        pairs = zip(dataset.tensors, canaries.tensors, strict=True)
        joined = TensorDataset(*(torch.cat([a, b[chosen]]) for a, b in pairs))
        return Planted(joined, canaries, coins)
    return Planted(ConcatDataset([dataset, Subset(canaries, chosen)]), canaries, coins)


def random_canaries(
    dataset: Dataset[Any], count: int, scale: float = 3.0, seed: int | None = None
) -> TensorDataset:
    """Return ``count`` records in the shape of the dataset's, filled with noise.

    Floating-point fields become Gaussian noise of ``scale`` times the field's root mean square,
    whole-number fields (labels, tokens) uniform draws from the range seen in the dataset.
    """
    if count < 1:
        raise ConfigurationError(f"canaries must be at least 1. Got {count!r} instead.")
    fields = rows(dataset, range(min(size(dataset), LOOK)))
    generator = torch.Generator().manual_seed(_seed_of(seed))
    return TensorDataset(*(_noise_like(field, count, scale, generator) for field in fields))


def rows(dataset: Dataset[Any], indices: range | list[int]) -> tuple[Tensor, ...]:
    """Return some rows of a dataset, collated into one tensor per field."""
    if isinstance(dataset, TensorDataset):
        return tuple(tensor[list(indices)] for tensor in dataset.tensors)
    batch = default_collate([dataset[i] for i in indices])
    fields = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    if not all(isinstance(field, Tensor) for field in fields):
        raise ConfigurationError(
            "canaries can be made for datasets whose rows are tensors or tuples of tensors. Got "
            f"{type(dataset[0]).__name__} instead. Give your own dataset of canaries."
        )
    return fields


def size(dataset: Dataset[Any]) -> int:
    """Return the number of rows of a dataset."""
    return len(dataset)  # type: ignore[arg-type]


def _noise_like(field: Tensor, count: int, scale: float, generator: torch.Generator) -> Tensor:
    shape = (count, *field.shape[1:])
    if field.is_floating_point():
        spread = scale * float(field.double().square().mean().sqrt().clamp_min(1e-6))
        return spread * torch.randn(shape, generator=generator, dtype=field.dtype)
    low, high = int(field.min()), int(field.max())
    return torch.randint(low, high + 1, shape, generator=generator).to(field.dtype)


def _seed_of(seed: int | None) -> int:
    return int(stream(new_key(seed), "canary inputs", 0).integers(2**62))


# ---------------------------------------------------------------------------------- the adversary

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
