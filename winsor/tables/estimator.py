"""One private fit for all estimators: who is calling, what may be spent, what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from sklearn.base import BaseEstimator

from winsor.core.arithmetic.rows import quiet
from winsor.core.contract import Guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import KEY_BYTES, bound_key, key_for
from winsor.planning.budget import Target
from winsor.planning.shared_budget import PrivacyBudget, settings_of
from winsor.planning.shares import Session
from winsor.tables.surroundings import begin_fit, count_fit

FACTS = ("bounds", "feature_bound", "target_range", "classes_")
"""Parameters and classes that a fit takes for public, and that a continued fit must not change."""
SEEDED = "noise from a known seed: whoever knows the seed can subtract it"


class PrivateEstimator(BaseEstimator):
    """Base of the private estimators.

    Parameters
    ----------
    epsilon, delta
        The budget of one `fit`. ``delta=None`` means 1e-5, or 1/(2n) if that is smaller.
    relation
        ``"add_or_remove_one"`` or ``"replace_one"``.
    random_state
        None draws a secret key. An int makes a fit reproducible, hence not secret.
    allow_large_delta
        Accept a ``delta`` of 1/n or more, at which publishing one record at random would pass.
    budget
        A `PrivacyBudget` in which the fits of all clones register, for searches.

    Attributes
    ----------
    epsilon_, delta_, guarantee_
        What the fit certifies, for everything in ``ledger_``.
    """

    epsilon: float
    delta: float | None
    relation: str
    random_state: Any
    allow_large_delta: bool
    budget: PrivacyBudget | None
    ledger_: Ledger
    guarantee_: Guarantee
    epsilon_: float
    delta_: float

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep NumPy from warning in a fit: of what, and whether, depends on private values."""
        for name in {"fit", "partial_fit"} & vars(cls).keys():
            setattr(cls, name, quiet(vars(cls)[name]))
        super().__init_subclass__(**options)

    def _store(self, given: dict[str, Any]) -> None:
        """Keep the arguments of a constructor as they are, which is all that it may do."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True  # cells: `winsor.planning.cells`
        return tags

    def _open(
        self,
        n: int,
        config: dict[str, Any],
        *data: Any,
        resumed: Ledger | None = None,
        key_of: Callable[[Target], bytes] | None = None,
        noise_multiplier: float | None = None,
        unit: Any = None,
    ) -> Session:
        """Open the door of a fit of ``n`` rows, with a new ledger unless a fit is ``resumed``.

        A key from a seed belongs to the settings and to ``data``, or is what ``key_of`` says.
        """
        begin_fit(self)
        target = Target.of(n, self.epsilon, self.delta, self.relation, self.allow_large_delta)
        ledger = Ledger(config) if resumed is None else resumed
        if key_of is not None:
            key = key_of(target)
        else:
            key = key_for(self.random_state, len(ledger), settings_of(self), *data)
        facts = {}
        for name in FACTS:
            fact: Any = getattr(self, name, None)
            plain = fact.tolist() if hasattr(fact, "tolist") else fact  # of any dtype
            facts[name] = bound_key(bytes(KEY_BYTES), plain).hex()
        session = Session.open(target, key, ledger, noise_multiplier, unit=unit, **facts)
        if self.budget is None:
            return session
        own = isinstance(self.random_state, bytes)
        return replace(session, admit=self.budget.opened_by(session.door, target.delta, own))

    def _close(
        self,
        session: Session,
        n: int,
        rows: Any = None,
        conditions: tuple[str, ...] = (),
        earlier: tuple[str, ...] = (),
        resumed: bool = False,
    ) -> Self:
        """Certify what was released, and count the fit of ``rows`` (None if they are elsewhere)."""
        if self.random_state is not None:
            conditions += (SEEDED,)
        reached = session.guarantee(f"n = {n} is public", *conditions, *earlier)
        return self._keep(session.ledger, reached, rows, resumed)

    def _keep(self, ledger: Ledger, guarantee: Guarantee, rows: Any, resumed: bool = False) -> Self:
        self.ledger_, self.guarantee_ = ledger, guarantee
        self.epsilon_, self.delta_ = guarantee.epsilon, guarantee.delta
        count_fit(self, rows, resumed)
        return self
