"""The price of keeping the best of K trials, K random: private selection.

Trial Q: train at a setting drawn from a public law, score it (inside Q, ties broken by a coin
inside Q), output (score, model). Selection A: draw K from a public law (`trial_counts`), run Q K
times on the same rows, release the best output and nothing else: not K, no other trial.

Two certified bounds, and the smaller is reported.

*Direct*, for K truncated negative binomial with mean m. With delta_Q(.) the profile of one trial,
the larger of both directions, for every e1 >= 0

    delta_A(eps) <= m delta_Q(eps - log R),
    R = (exp(e1) + ((1-gamma)/gamma) delta_Q(e1))^(eta+1).

Proof. A(y) = Q(y) phi'(F(y)), F the law of the order, and phi' <= phi'(1) = m. With G = 1 - F,
phi'(F)/phi'(F') = ((gamma + (1-gamma) G') / (gamma + (1-gamma) G))^(eta+1), and G' <= exp(e1) G +
delta_Q(e1) makes this at most R. Hence A - exp(eps) A' <= phi'(F) (Q - (exp(eps)/R) Q'); integrate
its positive part. R does not depend on eps, so e1 is chosen once, and
epsilon_A(delta) = epsilon_Q(delta/m) + log R.

delta_Q is the profile of the trial as a machine runs it: noise on a grid, from a sampler that is
not ideal (`lattice`), whose price is charged for every trial. The K trials are then independent
runs of that very Q.

*Renyi* (Papernot & Steinke 2022, Thm 2 and 6; the only one for Poisson K). With D(a) the divergence
of one trial at order a,

    D_A(a) <= D(a) + log(m)/(a-1) + (1+eta) min_b ((1 - 1/b) D(b) + log(1/gamma)/b)
    D_A(a) <= D(a) + log(m)/(a-1) + m delta_Q(log(a/(a-1)))                           (Poisson)

Composition with other events. The two together bound a profile, which is turned into a pair of
discrete laws that dominates A in both directions (`dominating`). The pair composes with the loss
distributions of other events, and the Renyi bound adds to theirs: `winsor.core.accounting.account`
takes the smaller for the history as a whole.

Guarantee
---------
(epsilon, delta)-differential privacy of what A releases, if every trial is the same Q: settings
drawn afresh from one public law, at most the trial's history spent in each, the score computed
inside, and neither K nor any other trial ever visible. The Renyi bound is that of ideal noise: the
sampler is charged by whoever reports (`certify`), for all trials together.

References
----------
Koskela, Redberg, Wang: Privacy Profiles for Private Selection, 2024 (a bound of this kind); Liu,
Talwar 2019; Papernot, Steinke 2022.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache

import attr
import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from winsor.core.accounting import lattice, pld, rdp
from winsor.core.accounting.dominating import DominatingPair, dominating_pair, on_grid
from winsor.core.accounting.spending import certify, charged_epsilon, delta_curve
from winsor.core.contract import (
    ConfigurationError,
    Neighbouring,
    UnsupportedEvent,
    UnsupportedRelation,
)
from winsor.core.events.registry import (
    ROUNDING,
    Grid,
    History,
    Json,
    Orders,
    entry_of,
    event_from_json,
    event_to_json,
    flatten,
    register,
)
from winsor.tuning.trial_counts import (
    PoissonTrials,
    TrialCounts,
    TruncatedNegativeBinomial,
    log_ratio,
    renyi_deltas,
    selected_divergences,
    smallest_log_ratio,
)

Array = NDArray[np.float64]

_NODES = 768
_FEW_ORDERS = np.array([1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0])
_MUCH_SMALLER = 0.95  # when a look at these, most of them whole and quick, is enough
_RENYI_NODES = 128
_SMALLEST_DELTA = 1e-18  # where the profile of one trial is cut; the rest is called infinite
_LARGEST_EPSILON = 500.0


@attr.s(frozen=True, auto_attribs=True)
class SelectionDpEvent(DpEvent):
    """The best of K runs of ``event``, K from the law ``trials``; K and the others stay secret.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> from winsor.core.accounting import certify
    >>> law = TruncatedNegativeBinomial.of_mean(10)
    >>> one, best = GaussianDpEvent(2.0), SelectionDpEvent(GaussianDpEvent(2.0), law)
    >>> print(*(f"{certify([(event, 1)], delta=1e-5).epsilon:.2f}" for event in (one, best)))
    1.99 3.30
    """

    event: DpEvent
    trials: TrialCounts

    @staticmethod
    def of_history(trial: History, trials: TrialCounts) -> SelectionDpEvent:
        """A selection among runs that each spend (at most) the history ``trial``."""
        parts = [SelfComposedDpEvent(event, count) for event, count in flatten(trial)]
        return SelectionDpEvent(ComposedDpEvent(parts), trials)

    @property
    def trial(self) -> History:
        """What one run spends."""
        return flatten([(self.event, 1)])


@attr.s(frozen=True, auto_attribs=True)
class SelectionProfileDpEvent(DpEvent):
    """The pair of laws that dominates a selection; see `dominating_pair`."""

    selection: SelectionDpEvent


# -------------------------------------------------------------------------------- the two bounds


def epsilon_directly(event: SelectionDpEvent, delta: float, relation: Neighbouring) -> float:
    """epsilon_Q(delta/m) + log R; infinite for Poisson K, which has no direct bound."""
    law = event.trials
    if isinstance(law, PoissonTrials):
        return math.inf
    base, profile = certified_profile(event.trial, delta / (law.mean * ROUNDING), relation)
    if math.isinf(base):
        return math.inf
    return base + smallest_log_ratio(law, profile, base)


def epsilon_by_renyi(event: SelectionDpEvent, delta: float, relation: Neighbouring) -> float:
    """The Renyi bound, as `winsor.core.accounting.account` would use it."""
    divergences = _selection_rdp(event, relation, rdp.ORDERS)
    return float(compute_epsilon(rdp.ORDERS, divergences, delta)[0])


def epsilon_alone(
    event: SelectionDpEvent, delta: float, relation: Neighbouring
) -> tuple[float, str]:
    """The smaller bound on a selection that is composed with nothing, and which one it is."""
    return _epsilon_alone(_text(event), delta, relation)


@lru_cache(maxsize=256)  # a tuning asks when it calibrates, when it pays and when it reports
def _epsilon_alone(text: str, delta: float, relation: Neighbouring) -> tuple[float, str]:
    event = _event(text)
    assert isinstance(event, SelectionDpEvent), text
    if not event.trial:
        return 0.0, "pld"  # nothing is released about rows, however often
    direct = epsilon_directly(event, delta, relation)
    try:
        if direct < _MUCH_SMALLER * _roughly_by_renyi(event, delta, relation):
            return direct, "pld"
        by_renyi = epsilon_by_renyi(event, delta, relation)
    except (UnsupportedEvent, UnsupportedRelation):
        if math.isinf(direct):
            raise
        return direct, "pld"
    return min((direct, "pld"), (by_renyi, "rdp"))


def _roughly_by_renyi(event: SelectionDpEvent, delta: float, relation: Neighbouring) -> float:
    """The Renyi bound from a few orders: to see whether all of them could matter."""
    if isinstance(event.trials, PoissonTrials):
        return 0.0
    one = rdp.divergences(event.trial, relation, _FEW_ORDERS)
    several = selected_divergences(event.trials, _FEW_ORDERS, one, lambda _: 1.0)
    return float(compute_epsilon(_FEW_ORDERS, several, delta)[0])


# ------------------------------------------------------------------------------ the profile of Q


def _text(event: DpEvent) -> str:
    """A key for what is remembered: events may hold lists, which cannot be hashed."""
    return json.dumps(event_to_json(event), sort_keys=True)


def _event(text: str) -> DpEvent:
    return event_from_json(json.loads(text))


@lru_cache(maxsize=256)
def _trial_profile(trial: str, relation: Neighbouring) -> tuple[Array, Array]:
    """Epsilons from 0 up to where delta_Q is negligible, and certified bounds on delta_Q there.

    Whatever the law of K: tunings with other numbers of the same trial share it.
    """
    history = flatten([(_event(trial), 1)])
    epsilons = np.linspace(0.0, _end_of_profile(trial, relation), _NODES)
    return epsilons, np.minimum(certified_deltas(history, epsilons, relation), 1.0)


def _end_of_profile(trial: str, relation: Neighbouring) -> float:
    """Return an epsilon beyond which delta_Q is negligible, roughly: by Renyi bounds, which are
    needed anyway, if there are any."""
    history = flatten([(_event(trial), 1)])
    try:
        divergences = _trial_divergences(trial, relation, tuple(rdp.ORDERS.tolist()))[1]
        top = float(compute_epsilon(rdp.ORDERS, divergences, _SMALLEST_DELTA)[0])
    except (UnsupportedEvent, UnsupportedRelation):
        top = math.inf
    for smallest in (_SMALLEST_DELTA, 1e-15, 1e-12, 1e-9, 1e-6):
        if top <= _LARGEST_EPSILON:
            break
        top = certify(history, smallest, relation).epsilon
    return min(max(top, 1e-12), _LARGEST_EPSILON)


def certified_deltas(history: History, epsilons: Array, relation: Neighbouring) -> Array:
    """`delta_curve` with the price of a machine's noise, as in `certify_delta`, for all at once.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> at, trial = np.array([1.0, 2.0]), [(GaussianDpEvent(1.0), 1)]
    >>> ideal, real = (
    ...     f(trial, at, Neighbouring.ADD_OR_REMOVE_ONE) for f in (delta_curve, certified_deltas)
    ... )
    >>> bool(np.all(real > ideal) and np.all(real < 1.001 * ideal))
    True
    """
    return _charged(lambda at: delta_curve(history, at, relation), epsilons)


def _charged(profile: Callable[[Array], Array], epsilons: Array) -> Array:
    asked: list[float] = []
    for epsilon in epsilons:
        lattice.charged_delta(lambda at: asked.append(at) or 0.0, float(epsilon))  # type: ignore[func-returns-value]
    ideal = profile(np.array(asked))
    return np.array(
        [
            lattice.charged_delta(lambda _, value=value: value, float(epsilon))  # type: ignore[misc]
            for value, epsilon in zip(ideal.tolist(), epsilons, strict=True)
        ]
    )


def certified_profile(
    history: History, delta: float, relation: Neighbouring
) -> tuple[float, Callable[[Array], Array]]:
    """`certify`'s epsilon, and `certified_deltas` from what was composed for it where it can be."""
    found: list[Callable[[Array], Array]] = []

    def ideal(at: float) -> float:
        epsilon, profile = pld.epsilon_and_profile(history, at, relation)
        found.append(profile)
        return epsilon

    if not all(entry_of(event).pld is not None for event, _ in flatten(history)):
        return (
            certify(history, delta, relation).epsilon,
            lambda at: np.minimum(certified_deltas(history, at, relation), 1.0),
        )
    epsilon = charged_epsilon(ideal, history, delta, relation)
    return epsilon, lambda at: np.minimum(_charged(found[-1], at), 1.0)


