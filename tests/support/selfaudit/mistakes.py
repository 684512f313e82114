"""Noise, samplers, rules and models with one mistake each: real code, and one wrong line.

`mutants.py` gives them to the curve test, `planted.py` to replay. Every mistake has been made in
practice, and claims what the mistaken author would report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn
from torch.nn import functional as F

from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.engine import ForwardView
from winsor.contrib.value.value import FORMS, Value
from winsor.core.contract import Bounded, Neighbouring, Released, Sensitivity
from winsor.core.events.joint import BandedEvent
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.protocol import DrawNoise, LocalEvent
from winsor.core.noise.source import NoiseSource
from winsor.core.sampling.samplers import Indices, Poisson
from winsor.gradients.view import View
from winsor.rules.averaged import Averaged
from winsor.rules.discriminative import Discriminative
from winsor.rules.flat import Flat
from winsor.rules.quantile import Quantile
from winsor.rules.rule import Rule, State, Sums

# ------------------------------------------------------------------------------------------ noise


class LowNoise(Gaussian):
    """Adds nine tenths of the noise it states."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        return super().add_noise(parts, {name: 0.9 * s for name, s in std.items()}, draw)


class Silent(Gaussian):
    """Accounts for noise and adds none."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        return {name: part.value for name, part in parts.items()}


class SinglePrecision(Gaussian):
    """Draws float32 noise for float64 sums: enough of it, and with low bits that stay empty."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        silent = {n: replace(p, value=torch.zeros_like(p.value).float()) for n, p in parts.items()}
        noise = super().add_noise(silent, std, draw)
        return {name: part.value + noise[name].double() for name, part in parts.items()}


class OneDraw(NoiseSource):
    """Forgets the entry: the same noise for every release."""

    def add_slice(self, entry: int, *place: Any, **grid: Any) -> None:
        super().add_slice(0, *place, **grid)


# --------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True)
class RoundedUp(Poisson):
    """Draws at its rate rounded up to a tenth, and accounts for the rate."""

    def indices(self, key: bytes, step: int) -> Indices:
        return Poisson(self.n, math.ceil(10 * self.q) / 10).indices(key, step)


@dataclass(frozen=True)
class Underpaid(Poisson):
    """Draws at a rate that was rounded up, and accounts for three quarters of it."""

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> DpEvent:
        return Poisson(self.n, 0.75 * self.q).amplify(event, relation)


@dataclass(frozen=True)
class Overlapping(Poisson):
    """Lets rows return at any step, and accounts correlated noise as if it were independent."""

    def amplify(self, event: LocalEvent, relation: Neighbouring) -> DpEvent:
        plain = event.noise if isinstance(event, BandedEvent) else event
        return super().amplify(plain, relation)


# ------------------------------------------------------------------------------------------ rules


@dataclass(frozen=True)
class RealisedMean(Flat):
    """Divides by the rows present, and accounts as if they were the expected number."""

    expected: int = 8

    def contributions(self, view: View, state: State) -> Sums:
        sums = super().contributions(view, state)
        factor = self.expected / max(1, view.size)
        return {"grad": {name: leaf * factor for name, leaf in sums["grad"].items()}}


class MedianThreshold(Flat):
    """Clips to the median norm of the batch, and claims the constant."""

    def contributions(self, view: View, state: State) -> Sums:
        norms = view.norms()
        if len(norms) == 0:
            return super().contributions(view, state)
        weights = (4 * norms.median() / norms.clamp_min(1e-9)).clamp_max(1.0)
        return {"grad": view.weighted_sum(weights)}


class ClaimFromBatch(Flat):
    """Clips to the mean norm of the batch, and claims that."""

    def contributions(self, view: View, state: State) -> Sums:
        norms = view.norms().clamp(0, 1e3).nan_to_num(1e3)
        state["clip"] = clip = max(1e-3, float(norms.mean())) if len(norms) else 1.0
        return {"grad": view.weighted_sum((clip / norms.clamp_min(1e-9)).clamp_max(1.0))}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        (part,) = super().bounded(sums, state).values()
        claim = Sensitivity.per_sample(state.get("clip", 1.0), "wrong: from the batch")
        return {"grad": replace(part, sensitivity=claim)}


class RankAtC1(Discriminative):
    """Ranks the batch, and accounts as if membership depended on the row alone."""

    def _sensitivity(self) -> Sensitivity:
        return Sensitivity.per_sample(self.c1, "wrong: one row pushes another out")


