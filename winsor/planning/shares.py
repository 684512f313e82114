"""Releases that share one budget: calibrated together, made through one door, paid for by name.

    session = Session.open(target, key, Ledger(...))
    shares = session.shares(n, {"gram": Part(unit, 1, 0.25), "steps": Part(unit, 20, 0.75)})
    door, mechanism = shares["gram"]

A part with the share w of the budget and T releases gets the noise multiplier nm sqrt(T / w), where
nm is that of one release of all rows with the whole budget: Gaussian shares add up exactly. The
accountant certifies the whole list, and the ledger records it line by line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from winsor.core.checks import positive
from winsor.core.contract import ConfigurationError, Guarantee, Neighbouring, Sensitivity
from winsor.core.events.registry import History
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor, Receipt
from winsor.core.sampling.samplers import FullBatch
from winsor.planning.budget import Payment, Target, noise_multiplier


@dataclass(frozen=True)
class Part:
    """``steps`` releases of all rows that have this ``share`` of a budget together."""

    sensitivity: Sensitivity
    steps: int
    share: float

    @property
    def scale(self) -> float:
        """Noise multiplier of a release over that of one release with the whole budget."""
        return math.sqrt(self.steps / self.share)


@dataclass(frozen=True)
class Shares:
    """Parts of a budget by name, and the noise at which they spend it together."""

    parts: Mapping[str, Part]
    multiplier: float
    """Noise multiplier of one release with the whole budget."""
    door: PrepaidDoor | None = None

    @staticmethod
    def of(n: int, parts: Mapping[str, Part], target: Target) -> Shares:
        """Calibrate ``parts``, releases of all ``n`` rows, to ``target``."""
        return Shares(parts, noise_multiplier(payments(n, parts), target))

    def at(self, door: PrepaidDoor) -> Shares:
        """Return the same shares, to be paid at ``door``."""
        return replace(self, door=door)

    def __getitem__(self, name: str) -> tuple[PrepaidDoor, Gaussian]:
        """Return the door, and the mechanism of the part called ``name``."""
        assert self.door is not None
        return self.door, self.mechanism(name)

    def __contains__(self, name: str) -> bool:
        return name in self.parts

    def mechanism(self, name: str) -> Gaussian:
        """Return the noise of each release of a part."""
        return Gaussian(self.multiplier * self.parts[name].scale)

    def spent_on(self, name: str) -> float:
        """Return the noise multiplier of a part as if it were one release."""
        return self.multiplier / math.sqrt(self.parts[name].share)

    @property
    def releases(self) -> int:
        """Number of releases of all parts."""
        return sum(part.steps for part in self.parts.values())


def payments(n: int, parts: Mapping[str, Part]) -> list[Payment]:
    """Return the lines of a plan that releases ``parts`` of ``n`` rows."""
    everyone = FullBatch(n)
    return [Payment(everyone, part.sensitivity, part.steps, part.scale) for part in parts.values()]


@dataclass(frozen=True)
class Session:
    """The budget and the open door of one fit or statistic.

    ``noise_multiplier`` overrides the budget. The key is as sensitive as the rows: a session must
    not outlive its fit.
    """

    door: PrepaidDoor
    target: Target
    key: bytes = field(repr=False)
    noise_multiplier: float | None = None
    admit: Callable[[History], None] | None = None
    """What refuses a plan before its first release: a budget with a ceiling."""

    @staticmethod
    def open(
        target: Target,
        key: bytes,
        ledger: Ledger | Mapping[str, Any],
        noise_multiplier: float | None = None,
        unit: Any = None,
        **facts: str,
    ) -> Session:
        """Open the door of ``ledger``, or of a new one with this configuration.

        A ledger that goes on must be about persons if ``unit`` says whose rows are, and not if it
        is None, and about the same ``facts``.
        """
        book = ledger if isinstance(ledger, Ledger) else Ledger(dict(ledger))
        book.be_about(unit="row" if unit is None else "person", **facts)
        return Session(PrepaidDoor(book, target.relation, key), target, key, noise_multiplier)

    @property
    def ledger(self) -> Ledger:
        """The ledger that all releases are recorded in."""
        return self.door.ledger

    def multiplier(self, plan: Sequence[Payment]) -> float:
        """Return the noise multiplier of ``plan``: calibrated to the target, or given by hand."""
        found = self.noise_multiplier
        return self.admitted(plan, noise_multiplier(plan, self.target) if found is None else found)

    def admitted(self, plan: Sequence[Payment], multiplier: float) -> float:
        """Return the noise multiplier of the whole of a fit, if its budget has room for it."""
        if self.admit is not None:
            relation = self.target.relation
            self.admit([(line.event(multiplier, relation), line.steps) for line in plan])
        return multiplier

    def shares(self, n: int, parts: Mapping[str, Part]) -> Shares:
        """Return ``parts`` of ``n`` rows with the noise that the budget allows."""
        return Shares(parts, self.multiplier(payments(n, parts)), self.door)

    def pay(self, plan: Payment, shape: int | tuple[int, ...]) -> Receipt:
        """Calibrate the noise of a run that is all ``plan``, and pay for its releases."""
        mechanism = Gaussian(self.multiplier([plan]))
        return self.door.pay(mechanism, plan.sampler, plan.sensitivity, plan.steps, shape)

    def yardstick(self, n: int) -> float:
        """Return mu of the one Gaussian release that would spend the whole budget: how much signal
        the budget allows, whatever the method. A function of public values."""
        single = Payment(FullBatch(n), Sensitivity(1.0, 2.0, "yardstick"), 1)
        return 1 / self.multiplier([single])

    def guarantee(self, *conditions: str) -> Guarantee:
        """Return the certified account of everything in the ledger."""
        return self.door.guarantee(self.target.delta, conditions)


def single_payment(
    plan: Payment,
    shape: int | tuple[int, ...],
    noise: float,
    relation: Neighbouring,
    key: bytes,
    ledger: Ledger,
) -> tuple[PrepaidDoor, Receipt]:
    """Pay for a run that is all ``plan``, with this ``noise`` multiplier, at a door of its own."""
    door = PrepaidDoor(ledger, relation, key)
    return door, door.pay(Gaussian(noise), plan.sampler, plan.sensitivity, plan.steps, shape)


def noise_of(
    plan: Payment, epsilon: float | None, given: float | None, delta: float, relation: Neighbouring
) -> float:
    """Return the noise multiplier that was ``given``, or that spends ``epsilon`` on ``plan``."""
    one_of(epsilon, given)
    if given is None:
        given = noise_multiplier([plan], Target(epsilon, delta, None, relation))
    return positive("noise_multiplier", given)


def one_of(epsilon: float | None, noise_multiplier: float | None) -> None:
    """Refuse a budget that is stated twice, or not at all."""
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigurationError(
            f"give either epsilon or noise_multiplier. Got epsilon={epsilon!r}, "
            f"noise_multiplier={noise_multiplier!r} instead."
        )
