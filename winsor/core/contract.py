"""The words every part of winsor shares: sensitivity, bounded and released values, typed errors."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from winsor.core.arithmetic.rows import FARTHEST

Tree = dict[str, Any]
"""Gradient-shaped values: parameter name -> array."""


class Neighbouring(enum.StrEnum):
    """Which pairs of datasets must look alike.

    >>> Neighbouring("replace_one")
    <Neighbouring.REPLACE_ONE: 'replace_one'>
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"


# --------------------------------------------------------------------------------------- errors


class WinsorError(Exception):
    """Base of every error winsor raises on purpose.

    Messages name what was expected, what came, and what to do.
    """


class ConfigurationError(WinsorError, ValueError):
    """An argument is outside the range for which a guarantee can be given."""


class UnknownArgument(ConfigurationError, TypeError):
    """A keyword that the function does not take."""


class UnsupportedModel(WinsorError, TypeError):
    """A layer or parameter whose per-sample gradient no engine can serve, or that mixes rows."""


class UnsupportedEvent(WinsorError, TypeError):
    """An event without a registered handler: its privacy is unknown, so no number is given."""


class UnsupportedRelation(WinsorError, ValueError):
    """This sampler or event has no proven account under the neighbouring relation asked for."""


class ProtocolError(WinsorError, RuntimeError):
    """The training loop was called out of order: a step outside `batches()`, a batch skipped."""


class LossError(WinsorError, ValueError):
    """The losses given to `step` are not one finite-graph value per row of the batch."""


class UnsoundRelease(WinsorError, RuntimeError):
    """A value asked to pass the door without a valid bound, or noise was altered by hand."""


class BudgetExceeded(WinsorError, RuntimeError):
    """The next step would spend more than the target. Raised before any data are touched."""


class LedgerError(WinsorError, RuntimeError):
    """A ledger is damaged beyond a torn last line, or belongs to another configuration."""


class CalibrationError(WinsorError, ValueError):
    """No setting inside the searched range reaches the target epsilon."""


NOT_FINITE = (
    "internal error: a sum of bounded rows must be finite whatever the rows hold. Got infinity or "
    "NaN instead: the rule or statistic does not bound every row. Count such rows as zero in it."
)


class PrivacyLeakWarning(UserWarning):
    """Something outside the certified part looked at private data, at the user's own request."""


# ---------------------------------------------------------------------------------- sensitivity


@dataclass(frozen=True)
class Sensitivity:
    """L2 sensitivity of a batch quantity under both relations, with its proof in words.

    ``add_remove`` is the largest move of the quantity when one record joins or leaves the batch,
    ``replace`` when one record of the batch becomes another.

    ``mixture`` optionally refines ``add_remove`` for a record whose shift is itself random and
    independent of all other records: pairs (probability, shift) with shifts along one direction
    (docs/privacy.md, "Three facts that everything rests on", F3). Its largest shift equals
    ``add_remove``.

    ``l1`` is the largest move in L1 when a record joins or leaves, where the rule bounds it: what
    Laplace noise needs. A replaced record leaves and another joins, hence at most twice as much.
    """

    add_remove: float
    replace: float
    proof: str
    mixture: tuple[tuple[float, float], ...] | None = None
    l1: float | None = None

    def __post_init__(self) -> None:
        for name in ("add_remove", "replace", "l1"):
            value = getattr(self, name)
            if name == "l1" and value is None:
                continue
            if not 1 / FARTHEST <= value <= FARTHEST:
                raise UnsoundRelease(
                    f"sensitivity {name} must be a positive finite number, between 4e-121 and "
                    f"2e120 so that no product underflows. Got {value!r} instead."
                )

    @staticmethod
    @functools.lru_cache(maxsize=64)  # asked for at every step
    def per_sample(c: float, proof: str, l1: float | None = None) -> Sensitivity:
        """sum_i h(z_i) with |h| <= c, where h depends on z_i and public state only.

        ``l1`` is a bound on |h|_1, where there is one.
        """
        return Sensitivity(c, 2 * c, proof, l1=l1)

    @staticmethod
    def of_range(c: float, proof: str) -> Sensitivity:
        """Any function of the batch with values in a ball of radius c, whatever the rows do."""
        return Sensitivity(2 * c, 2 * c, proof)

    def under(self, relation: Neighbouring) -> float:
        """Return the sensitivity under ``relation``."""
        return self.add_remove if relation is Neighbouring.ADD_OR_REMOVE_ONE else self.replace


@dataclass(frozen=True)
class Bounded:
    """A private value together with the proof of how far one record can move it.

    ``share`` is this part's fraction of the step's privacy: the joint event of parts with shifts
    S_j and noise s_j has multiplier nm with nm^-2 = sum_j (S_j/s_j)^2, and part j gets
    s_j = nm * S_j / sqrt(share_j). The shares of one release add up to 1.
    """

    value: Any  # an array (`core/buffers.py`), or a tree of them
    sensitivity: Sensitivity
    share: float = 1.0
    coordinate_bound: float | None = None
    """Largest |coordinate| that one record contributes, where the rule knows it."""


@dataclass(frozen=True)
class Released:
    """What left through the door: noisy values, and the ledger entry that paid for them.

    Whatever is computed from ``values`` and public state stays as private as they are;
    `with_grad` carries the entry along with such a result.
    """

    values: dict[str, Any]
    std: dict[str, float]
    entry: int
    seal: object = field(default=None, repr=False, compare=False)

    @staticmethod
    def imagined(values: dict[str, Any], std: dict[str, float]) -> Released:
        """Return a release that never was, for audits: no door sealed it, no update takes it."""
        return Released(values, std, 0)

    def with_grad(self, grad: Tree) -> Released:
        """The same release with its gradient post-processed."""
        return dataclasses.replace(self, values={"grad": grad})


@dataclass(frozen=True, repr=False)
class Guarantee:
    """A certified (epsilon, delta) for what was executed.

    >>> print(Guarantee(1.0, 1e-5, Neighbouring.REPLACE_ONE, "pld", steps=3, sampler="full batch"))
    (epsilon=1, delta=1e-05)-DP, replace one, 3 steps, full batch, certified by PLD
    """

    epsilon: float
    delta: float
    relation: Neighbouring
    accountant: str
    steps: int
    sampler: str = ""
    conditions: tuple[str, ...] = ()
    drawn: ClassVar[Callable[[Guarantee], str] | None] = None
    """How notebooks show a guarantee, as HTML; set by the room that draws (`winsor.charts`)."""

    def __str__(self) -> str:
        relation = self.relation.value.replace("_", " ")
        return (
            f"(epsilon={self.epsilon:.4g}, delta={self.delta:.3g})-DP, {relation}, "
            f"{self.steps} steps, {self.sampler}, certified by {self.accountant.upper()}"
        )

    def __repr__(self) -> str:
        rests = "".join(f"\n  rests on: {condition}" for condition in self.conditions)
        return f"Guarantee {self}{rests}"

    def _repr_html_(self) -> str | None:
        return None if Guarantee.drawn is None else Guarantee.drawn(self)
