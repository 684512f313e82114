"""The Gaussian mechanism on several parts at once.

Part j is a vector that one record moves by at most S_j; it is released with noise N(0, s_j^2).
Together the parts are one Gaussian release whose noise multiplier nm satisfies

    nm^-2 = sum_j (S_j / s_j)^2,        s_j = nm S_j / sqrt(share_j),   sum_j share_j = 1,

because scaling part j by 1/s_j gives one vector with unit noise that moves by at most 1/nm.

Guarantee
---------
Given the batch: GaussianDpEvent(nm) under add/remove. Sampling amplifies it (see `sampling.py`).
Under Poisson and replace-one, two opposite shifts of the add/remove size are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from dp_accounting import dp_event
from torch import Tensor

from winsor.contract import Bounded, ConfigurationError, Neighbouring, UnsoundRelease
from winsor.sampling.samplers import LocalEvent
from winsor.tree import FlatTree


class DrawNormal(Protocol):
    """The standard normals of one step, by the name of the part that they are for."""

    def __call__(self, name: str, size: int) -> Tensor:
        """(size,) float32."""

    def add(self, name: str, flat: Tensor, std: float) -> None:
        """``flat += std * self(name, len(flat))``."""


@dataclass(frozen=True)
class GaussianEvent:
    """Noise multipliers of a joint release given its batch, under each relation."""

    add_remove: float
    replace: float
    mixture: tuple[tuple[float, float], ...] | None = None

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        if q == 1.0:
            return self.whole(relation)
        if self.mixture is None or relation is Neighbouring.REPLACE_ONE:
            return dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(self.add_remove))
        absent_or_shifted = ((1 - q, 0.0), *((q * p, shift) for p, shift in self.mixture))
        return _mixture_event(self.add_remove, absent_or_shifted)

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        gaussian = dp_event.GaussianDpEvent(self.replace)
        return dp_event.SampledWithoutReplacementDpEvent(n, size, gaussian)

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        if relation is Neighbouring.REPLACE_ONE:
            return dp_event.GaussianDpEvent(self.replace)
        if self.mixture is None:
            return dp_event.GaussianDpEvent(self.add_remove)
        return _mixture_event(self.add_remove, self.mixture)


def _mixture_event(multiplier: float, mixture: tuple[tuple[float, float], ...]) -> dp_event.DpEvent:
    """A shift of random size along one direction, independent of the other records (fact F3)."""
    largest = max(shift for _, shift in mixture)
    shifts = tuple(shift / largest for _, shift in mixture)
    return dp_event.MixtureOfGaussiansDpEvent(multiplier, shifts, tuple(p for p, _ in mixture))


def joint_event(parts: Mapping[str, Bounded], noise_multiplier: float) -> GaussianEvent:
    """The event of releasing all parts with the noise of `Gaussian.std`.

    With s_j = nm S_j / sqrt(share_j), sum_j (S_j/s_j)^2 = nm^-2 and, for the replace sensitivities
    R_j, sum_j (R_j/s_j)^2 = nm^-2 sum_j share_j (R_j/S_j)^2. Written in shares, the event does not
    vary in its last digits with an adaptive threshold, so all steps are one kind of event.
    """
    ratio = sum(
        part.share * (part.sensitivity.replace / part.sensitivity.add_remove) ** 2
        for part in parts.values()
    )
    mixture = next(iter(parts.values())).sensitivity.mixture if len(parts) == 1 else None
    return GaussianEvent(noise_multiplier, noise_multiplier / math.sqrt(ratio), mixture)


class Gaussian:
    """Gaussian noise of ``noise_multiplier`` times the joint add/remove sensitivity."""

    noise_multiplier: float

    def __init__(self, noise_multiplier: float) -> None:
        value = noise_multiplier
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ConfigurationError(
                f"noise_multiplier must be a positive finite number. Got {value!r} instead."
            )
        object.__setattr__(self, "noise_multiplier", float(value))

    def __setattr__(self, name: str, value: Any) -> None:
        raise UnsoundRelease(
            f"{name} of a mechanism cannot be changed by hand: the ledger accounts for the noise "
            "the mechanism was built with. Build a new run with the noise you want."
        )

    def config(self) -> dict[str, Any]:
        return {"mechanism": "Gaussian", "noise_multiplier": self.noise_multiplier}

    def std(self, parts: Mapping[str, Bounded]) -> dict[str, float]:
        check_shares(parts)
        return {
            name: self.noise_multiplier * part.sensitivity.add_remove / math.sqrt(part.share)
            for name, part in parts.items()
        }

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent:
        """The event of any step: this mechanism does the same at each."""
        check_shares(parts)
        return joint_event(parts, self.noise_multiplier)

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNormal
    ) -> dict[str, Any]:
        """Noise every part in place and return the values."""
        return {name: _noised(name, part.value, std[name], draw) for name, part in parts.items()}


def check_shares(parts: Mapping[str, Bounded]) -> None:
    """The parts of one release divide one privacy budget."""
    total = sum(part.share for part in parts.values())
    if not math.isclose(total, 1.0, rel_tol=1e-9):
        raise UnsoundRelease(f"shares of a joint release must add up to 1. Got {total} instead.")


def _noised(name: str, value: Any, std: float, draw: DrawNormal) -> Any:
    if isinstance(value, FlatTree):
        draw.add(name, value.flat, std)
        return value
    leaves = list(value.values()) if isinstance(value, dict) else [value]
    noise = draw(name, sum(leaf.numel() for leaf in leaves))
    pieces = torch.split(noise, [leaf.numel() for leaf in leaves])
    shaped = [piece.view(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
    if leaves[0].dtype is not noise.dtype or leaves[0].device != noise.device:
        shaped = [s.to(leaf) for s, leaf in zip(shaped, leaves, strict=True)]
    torch._foreach_add_(leaves, shaped, alpha=std)
    return value
