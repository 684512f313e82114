"""Run the trials of a tuning, and release the best one (or all of them) at its price.

    K ~ law(key);   for i < K: setting_i ~ space(key, i);   (model, score)_i = train(setting_i)
    release the trial with the largest (score, coin_i)

The whole tuning is written to the ledger before the first trial starts: one `SelectionDpEvent` that
contains the history of one trial. Each trial hands back its own ledger, which must hold no more
than that history; then it is forgotten. K is a function of the secret key, so a tuning that was
killed goes on where it was, and runs as many trials as it would have.

Guarantee
---------
That of `winsor.accounting.selection` for what `TuningResult` holds, if `train` keeps to its part:
private rows are touched through doors that write the ledger it returns, the score is computed
inside (on public rows, or by `Job.measure` into that ledger), and nothing of a trial is kept or
shown elsewhere. The time a tuning takes is not covered: it tells K. With ``release="all"`` the
number of trials is fixed and every one is charged for; then anything may be shown, and settings
may depend on earlier scores.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from winsor.accounting import calibrate, certify, flatten
from winsor.accounting.events import History
from winsor.accounting.lattice import MOST_VALUES
from winsor.accounting.selection import SelectionDpEvent
from winsor.accounting.trial_counts import (
    PoissonTrials,
    TrialCounts,
    TruncatedNegativeBinomial,
    draw,
)
from winsor.checks import as_relation, choice, positive, probability, whole
from winsor.contract import (
    BudgetExceeded,
    ConfigurationError,
    Guarantee,
    Neighbouring,
    UnsoundRelease,
)
from winsor.ledger.guarantee import guarantee
from winsor.ledger.ledger import Ledger
from winsor.randomness import KEY_BYTES, bound_key, fingerprint, stream, subkey
from winsor.release.inputs import as_key
from winsor.tuning.outcome import PRUNED, Job, PrivateScore, TrialRow, TuningResult, checked
from winsor.tuning.pruning import Pruning
from winsor.tuning.seal import Seal
from winsor.tuning.space import Space

Train = Callable[[dict[str, Any], Job], tuple[Any, Any, Any]]
"""(setting, job) -> (model, the trial's ledger, score)."""
Suggest = Callable[[Sequence[TrialRow], np.random.Generator], Mapping[str, Any]]
"""(earlier trials, generator) -> the next setting; for ``release="all"``."""


def tune(
    train: Train,
    space: Space | Mapping[str, Any] | Suggest,
    *,
    trial: History | Callable[[float], History],
    delta: float,
    epsilon: float | None = None,
    trials: float | TrialCounts = 10,
    release: str = "best",
    score: PrivateScore | None = None,
    pruning: Pruning | None = None,
    maximise: bool = True,
    relation: str | Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    directory: str | os.PathLike[str] | None = None,
    random_state: int | bytes | None = None,
    keep: Callable[[TuningResult], None] | None = None,
) -> TuningResult:
    """Find a good setting within one privacy budget.

    Parameters
    ----------
    train
        ``train(setting, job) -> (model, ledger, score)``: one private training at ``setting`` with
        ``job.noise_multiplier`` and randomness from ``job.key``.
    space
        Public laws of the settings: see `Space.of`. With ``release="all"`` also a function
        ``suggest(earlier, generator)`` from the trials so far to the next setting: every trial is
        paid for, so a sampler may learn from their scores.
    trial
        What one trial spends, whatever its setting: a history, or a function from the noise
        multiplier to it, which is then calibrated so that the tuning spends ``epsilon``.
    epsilon, delta
        The budget of the whole tuning.
    trials
        Mean number of trials (their number follows the logarithmic law), or a law of its own. With
        ``release="all"`` the number itself.
    release
        ``"best"``: one model, its setting and its score leave. ``"all"``: everything does, and
        composition is charged.
    score
        None: ``train`` returns a number computed on public rows, which is free. A `PrivateScore`:
        it returns ``job.measure(ledger, ...)``, whose price is added to every trial.
    pruning
        Bars, fixed beforehand, below which a trial gives up: see `Pruning`. Free on public rows;
        on private rows the price of its looks is added to every trial.
    maximise
        Whether larger scores are better.
    directory
        Where to keep the ledger and, until the end, the sealed trials; a killed tuning resumes.
    random_state
        None draws a fresh secret key. An int makes the tuning reproducible, hence K no secret.
    keep
        Called with the result before the sealed trials are deleted: what it stores survives a kill
        at any moment. It may be called again after one.

    Examples
    --------
    >>> import numpy as np
    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> from winsor.means import clipped_mean
    >>> rows = np.random.default_rng(0).standard_t(3, size=500)
    >>> def train(setting, job):
    ...     found = clipped_mean(
    ...         rows, radius=setting["radius"], rho=0.5 / job.noise_multiplier**2,
    ...         delta=job.delta, random_state=job.key,
    ...     )
    ...     return found.estimate, found.ledger, -setting["radius"]  # a public score, for example
    >>> result = tune(
    ...     train, {"radius": [1.0, 3.0, 10.0]}, trial=lambda nm: [(GaussianDpEvent(nm), 1)],
    ...     epsilon=2.0, delta=1e-5, trials=5,
    ... )
    >>> result.guarantee.epsilon <= 2.0
    True
    """
    choice("release", release, ("best", "all"))
    probability("delta", delta)
    related = as_relation(relation)
    law = _law(trials, release)
    extra = _measured(score, pruning, related)
    multiplier = _calibrated(trial, extra, law, epsilon, delta, related)
    declared = _declared(trial, extra, multiplier)
    if pruning is not None:
        pruning = replace(pruning, maximise=maximise)
    job = Job(b"", 0, multiplier, delta, related, score, pruning)
    plan = _Plan(train, _settings(space, release), declared, job, maximise)
    folder = None if directory is None else Path(directory)
    ledger = Ledger(
        {
            "method": "tuning",
            "space": plan.space_in_words,
            "release": release,
            "trials": str(law),
        },
        None if folder is None else folder / "ledger.jsonl",
    )
    seal = Seal(None if folder is None else folder / "sealed", everything=release == "all")
    try:
        wanted = as_key(random_state, "tuning", plan.space_in_words, law)
        key = seal.key(lambda: _unused(wanted, ledger))
        _pay(ledger, fingerprint(key), whole_event(declared, law), epsilon, delta, related)
        plan.run_all(seal, key, law)
        best, rows = seal.found()
        known = isinstance(random_state, int)
        result = TuningResult(best, _guarantee(ledger, law, job, declared, known), ledger, rows)
        if keep is not None:
            keep(result)
        seal.destroy()
        return result
    finally:
        ledger.close()


def whole_event(trial: History, law: TrialCounts | int) -> DpEvent:
    """What a tuning spends: a selection for a random number of trials, else their composition."""
    if isinstance(law, int):
        parts = [SelfComposedDpEvent(event, count * law) for event, count in flatten(trial)]
        return ComposedDpEvent(parts)
    return SelectionDpEvent.of_history(trial, law)


@dataclass(frozen=True)
class _Plan:
    """What every trial has in common."""

    train: Train
    space: Space | Suggest
    declared: History
    job: Job
    maximise: bool

    @property
    def space_in_words(self) -> Any:
        """For the ledger's header: a tuning goes on only in the same space."""
        return self.space.describe() if isinstance(self.space, Space) else "adaptive"

    def run_all(self, seal: Seal, key: bytes, law: TrialCounts | int) -> None:
        """Run the trials that are not done yet: as many as were drawn, whatever they score."""
        count = law if isinstance(law, int) else draw(law, key)
        while seal.done < count:
            self.run_next(seal, key)
        if seal.done != count:
            raise UnsoundRelease(
                "a tuning must run exactly the trials it drew. It did not: its result would depend "
                "on the scores in a way that is not paid for. Delete its folder and tune again."
            )

    def run_next(self, seal: Seal, key: bytes) -> None:
        """Run the next trial; everything about it is a function of the key and of its place."""
        place = seal.done
        generator = stream(key, "setting", place)
        if isinstance(self.space, Space):
            setting = self.space.draw(generator)
        else:
            setting = dict(self.space(seal.rows, generator))
        own = hashlib.blake2b(
            place.to_bytes(8, "little"), key=key, person=b"winsor-trial", digest_size=KEY_BYTES
        ).digest()
        job = replace(self.job, key=own, seed=subkey(own, "seed") % 2**32)
        returned = self.train(dict(setting), job)
        model, score = checked(
            returned,
            self.declared,
            privately=job.score is not None,
            may_be_pruned=job.pruning is not None,
        )
        value = score if self.maximise or score == PRUNED else -score
        rank = -math.inf if math.isnan(value) else value
        seal.add((rank, subkey(own, "tie")), TrialRow(setting, score, model))


def _settings(space: Space | Mapping[str, Any] | Suggest, release: str) -> Space | Suggest:
    if not callable(space):
        return Space.of(space)
    if release != "all":
        raise ConfigurationError(
            'space must be public laws with release="best". Got a function of earlier trials '
            'instead: what it learns from scores is paid for with release="all" only.'
        )
    return space


def _measured(
    score: PrivateScore | None, pruning: Pruning | None, relation: Neighbouring
) -> History:
    """What a trial measures on private rows beside its training."""
    found = [] if score is None else [(score.event(relation), 1)]
    return found if pruning is None else [*found, *pruning.history(relation)]


def _declared(
    trial: History | Callable[[float], History], extra: History, multiplier: float | None
) -> History:
    """What one trial spends, its score and its pruning included."""
    if callable(trial):
        assert multiplier is not None, "calibrated before"
        trial = trial(multiplier)
    return [*trial, *extra]


def _law(trials: float | TrialCounts, release: str) -> TrialCounts | int:
    if release == "all":
        if isinstance(trials, TruncatedNegativeBinomial | PoissonTrials):
            raise ConfigurationError(
                'trials must be a whole number with release="all": every trial is charged for. Got '
                f"{trials!r} instead."
            )
        return whole("trials", trials)
    if isinstance(trials, TruncatedNegativeBinomial | PoissonTrials):
        return trials
    return TruncatedNegativeBinomial.of_mean(positive("trials", trials))


def _calibrated(
    trial: History | Callable[[float], History],
    extra: History,
    law: TrialCounts | int,
    epsilon: float | None,
    delta: float,
    relation: Neighbouring,
) -> float | None:
    """The noise multiplier of one trial; None if the history was given."""
    if not callable(trial):
        return None
    if epsilon is None:
        raise ConfigurationError(
            "epsilon must be given when trial is a function of the noise multiplier. Got None "
            "instead. Give the budget of the whole tuning, or the history of a trial."
        )
    return calibrate.noise_multiplier(
        lambda nm: whole_event(_declared(trial, extra, nm), law),
        1,
        epsilon,
        delta,
        relation,
    )


def _unused(key: bytes, ledger: Ledger) -> bytes:
    """A key that no finished tuning of this ledger had: the same noise must not cover other trials,
    and a tuning under a known key would look like a repeat that costs nothing."""
    while ledger.steps(fingerprint(key)):
        key = bound_key(key, "another tuning")
    return key


def _pay(
    ledger: Ledger,
    run: str,
    event: DpEvent,
    epsilon: float | None,
    delta: float,
    relation: Neighbouring,
) -> None:
    """Write the tuning to the ledger, unless it would exceed the budget or is there already."""
    if epsilon is not None and ledger.steps(run) == 0:
        spent = certify([*ledger.history(), (event, 1)], delta, relation).epsilon
        if spent > positive("epsilon", epsilon) * (1 + 1e-9):
            raise BudgetExceeded(
                f"the tuning must stay within epsilon = {epsilon!r}. Got {spent:.4g} instead, with "
                "all that its ledger holds already. Add noise, run fewer trials, or raise epsilon."
            )
    ledger.record(run, 0, event)


def _guarantee(
    ledger: Ledger, law: TrialCounts | int, job: Job, declared: History, known: bool
) -> Guarantee:
    if isinstance(law, int):
        sampler, number = "composition of trials", f"{law} trials, all released"
    else:
        sampler, number = "best of a random number of trials", f"{law}, the number kept secret"
    conditions = [number, "settings drawn from a public law", "the time it took is unseen"]
    if isinstance(law, int):
        conditions = [number]
    conditions.append(f"at most {MOST_VALUES:.0e} noise values in all trials together")
    if job.score is None:
        conditions.append("scores computed on public rows")
    else:
        alone, one = (
            certify(history, job.delta, job.relation).epsilon
            for history in ([(job.score.event(job.relation), 1)], declared)
        )
        conditions.append(
            f"scores measured in each trial: epsilon {alone:.3g} alone, a trial {one:.3g}"
        )
    if job.pruning is not None:
        conditions.append(job.pruning.condition)
    if known:
        conditions.append("noise and number of trials from a known seed: whoever knows it sees all")
    return guarantee([ledger], job.delta, job.relation, [sampler], conditions)
