"""What a private training says about itself: the guarantee so far, and what it was built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from winsor.core.checks import probability
from winsor.core.contract import Bounded, Guarantee, Neighbouring, UnsoundRelease
from winsor.core.door import Door
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.sampling.samplers import Sampler
from winsor.gradients.view import Engine
from winsor.rules.rule import Rule, State, Sums
from winsor.training.feeding.feed import Feed
from winsor.training.guard import ModelGuard
from winsor.training.row_checks import RowChecks

if TYPE_CHECKING:
    from winsor.training.loop import StepBudget

_Value = TypeVar("_Value")


class _fixed(Generic[_Value]):
    """A property of a run that the ledger relies on: setting it is refused with the reason."""

    def __init__(self, read: Callable[[Any], _Value]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        return self._read(instance)

    def __set__(self, instance: Any, value: _Value) -> None:
        raise UnsoundRelease(
            f"{self._read.__name__} of a running training cannot be changed by hand: the ledger "
            "accounts for what the run was built with. Build a new run with make_private."
        )


class Reported:
    """The part of `PrivateTraining` that reads and changes nothing."""

    budget: StepBudget
    _conditions: list[str]
    _door: Door
    _engine: Engine
    _feed: Feed
    _guard: ModelGuard
    _neutralised: int
    _rows: RowChecks
    _rule: Rule
    _rule_state: State
    _empty_sums: Callable[[], Sums]

    def spent(self, delta: float | None = None) -> Guarantee:
        """The certified guarantee for every step in the ledger so far."""
        self._guard.check("since the last step")
        delta = self.budget.delta if delta is None else probability("delta", delta)
        door = self._door
        conditions = [*self._conditions, *self._rows.conditions, *door.conditions]
        return guarantee([door.ledger], delta, door.relation, [str(door.sampler)], conditions)

    @_fixed
    def noise_multiplier(self) -> float:
        return self._door.mechanism.noise_multiplier

    @_fixed
    def delta(self) -> float:
        return self.budget.delta

    @_fixed
    def relation(self) -> Neighbouring:
        return self._door.relation

    @_fixed
    def rule(self) -> Rule:
        return self._rule

    @property
    def rule_state(self) -> State:
        """The rule's public state (for instance an adaptive threshold)."""
        return self._rule_state

    @property
    def ledger(self) -> Ledger:
        return self._door.ledger

    @_fixed
    def sampler(self) -> Sampler:
        return self._door.sampler

    @_fixed
    def protects_units(self) -> bool:
        """Whether one person with all rows is protected, and not only one row."""
        return self._feed.units is not None

    @property
    def neutralised_rows_not_private(self) -> int:
        """Rows whose gradient was not finite and counted as zero. Exact, hence NOT PRIVATE."""
        return self._neutralised

    def public_parts(self) -> dict[str, Bounded]:
        """What the next step will release for a batch without rows: bounds and shares, no data."""
        return self._rule.bounded(self._empty_sums(), self._rule_state)

    def explain(self) -> str:
        """What the engine decided for each layer."""
        return self._engine.explain()
