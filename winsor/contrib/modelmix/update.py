"""The update of ModelMix: mix the last two released iterates, step, release the result.

The mixing weights and the noisy gradient live only inside `MixingUpdate.apply`. They are not
stored, not logged, not put into ``parameter.grad`` and not part of any checkpoint; they could be
recomputed from the run's key, so the key is kept out of checkpoints too (``hides_randomness``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from winsor.contrib.modelmix.mechanism import ModelMix, before_the_start
from winsor.core.accounting.lattice import WIDEST
from winsor.core.contract import ConfigurationError, Released
from winsor.core.randomness import stream
from winsor.training.update import refuse_foreign_optimizer, refuse_unreleased


class MixingUpdate:
    """Algorithm 1's update. The optimiser only supplies the learning rates."""

    hides_randomness = True

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        expected_size: float,
        mix: ModelMix,
        key: bytes,
    ) -> None:
        refuse_foreign_optimizer(parameters, optimizer)
        refuse_all_but_plain_sgd(optimizer)
        self.parameters = parameters
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.seal: object = self  # until the training names its door: nothing carries it
        self.expected_size = expected_size
        self.mix = mix
        self._key = key
        self._step = 0
        self._last = -1
        self._before: dict[str, Tensor] = before_the_start(mix.earlier, parameters)
        self._group = {
            name: index
            for index, group in enumerate(optimizer.param_groups)
            for p in group["params"]
            for name, owned in parameters.items()
            if owned is p
        }

    @torch.no_grad()
    def apply(self, released: Released) -> None:
        """Move the parameters by a release of this run; refuse any other."""
        if released.seal is not self.seal or released.entry <= self._last:
            refuse_unreleased(released, self.seal)
        self._last = released.entry
        self.move(released.values["grad"], released.entry)

    @torch.no_grad()
    def move(self, grad: Mapping[str, Tensor], entry: int) -> None:
        """Move the parameters, the arithmetic of `apply`: ``grad`` is the noisy sum over rows.

        The noise may be wider than the event says, for its grid; the mixing is made wider by as
        much, so that their ratio is at least the one that is accounted for.
        """
        uniform = self._uniform(entry)
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        taus = [self.mix.distance(self._step, lr) * WIDEST for lr in rates]  # refuses, or all move
        start = 0
        for name, parameter in self.parameters.items():
            lr, tau = rates[self._group[name]], taus[self._group[name]]
            weights = uniform[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
            self._move(name, parameter, grad[name].mul_(lr / self.expected_size), weights, tau)
        self._step += 1
        if self.scheduler is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # the step was ours
            self.scheduler.step()

    def _move(
        self, name: str, parameter: nn.Parameter, step: Tensor, weights: Tensor, tau: float
    ) -> None:
        before = self._before[name]
        gap = parameter - before
        new = parameter.add(before).mul_(0.5)
        new.addcmul_(weights.to(new), gap.abs().clamp_(min=tau)).sub_(step)
        if self.mix.heavy_ball:
            new.add_(gap, alpha=self.mix.heavy_ball)
        if self.mix.weight_decay:
            group = self.optimizer.param_groups[self._group[name]]
            new.sub_(parameter, alpha=float(group["lr"]) * self.mix.weight_decay)
        before.copy_(parameter)
        parameter.copy_(new)

    @property
    def before(self) -> dict[str, Tensor]:
        """The iterate before the model's: at the start, w_-1."""
        return self._before

    def _uniform(self, entry: int) -> Tensor:
        """U(-1/2, 1/2) for every coordinate of a release; each has draws of its own."""
        size = sum(p.numel() for p in self.parameters.values())
        generator = stream(self._key, "mix", entry)
        return torch.from_numpy(generator.random(size, dtype="float32")).sub_(0.5)

    def use_key(self, key: bytes) -> None:
        """Draw mixing weights from ``key``, as a resumed run does."""
        self._key = key
        self._last = -1  # a resumed run repeats the steps since its checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Return the last released iterate but one; the model itself is the last."""
        return {"step": self._step, "before": {k: v.clone() for k, v in self._before.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of `state_dict`."""
        self._step = int(state["step"])
        for name, value in state["before"].items():
            self._before[name].copy_(value)


def refuse_all_but_plain_sgd(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimisers that keep the noisy gradient and use it again, outside the mixing."""
    kept = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
    plain = type(optimizer) is torch.optim.SGD and not any(
        group[name] for group in optimizer.param_groups for name in kept
    )
    if not plain:
        raise ConfigurationError(
            "optimizer must be plain SGD for ModelMix: its amplified account holds for the mixed "
            "iterate only, and momentum or Adam would use the noisy gradient again at later steps. "
            f"Got {type(optimizer).__name__} with {optimizer.defaults} instead. Use "
            "torch.optim.SGD(params, lr), and heavy_ball= or weight_decay= of ModelMix, which are "
            "functions of released iterates."
        )