def _selection_rdp(event: SelectionDpEvent, relation: Neighbouring, orders: Orders) -> Orders:
    """Registered Renyi bound. Asked for at few orders, it still chooses among all of `ORDERS`."""
    trial, wanted = _text(event.event), tuple(orders.tolist())
    every, one = _trial_divergences(trial, relation, wanted)

    def delta_of(epsilon: float) -> float:  # the delta of the next smaller epsilon that is known
        epsilons, deltas = _trial_profile(trial, relation)
        return float(deltas[np.searchsorted(epsilons, epsilon, side="right") - 1])

    several = selected_divergences(event.trials, every, one, delta_of)
    return np.asarray(several[np.searchsorted(every, orders)], float)


@lru_cache(maxsize=256)  # asked for twice: alone, and as a part of the pair below
def _trial_divergences(
    trial: str, relation: Neighbouring, wanted: tuple[float, ...]
) -> tuple[Orders, Orders]:
    """All orders that are looked at, and the divergences of one trial there."""
    every = np.unique(np.concatenate([np.array(wanted), rdp.ORDERS]))
    return every, rdp.divergences([(_event(trial), 1)], relation, every)


# --------------------------------------------------------------------------- the dominating pair


@lru_cache(maxsize=64)
def _pair_of(text: str, relation: Neighbouring) -> DominatingPair:
    event = _event(text)
    assert isinstance(event, SelectionDpEvent), text
    law = event.trials
    epsilons, deltas = _trial_profile(_text(event.event), relation)
    points: list[tuple[Array, Array]] = [(np.zeros(1), np.ones(1))]
    top = float(epsilons[-1])
    if isinstance(law, TruncatedNegativeBinomial):
        shift = log_ratio(law, epsilons, deltas)
        points.append((epsilons + shift, law.mean * deltas))
        top += shift
    try:
        divergences = _selection_rdp(event, relation, rdp.ORDERS)
    except (UnsupportedEvent, UnsupportedRelation):
        divergences = None
    if divergences is not None:
        if isinstance(law, PoissonTrials):
            top = float(compute_epsilon(rdp.ORDERS, divergences, _SMALLEST_DELTA)[0])
        at = np.linspace(0.0, min(max(top, 1e-12), _LARGEST_EPSILON), _RENYI_NODES)
        points.append((at, renyi_deltas(rdp.ORDERS, divergences, at)))
    return dominating_pair(*(np.concatenate(column) for column in zip(*points, strict=True)))


