"""What a trial is told, what it must hand back, and what a tuning returns."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent
from numpy.typing import NDArray

from winsor.core.accounting import event_to_json, flatten
from winsor.core.contract import (
    ConfigurationError,
    Guarantee,
    Neighbouring,
    ProtocolError,
    UnsoundRelease,
)
from winsor.core.events.alternatives import AlternativesDpEvent
from winsor.core.events.registry import History
from winsor.core.ledger.guarantee import together
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import KEY_BYTES
from winsor.metrics import Estimate, Measurement, measure
from winsor.tuning.pruning import PrivateScore, Pruning

PRUNED = -math.inf
"""The score of a trial that gave up: it never wins against one that did not."""

FEWEST = 4
"""Trials below which nothing can be said about importance."""
_TREES = 200


@dataclass(frozen=True)
class Job:
    """What a trial needs besides its setting. It does not say which trial this is, or of how many.

    ``key`` is the trial's own secret: give it as ``random_state`` or draw from it. ``seed`` is a
    whole number made from it, for libraries that want one.
    """

    key: bytes = field(repr=False)
    seed: int = field(repr=False)
    noise_multiplier: float | None
    delta: float
    relation: Neighbouring
    score: PrivateScore | None = None
    pruning: Pruning | None = None

    def measure(self, ledger: Ledger, **columns: Any) -> Measurement:
        """Measure the private score of this trial, and pay for it in the trial's ledger."""
        if self.score is None:
            raise ConfigurationError(
                "score must be given to tune for a score on private rows. Got None instead. Say "
                "tune(..., score=PrivateScore(metric, noise_multiplier))."
            )
        return self._measured(self.score, b"score", ledger, columns)

    def prune(
        self, step: int, value: float | None = None, *, ledger: Ledger | None = None, **columns: Any
    ) -> bool:
        """Return whether the trial should give up at ``step``, with `PRUNED` as its score.

        With public pruning ``value`` is the score on public rows; with private pruning give the
        trial's ledger and the columns of the private rows, as to `measure`.
        """
        if self.pruning is None or step not in self.pruning.bars:
            return False
        looked = self.pruning.score
        if looked is None:
            if value is None or ledger is not None:
                raise ConfigurationError(
                    "value must be the score on public rows. Got "
                    f"{'a ledger' if ledger is not None else 'None'} instead. For looks at private "
                    "rows say Pruning(bars, score=PrivateScore(...))."
                )
            return self.pruning.gives_up(step, float(value))
        if ledger is None or value is not None:
            raise UnsoundRelease(
                "a look at private rows must be paid for: job.prune(step, ledger=ledger, "
                "targets=..., predictions=...). Got a plain value instead."
            )
        found = self._measured(looked, f"look {step}".encode(), ledger, columns)
        (estimate,) = found.estimates.values()
        return self.pruning.gives_up(step, float(estimate.value))

    def _measured(
        self, score: PrivateScore, purpose: bytes, ledger: Ledger, columns: dict[str, Any]
    ) -> Measurement:
        own = hashlib.blake2b(purpose, key=self.key, digest_size=KEY_BYTES).digest()
        return measure(
            score.metric,
            **columns,
            noise_multiplier=score.noise_multiplier,
            delta=self.delta,
            relation=self.relation,
            random_state=own,
            ledger=ledger,
            allow_large_delta=True,  # the delta that counts is that of the tuning
        )


@dataclass(frozen=True)
class TrialRow:
    """One trial of a tuning that released all of them."""

    setting: dict[str, Any]
    score: float
    model: Any = field(repr=False)


class TuningResult:
    """The best trial, what the whole tuning cost, and with ``release="all"`` every trial.

    Like a study elsewhere: `best_setting`, `best_score`, `best_model`, `trials`. After
    ``release="best"`` nothing else exists any more: not the other models, not their scores, not
    how many there were.
    """

    def __init__(
        self,
        best: TrialRow | None,
        guarantee: Guarantee,
        ledger: Ledger,
        rows: Sequence[TrialRow] | None,
    ) -> None:
        self._best = best
        self.guarantee = guarantee
        self.ledger = ledger
        self._rows = None if rows is None else tuple(rows)

    @property
    def best_setting(self) -> dict[str, Any]:
        """The setting of the best trial."""
        return dict(self._won.setting)

    @property
    def best_score(self) -> float:
        """The score of the best trial."""
        return self._won.score

    @property
    def best_model(self) -> Any:
        """What the best trial returned as its model."""
        return self._won.model

    @property
    def empty(self) -> bool:
        """Return whether no trial was run, which only a Poisson number of trials can give."""
        return self._best is None

    @property
    def _won(self) -> TrialRow:
        if self._best is None:
            raise ProtocolError(
                "a tuning must have run a trial to have a best one. This one drew none, as a "
                "Poisson number of trials may. Use the logarithmic law, or tune again and pay."
            )
        return self._best

    @property
    def trials(self) -> tuple[TrialRow, ...]:
        """Every trial in order, if all of them were paid for."""
        if self._rows is None:
            raise ProtocolError(
                "trials must have been released to be seen. This tuning released the best only: "
                'the others are not covered by its guarantee. Tune with release="all", which '
                "charges for each."
            )
        return self._rows

    def table(self) -> list[dict[str, Any]]:
        """Return settings and score of every released trial, the best first."""
        rows = [{**row.setting, "score": row.score} for row in self.trials]
        best = self.trials.index(self._won)
        return [rows[best], *(row for place, row in enumerate(rows) if place != best)]

    def importance(self) -> dict[str, float]:
        """Return how much each setting mattered for the released scores: see `importance`."""
        return importance([(row.setting, row.score) for row in self.trials])

    def __repr__(self) -> str:
        what = (
            "empty" if self._best is None else f"{self.best_setting}, score {self.best_score:.4g}"
        )
        return f"TuningResult({what}; {self.guarantee})"


