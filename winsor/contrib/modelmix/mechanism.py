"""ModelMix: Gaussian noise whose released form is widened by randomly mixing the last two iterates.

    width_j = max(|w_{k-1}(j) - w_{k-2}(j)|, tau_k)
    w_k(j)  = (w_{k-1}(j) + w_{k-2}(j))/2 + U(-1/2, 1/2) width_j  -  eta_k (G_j + N(0, s^2)) / B

Xiao et al. 2022, Algorithm 1, with tau_k = tau_over_lr * eta_k, G the sum of clipped gradients at
w_{k-1} and B the expected batch size. Lines 5 to 8 of the paper push two close iterates apart by
tau, in the direction of their difference; since the mixing weight is uniform, only the width
matters, and writing it as above also serves equal iterates, where a sign of zero would leave no
width at all. w_{-1} is the start w_0 unless ``earlier`` gives another public iterate.

tau_k is a multiple of the learning rate (``tau_over_lr``), or absolute (``tau``, as Algorithm 1 has
it) beside the largest learning rate ``lr`` that is promised for those steps.

Guarantee
---------
`MixedGaussianDpEvent`: see `winsor/contrib/modelmix/mixed_gaussian.py` for the proof, and for its
conditions. They are enforced here and in `update.py`: Poisson sampling, one bounded part, the
gradient taken at the released iterate, neither the mixing weights nor the noisy gradient
visible outside the update, plain SGD. Momentum and weight decay are offered as functions of
released iterates only. The account is never worse than the plain Gaussian's: what is released is
post-processing of it.

An absolute tau: in units of the gradient the width of step k is tau_k B / eta_k. The account uses
tau_k B / lr_k, which is no more while eta_k <= lr_k, and a wider uniform only helps (see the
proof); the update refuses a step whose learning rate is larger. A given w_{-1} is public: the event
of a step bounds every pair of released iterates, the first pair included.

With ``noise="laplace"`` (Theorem 4.2, second half) rows are clipped in L1 and the noise of each
coordinate is Laplace(b): `MixedLaplaceDpEvent` under the same conditions, see
`winsor/core/events/mixed.py` for the proof. The paper's eq. 15 is an order of growth; the
event is a bound for the run at hand.

Differences from the authors' code: theirs was not public when this was written. The paper's
averaging by the realised batch is replaced by the expected one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dp_accounting import dp_event

from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.checks import choice
from winsor.core.contract import (
    Bounded,
    ConfigurationError,
    Neighbouring,
    UnsoundRelease,
    UnsupportedRelation,
)
from winsor.core.events.joint import GaussianEvent, joint_event
from winsor.core.events.mixed import MixedLaplaceDpEvent
from winsor.core.noise import laplace
from winsor.core.noise.gaussian import FixedNoise, Gaussian
from winsor.core.noise.laplace import Laplace, LaplaceEvent
from winsor.core.noise.protocol import DrawNoise, Mechanism

if TYPE_CHECKING:
    import torch
    from torch import nn

    from winsor.training.update import Update


Stretches = tuple[tuple[int, float], ...]
"""Numbers that change at given steps: ((0, 0.3), (100, 0.15)) is 0.3, and 0.15 from step 100 on."""


def stretches(name: str, value: float | Stretches | None, *, above_zero: bool = False) -> Stretches:
    """Return ``value`` as (first step, number) pairs, checked.

    >>> stretches("tau", 0.5)
    ((0, 0.5),)
    """
    if isinstance(value, int | float):
        found: Stretches = ((0, float(value)),)
    else:
        found = tuple((int(step), float(number)) for step, number in value or ())
    firsts = [first for first, _ in found]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise ConfigurationError(
            f"{name} must be a number or ((0, value), (later step, value), ...) in order. "
            f"Got {value!r} instead."
        )
    for _, number in found:
        if not (math.isfinite(number) and number >= 0) or (above_zero and number == 0):
            least = "above 0" if above_zero else "at least 0"
            raise ConfigurationError(f"{name} must be finite and {least}. Got {number!r} instead.")
    return found


def at(found: Stretches, step: int) -> float:
    """Return the number in force at ``step``.

    >>> at(((0, 0.3), (100, 0.15)), 99)
    0.3
    """
    return next(number for first, number in reversed(found) if first <= step)


class Earlier:
    """w_-1 of Algorithm 1, the iterate before the start: {name of parameter: tensor}.

    It must be public, as the start is: another draw of the initialisation, zero, public weights.
    Its text names the content of the weights.

    >>> import torch
    >>> Earlier({"weight": torch.zeros(2)})
    Earlier(weights=0afa025a5d77472d)
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        digest = hashlib.blake2b(digest_size=8)
        for name, tensor in self.weights.items():
            digest.update(f"{name} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        self._digest = digest.hexdigest()

    def __repr__(self) -> str:
        return f"Earlier(weights={self._digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Earlier) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)


def before_the_start(earlier: Earlier | str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return w_-1 of a run that starts at ``parameters``: copies, in their shapes and types."""
    if isinstance(earlier, str):
        factor = 1.0 if earlier == "start" else 0.0
        return {name: tensor.detach() * factor for name, tensor in parameters.items()}
    found = {}
    for name, tensor in parameters.items():
        given = earlier.weights.get(name)
        if given is None or given.shape != tensor.shape or not bool(given.isfinite().all()):
            raise ConfigurationError(
                f"earlier must hold finite weights of shape {tuple(tensor.shape)} for {name!r}, "
                f"as the model does. Got {None if given is None else tuple(given.shape)} instead. "
                "Build it from a model of the same kind: Earlier(dict(other.named_parameters()))."
            )
        found[name] = given.to(tensor.detach(), copy=True)
    return found


@dataclass(frozen=True)
class ModelMix:
    """What a user asks for: ``make_private(..., mechanism=ModelMix(tau_over_lr=0.15))``.

    Parameters
    ----------
    tau_over_lr
        Least distance of the two mixed iterates over the learning rate, in the units of the mean
        gradient; either one number or a schedule ``((first_step, value), ...)`` starting at 0.
    heavy_ball
        Adds ``heavy_ball * (w_{k-1} - w_{k-2})``: momentum in terms of released iterates.
    weight_decay
        Subtracts ``eta * weight_decay * w_{k-1}``.
    noise
        "gaussian", or "laplace" for a rule that bounds L1 norms (`winsor.rules.L1`).
    tau
        In place of ``tau_over_lr``: the least distance itself, a number or a schedule. The
        learning rate may then change without changing the width.
    lr
        With ``tau``: the largest learning rate, a number or a schedule. The account rests on it; a
        step with a larger one is refused.
    earlier
        w_{-1}: "start" (w_0, the default), "zero", or `Earlier` weights, which must be public.

    Examples
    --------
    >>> ModelMix(((0, 0.3), (100, 0.15))).at(99)
    0.3
    >>> ModelMix(tau=0.03, lr=((0, 0.1), (50, 0.05))).schedule
    ((0, 0.3), (50, 0.6))
    """

    tau_over_lr: float | tuple[tuple[int, float], ...] | None = None
    heavy_ball: float = 0.0
    weight_decay: float = 0.0
    noise: str = "gaussian"
    tau: float | tuple[tuple[int, float], ...] | None = None
    lr: float | tuple[tuple[int, float], ...] | None = None
    earlier: Earlier | str = "start"

    def __post_init__(self) -> None:
        self._refuse_wrong_widths()
        if not 0 <= self.heavy_ball < 1 or not self.weight_decay >= 0:
            raise ConfigurationError(
                "heavy_ball must be in [0, 1) and weight_decay at least 0. Got "
                f"{self.heavy_ball!r} and {self.weight_decay!r} instead."
            )
        if self.noise not in ("gaussian", "laplace"):
            raise ConfigurationError(
                f'noise must be "gaussian" or "laplace". Got {self.noise!r} instead.'
            )
        if not isinstance(self.earlier, Earlier):
            remedy = "Or pass Earlier(weights)."
            choice("earlier", self.earlier, ("start", "zero"), remedy)

    def _refuse_wrong_widths(self) -> None:
        if (self.tau_over_lr is None) == (self.tau is None) or (self.tau is None) != (
            self.lr is None
        ):
            raise ConfigurationError(
                "tau_over_lr must be given, or tau with lr, the largest learning rate. Got "
                f"tau_over_lr={self.tau_over_lr!r}, tau={self.tau!r}, lr={self.lr!r} instead."
            )
        if self.tau_over_lr is not None:
            stretches("tau_over_lr", self.tau_over_lr)
        else:
            stretches("tau", self.tau)
            stretches("lr", self.lr, above_zero=True)

    @property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """The tau/eta that the account uses, from each first step on."""
        if self.tau_over_lr is not None:
            return stretches("tau_over_lr", self.tau_over_lr)
        tau, lr = stretches("tau", self.tau), stretches("lr", self.lr)
        firsts = sorted({first for first, _ in (*tau, *lr)})
        return tuple((first, at(tau, first) / at(lr, first)) for first in firsts)

    hides_randomness: ClassVar[bool] = True
    """The amplification rests on the mixing weights, so their key stays out of checkpoints."""

    def with_noise(self, noise_multiplier: float, expected_size: float) -> Mechanism:
        """Return the noise of a run with this multiplier and expected batch size."""
        mixed = MixedLaplace if self.noise == "laplace" else MixedGaussian
        return mixed(noise_multiplier, self, expected_size)

    def update(
        self,
        parameters: dict[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        expected_size: float,
        key: bytes,
    ) -> Update:
        """Return the step that mixes and then releases the parameters."""
        from winsor.contrib.modelmix.update import MixingUpdate

        return MixingUpdate(parameters, optimizer, scheduler, expected_size, self, key)

    def at(self, step: int) -> float:
        """Return tau/eta in force at ``step``, as the account has it."""
        return at(self.schedule, step)

    def distance(self, step: int, lr: float) -> float:
        """Return tau in force at ``step`` for a learning rate of ``lr``."""
        if self.tau is None:
            return self.at(step) * lr
        most = at(stretches("lr", self.lr), step)
        if not lr <= most:
            raise UnsoundRelease(
                f"the learning rate must be at most lr = {most!r} of ModelMix at step {step}: the "
                f"account of an absolute tau rests on it. Got {lr!r} instead. Promise a larger lr."
            )
        return at(stretches("tau", self.tau), step)


@dataclass(frozen=True)
class MixedEvent:
    """The release of one mixed step, given its batch, under Gaussian or Laplace noise."""

    plain: GaussianEvent | LaplaceEvent
    width_ratio: float
    coordinates: float

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event of a Poisson batch of rate ``q``."""
        return self._mixed(q) if self.width_ratio else self.plain.poisson(q, relation)

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        """Refuse batches of fixed size."""
        if isinstance(self.plain, LaplaceEvent):
            return self.plain.fixed_size(n, size, relation)
        raise UnsupportedRelation(
            "ModelMix must be sampled by Poisson: its amplified account is proven for that. Got "
            'fixed-size batches instead. Use sampling="poisson".'
        )

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event of the full batch."""
        return self._mixed(1.0) if self.width_ratio else self.plain.whole(relation)

    def _mixed(self, q: float) -> dp_event.DpEvent:
        laplacian = isinstance(self.plain, LaplaceEvent)
        kind = MixedLaplaceDpEvent if laplacian else MixedGaussianDpEvent
        return kind(q, self.plain.add_remove, self.width_ratio, self.coordinates)


class _Mixed(FixedNoise):
    """The noise of ModelMix on the sum; the update (`update.py`) adds the mixing before release."""

    mix: ModelMix
    expected_size: float

    def __init__(self, noise_multiplier: float, mix: ModelMix, expected_size: float) -> None:
        super().__init__(noise_multiplier)
        object.__setattr__(self, "mix", mix)  # laws are frozen
        object.__setattr__(self, "expected_size", expected_size)

    @property
    def phases(self) -> tuple[int, ...]:  # type: ignore[override]
        """Steps at which the price of a step changes."""
        return tuple(first for first, _ in self.mix.schedule)

    def config(self) -> dict[str, Any]:
        """Return what the header of a ledger says of the noise."""
        return {**super().config(), "mechanism": "ModelMix", "mix": repr(self.mix)}

    def _width(self, step: int) -> float:
        """Return the uniform's width in units of the sum, which the update divides by the size."""
        return self.mix.at(step) * self.expected_size


class MixedGaussian(_Mixed, Gaussian):
    """Gaussian noise on the sum, and mixing."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        """Release the gradient in float64."""
        return Gaussian.add_noise(in_double(parts), std, draw)

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> MixedEvent:
        """Return the event of ``step``, which depends on its tau."""
        part = only_part(parts)
        c = part.sensitivity.add_remove
        coordinates = 1.0 if part.coordinate_bound is None else (c / part.coordinate_bound) ** 2
        plain = joint_event(parts, self.noise_multiplier)
        return MixedEvent(plain, self._width(step) / c, max(1.0, coordinates))


class MixedLaplace(_Mixed, Laplace):
    """Laplace noise on the sum of rows that are clipped in L1, and mixing."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        """Release the gradient in float64."""
        return Laplace.add_noise(in_double(parts), std, draw)

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> MixedEvent:
        """Return the event of ``step``, which depends on its tau."""
        bound = laplace.l1_bound("grad", only_part(parts))
        plain = laplace.joint_event(parts, self.noise_multiplier)
        return MixedEvent(plain, self._width(step) / bound, plain.coordinates)


def in_double(parts: Mapping[str, Bounded]) -> dict[str, Bounded]:
    """Return the sums in float64, in which the update can read off where on its grid a value is."""
    return {
        name: dataclasses.replace(part, value={k: leaf.double() for k, leaf in part.value.items()})
        for name, part in parts.items()
    }


def only_part(parts: Mapping[str, Bounded]) -> Bounded:
    """Return the gradient, if nothing else is released; refuse the rest."""
    if len(parts) != 1:
        raise UnsoundRelease(
            "ModelMix must have one bounded part, the gradient, since anything else would be "
            f"released without mixing. Got {sorted(parts)} instead. Use a rule with a public "
            "threshold."
        )
    (part,) = parts.values()
    return part