def _pair_pld(
    event: SelectionProfileDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    return on_grid(_pair_of(_text(event.selection), relation), grid)


# ------------------------------------------------------------------------------------- as JSON


def _to_json(event: SelectionDpEvent) -> Json:
    law = event.trials
    if isinstance(law, PoissonTrials):
        numbers: Json = {"law": "poisson", "mean": law.mean}
    elif isinstance(law, TruncatedNegativeBinomial):
        numbers = {"law": "truncated_negative_binomial", "eta": law.eta, "gamma": law.gamma}
    else:
        raise ConfigurationError(
            "trials must be a TruncatedNegativeBinomial or PoissonTrials. Got "
            f"{law!r} instead. A fixed number of trials is a composition: SelfComposedDpEvent."
        )
    return {"inner": event_to_json(event.event), **numbers}


def _from_json(data: Json) -> SelectionDpEvent:
    inner = event_from_json(data["inner"])
    if data["law"] == "poisson":
        return SelectionDpEvent(inner, PoissonTrials(data["mean"]))
    if data["law"] == "truncated_negative_binomial":
        return SelectionDpEvent(inner, TruncatedNegativeBinomial(data["eta"], data["gamma"]))
    raise ConfigurationError(
        "law of a selection must be truncated_negative_binomial or poisson. Got "
        f"{data['law']!r} instead."
    )


def _profile_from_json(data: Json) -> SelectionProfileDpEvent:
    return SelectionProfileDpEvent(_from_json(data))


register(
    SelectionDpEvent,
    name="selection",
    to_json=_to_json,
    from_json=_from_json,
    rdp=_selection_rdp,
    relaxations=lambda event: (SelectionProfileDpEvent(event),),
    alone=epsilon_alone,
)
register(
    SelectionProfileDpEvent,
    name="selection_profile",
    to_json=lambda event: _to_json(event.selection),
    from_json=_profile_from_json,
    pld=_pair_pld,
)