# ----------------------------------------------------------------------------- what is handed back


def checked(
    returned: Any, declared: History, *, privately: bool, may_be_pruned: bool = False
) -> tuple[Any, float]:
    """Return (model, score) of a trial that spent at most what was declared and scored inside.

    Raises `UnsoundRelease` for any other trial.
    """
    if not (isinstance(returned, tuple) and len(returned) == 3):
        raise UnsoundRelease(
            f"train must return (model, ledger, score). Got {type(returned).__name__} instead."
        )
    model, given, score = returned
    ledgers = [given] if isinstance(given, Ledger) else given
    if not isinstance(ledgers, Sequence) or not all(isinstance(one, Ledger) for one in ledgers):
        raise UnsoundRelease(
            "the second value that train returns must be the trial's Ledger, or a list of them. "
            f"Got {type(given).__name__} instead: what a trial spent is read from nothing else."
        )
    _check_spent(together(ledgers), declared)
    if may_be_pruned and isinstance(score, float) and score == PRUNED:
        return model, score
    return model, _number(score, ledgers, privately)


def _check_spent(spent: History, declared: History) -> None:
    """Refuse events that were not declared, or not so often."""
    happened = flatten(spent)
    plans = possible(declared)
    if not happened and all(plans):
        raise UnsoundRelease(
            "a trial must record what it releases in its ledger. Got an empty ledger instead, "
            "though its plan has events. Return the ledger that the training wrote."
        )
    excesses = [_excess(happened, flatten(plan)) for plan in plans]
    if all(excess is not None for excess in excesses):
        event, count, allowed = next(excess for excess in excesses if excess is not None)
        raise UnsoundRelease(
            f"a trial must spend at most what was declared. Got {count} of {event!r} instead, and "
            f"{allowed} were declared. Declare in trial= what every setting spends (settings that "
            "spend differently: AlternativesDpEvent); a score on private rows goes to score=."
        )


def possible(declared: History) -> list[History]:
    """Return every history that a declared one stands for: one per choice of alternatives."""
    options: list[list[History]] = []
    for event, count in declared:
        if isinstance(event, AlternativesDpEvent) and count == 1:
            options.append([[(one, 1)] for one in event.events])
        else:
            options.append([[(event, count)]])
    return [[*itertools.chain.from_iterable(chosen)] for chosen in itertools.product(*options)]


def _excess(happened: History, plan: History) -> tuple[DpEvent, int, int] | None:
    """The first event that is not in the plan so often, with both numbers."""
    allowed = {_name(event): count for event, count in plan}
    for event, count in happened:
        if count > allowed.get(_name(event), 0):
            return event, count, allowed.get(_name(event), 0)
    return None


def _name(event: Any) -> str:
    return json.dumps(event_to_json(event), sort_keys=True)


def _number(score: Any, ledgers: Sequence[Ledger], privately: bool) -> float:
    if privately:
        inside = isinstance(score, Measurement) and any(score.ledger is one for one in ledgers)
        only = list(score.estimates.values()) if isinstance(score, Measurement) else []
        if not inside or len(only) != 1 or not isinstance(only[0], Estimate):
            raise UnsoundRelease(
                "a score on private rows must be job.measure(ledger, ...) with the trial's own "
                f"ledger. Got {type(score).__name__} instead: it would be outside the account. "
                "Measure it so, or score on public rows and leave score= out."
            )
        score = only[0].value
    try:
        return float(score)
    except (TypeError, ValueError) as error:
        raise UnsoundRelease(
            f"a score must be one number. Got {type(score).__name__} instead."
        ) from error


# ------------------------------------------------------------------------- which settings mattered


def importance(trials: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return how much each setting mattered: shares that add up to 1, the largest first.

    A forest of trees learns the score from the settings; a setting's importance is the share of the
    scores' spread that splits on it take away. Trials that gave up count as the worst. With few
    trials this is a hint, no measurement. It is post-processing of the given scores, which must
    have been released or be of public rows.

    >>> trials = [({"lr": 2.0**k, "clip": c}, -abs(k - 3)) for k in range(8) for c in (0.1, 1.0)]
    >>> found = importance(trials)
    >>> list(found), found["lr"] > 0.9
    (['lr', 'clip'], True)
    """
    if len(trials) < FEWEST:
        raise ConfigurationError(
            f"importance must be asked of at least {FEWEST} trials. Got {len(trials)} instead."
        )
    from sklearn.ensemble import ExtraTreesRegressor

    names = list(trials[0][0])
    columns = np.column_stack(
        [_numbers([setting[name] for setting, _ in trials]) for name in names]
    )
    scores = np.array([score for _, score in trials], dtype=np.float64)
    finite = scores[np.isfinite(scores)]
    worst = float(finite.min()) if finite.size else 0.0
    scores = np.where(np.isfinite(scores), scores, worst)
    forest = ExtraTreesRegressor(_TREES, max_features=1.0, random_state=0).fit(columns, scores)
    shares = dict(zip(names, forest.feature_importances_.tolist(), strict=True))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _numbers(values: Sequence[Any]) -> NDArray[np.float64]:
    """A column that trees can split: numbers as they are, others by their place among options."""
    if all(isinstance(v, int | float) and math.isfinite(v) for v in values):
        return np.array(values, dtype=np.float64)
    options = {text: place for place, text in enumerate(sorted({repr(v) for v in values}))}
    return np.array([options[repr(v)] for v in values], dtype=np.float64)
