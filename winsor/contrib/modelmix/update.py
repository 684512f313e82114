"""The update of ModelMix: mix the last two released iterates, step, release the result.

The mixing weights and the noisy gradient live only inside `MixingUpdate.apply`. They are not
stored, not logged, not put into ``parameter.grad`` and not part of any checkpoint; they could be
recomputed from the run's key, so the key is kept out of checkpoints too (``hides_randomness``).

A floating-point sum of both would give both away: its low bits are those of no other pair. So both
are whole numbers of one public unit, h = 2^-26 of the noise:

    T = floor(noisy sum / h),     M uniform on the 2 m + 1 whole numbers around 0, (2 m + 1) h eta/B
                                  just above the width

and the next iterate is computed from T - M and from released iterates alone.

Guarantee
---------
For neighbouring data the law of T - M is that of the noisy sum with a continuous uniform, rounded
to h, up to a factor 1 +- 2^-49 in every coordinate, which the account of the noise has room for
(docs/privacy.md, "ModelMix"). In any dtype an iterate says no more than T - M does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from winsor.contrib.modelmix.mechanism import ModelMix, before_the_start
from winsor.core.accounting.lattice import LEAST_BITS, WIDEST
from winsor.core.contract import ConfigurationError, Released, UnsoundRelease
from winsor.core.randomness import stream
from winsor.training.update import refuse_foreign_optimizer, refuse_unreleased

MOST_UNITS = 2.0**59
"""Mixing is at most twice as many units wide, so that whole numbers of 64 bits hold every sum."""


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
        grad = released.values["grad"]
        if any(leaf.dtype is not torch.float64 for leaf in grad.values()):
            raise UnsoundRelease(
                "the release that is mixed must be float64: rounded to fewer digits it is off the "
                "grid of its noise, and low bits would give the mixing weights away. Got "
                f"{sorted({str(leaf.dtype) for leaf in grad.values()})} instead."
            )
        self._last = released.entry
        self.move(grad, released.entry, released.std["grad"])

    @torch.no_grad()
    def move(self, grad: Mapping[str, Tensor], entry: int, std: float) -> None:
        """Move the parameters, the arithmetic of `apply`: ``grad`` is the noisy sum over rows, with
        noise of standard deviation ``std``.

        The noise may be wider than the event says, for its grid; the mixing is made wider by as
        much, so that their ratio is at least the one that is accounted for.
        """
        scale = std / math.sqrt(2) if self.mix.noise == "laplace" else std  # as it was added
        unit = scale * 2.0**-LEAST_BITS
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        taus = [self.mix.distance(self._step, lr) * WIDEST for lr in rates]  # refuses, or all move
        sizes = {name: rates[at] / self.expected_size * unit for name, at in self._group.items()}
        halves = {
            name: halves_of(self._width(name, parameter, taus[self._group[name]]), sizes[name])
            for name, parameter in self.parameters.items()
        }
        drawn = self._drawn(entry, torch.cat([half.flatten() for half in halves.values()]))
        for (name, parameter), mixed in zip(
            self.parameters.items(),
            drawn.split([half.numel() for half in halves.values()]),
            strict=True,
        ):
            steps = grad[name].double().div(unit).floor_().long()
            steps -= mixed.to(steps.device).view_as(steps)
            self._move(name, parameter, steps.double().mul_(sizes[name]))
        self._step += 1
        if self.scheduler is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]  # the step was ours
            self.scheduler.step()

    def _width(self, name: str, parameter: Tensor, tau: float) -> Tensor:
        """Return max(|w_{k-1} - w_{k-2}|, tau) in every coordinate."""
        return (parameter.double() - self._before[name].double()).abs_().clamp_(min=tau)

    def _move(self, name: str, parameter: nn.Parameter, step: Tensor) -> None:
        now, before = parameter.double(), self._before[name]
        gap = now - before.double()
        new = now.sub(gap, alpha=0.5).sub_(step)
        if self.mix.heavy_ball:
            new.add_(gap, alpha=self.mix.heavy_ball)
        if self.mix.weight_decay:
            group = self.optimizer.param_groups[self._group[name]]
            new.sub_(now, alpha=float(group["lr"]) * self.mix.weight_decay)
        before.copy_(parameter)
        parameter.copy_(new)

    @property
    def before(self) -> dict[str, Tensor]:
        """The iterate before the model's: at the start, w_-1."""
        return self._before

    def _drawn(self, entry: int, halves: Tensor) -> Tensor:
        """Draw M for every coordinate of a release; each has draws of its own."""
        generator, most = stream(self._key, "mix", entry), halves.cpu().numpy()
        return torch.from_numpy(generator.integers(-most, most, endpoint=True))

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


def halves_of(width: Tensor, size: float) -> Tensor:
    """Return m with (2 m + 1) ``size`` >= ``width``, a unit more for rounding.

    It is cut off where mixing is 2^33 times as wide as the noise; the account stops at 2^12.
    """
    ratio = (width / (2 * size)).nan_to_num_(0.0, MOST_UNITS)  # a learning rate of 0 moves nothing
    return ratio.ceil_().clamp_(max=MOST_UNITS).long()


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
