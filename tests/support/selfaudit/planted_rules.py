"""Rules, mechanisms and a sampler with one mistake each, for `planted.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from winsor.core.contract import Bounded, Released, Sensitivity
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import Indices, Poisson
from winsor.gradients.view import View
from winsor.rules.discriminative import Discriminative
from winsor.rules.flat import Flat
from winsor.rules.rule import State, Sums


class RawAfter(Flat):
    """`after` ignores the noise."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        state["raw"] = {name: leaf.clone() for name, leaf in sums["grad"].items()}
        return super().bounded(sums, state)

    def after(self, released: Released, state: State) -> tuple[Released, State]:
        return released.with_grad(state.pop("raw", released.values["grad"])), state


class RealisedMean(Flat):
    """Divides by the rows present and accounts as if they were the expected number."""

    def contributions(self, view: View, state: State) -> Sums:
        sums = super().contributions(view, state)
        factor = 8 / max(1, view.size)
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


class HalfTheSensitivity(Flat):
    """Clips to C and claims C/2."""

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        (part,) = super().bounded(sums, state).values()
        claim = Sensitivity.per_sample(part.sensitivity.add_remove / 2, "wrong by two")
        return {"grad": replace(part, sensitivity=claim)}


class OneDraw(Gaussian):
    """The same noise at every step."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: Any
    ) -> dict[str, Any]:
        vars(self).setdefault("kept", draw)
        return super().add_noise(parts, std, vars(self)["kept"])


class Silent(Gaussian):
    """Accounts for noise and adds none."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: Any
    ) -> dict[str, Any]:
        return {name: part.value for name, part in parts.items()}


@dataclass(frozen=True)
class RoundedUp(Poisson):
    """Draws at its rate rounded up to a tenth, and accounts for the rate."""

    def indices(self, key: bytes, step: int) -> Indices:
        return Poisson(self.n, math.ceil(10 * self.q) / 10).indices(key, step)