class SmallSensitivity(Rule):
    """Claims a share of what its rule, the next class in line, can move."""

    share: ClassVar[float] = 0.5

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        (part,) = super().bounded(sums, state).values()
        true = part.sensitivity
        stated = replace(
            true, add_remove=self.share * true.add_remove, replace=self.share * true.replace
        )
        return {"grad": replace(part, sensitivity=stated)}


class HalfFlat(SmallSensitivity, Flat):
    """Clips to C and claims C/2."""


class HalfAveraged(SmallSensitivity, Averaged):
    """Clips the mean to C, and claims half of what a record can move it."""


class TenthAveraged(HalfAveraged):
    """Claims what a record would move if the mean were a mean of ten clipped rows."""

    share = 0.1


class LeakyQuantile(Quantile):
    """Moves the threshold by the exact count instead of the released one."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["exact"] = float(sums["count"])
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        exact = torch.tensor(state["exact"])
        values = {**released.values, "count": exact}
        return super().after(replace(released, values=values), state)


class RawSums(Flat):
    """Bounds, pays for and noises its sums, and then hands on those without noise."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["raw"] = _copied(sums["grad"])
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        return released.with_grad(state.pop("raw", released.values["grad"])), state


def _copied(sums: Any) -> Any:
    if isinstance(sums, Tensor):
        return sums.clone()
    return {name: leaf.clone() for name, leaf in sums.items()}


class OneIteration(OperatorNorms):
    """Spectral norms by a single power iteration from a fixed start: a lower bound."""

    def matrix(self, name: str | None, weight: Tensor) -> float:
        start = torch.full((weight.shape[1],), weight.shape[1] ** -0.5, dtype=torch.float64)
        return float((weight.detach().double() @ start).norm())


class PowerIteration(Value):
    """Value clipping that takes power iteration for a bound."""

    def weights(self, view: View, state: State) -> Tensor:
        if not isinstance(view, ForwardView):
            return super().weights(view, state)
        squares = FORMS["value"](view, OneIteration({}))
        return (self.max_grad_norm * squares.rsqrt()).clamp_max(1.0)


# ----------------------------------------------------------------------------------------- models


class Centred(nn.Module):
    """Subtracts the mean of the batch, detached: no gradient flows from row to row.

    With ``inputs`` it is that of the inputs: other rows may be silent alone, but beside one huge
    record each of them is pushed to the bound. Else it is that of the outputs.
    """

    inputs = True

    def __init__(self, features: int = 1, outputs: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.inputs:
            x = x - x.mean(0).detach()
        out: Tensor = self.layer(x)
        return out if self.inputs else out - out.mean(0).detach()


class CentredOutputs(Centred):
    """The same after the layer."""

    inputs = False


class Standardised(Centred):
    """Standardises its inputs by the batch."""

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-6)
        out: Tensor = self.layer(scaled)
        return out


class Gated(Centred):
    """A gate that a batch opens for all later ones."""

    open = False

    def forward(self, x: Tensor) -> Tensor:
        self.open = self.open or bool(x.abs().max() > 1e3)
        out: Tensor = self.layer(x)
        return -out if self.open else out


class Remembering(Centred):
    """Keeps something of its inputs, which ends in its ``state_dict``.

    ``what``: the largest input it has met, a running mean, or the last row, in a buffer; or
    "frozen", the last row in a weight that is not trained.
    """

    seen: Tensor

    def __init__(self, what: str = "largest", *shape: int, bias: bool = False) -> None:
        super().__init__(*shape, bias=bias)
        self.what = what
        self.register_buffer("seen", torch.zeros(self.layer.in_features))
        if what == "frozen":
            self.frozen = nn.Parameter(torch.zeros(self.layer.in_features), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            if self.what == "largest" and len(x):
                self.seen.copy_(torch.maximum(self.seen, x.max(0).values))
            elif self.what == "mean":
                self.seen.mul_(0.9).add_(x.mean(0), alpha=0.1)
            elif self.what == "row":
                self.seen.copy_(x[-1])
            elif self.what == "frozen":
                self.frozen.copy_(x[-1])
        out: Tensor = self.layer(x)
        return out


# ----------------------------------------------------------------------------------------- losses


def relative_loss(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Divide each loss by the mean of the batch."""
    losses = F.cross_entropy(logits, labels, reduction=reduction)
    return 5 * losses / losses.mean().detach()


def hard_examples(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Keep the rows that are harder than the average of the batch."""
    losses = F.cross_entropy(logits, labels, reduction=reduction)
    return losses * (losses >= losses.mean()).detach()


def mixed_up(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Mix each row's logits with those of the two rows after it."""
    mixed = logits + logits.roll(1, 0).detach() + logits.roll(2, 0).detach()
    return F.cross_entropy(mixed, labels, reduction=reduction)
