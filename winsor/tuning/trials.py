"""Run the trials of a tuning, and release the best one (or all of them) at its price.

    K ~ law(key);   for i < K: setting_i ~ space(key, i);   (model, score)_i = train(setting_i)
    release the trial with the largest (score, coin_i)

The whole tuning is written to the ledger before the first trial starts: one `SelectionDpEvent` that
contains the history of one trial. Each trial hands back its own ledger, which must hold no more
than that history; then it is forgotten. K is a function of the secret key, so a tuning that was
killed goes on where it was, and runs as many trials as it would have.

Guarantee
---------
That of `winsor.tuning.selection` for what `TuningResult` holds, if `train` keeps to its part:
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

from winsor.core.checks import as_relation, choice, probability
from winsor.core.contract import ConfigurationError, LedgerError, Neighbouring, UnsoundRelease
from winsor.core.ledger.ledger import Ledger
from winsor.core.randomness import KEY_BYTES, bound_key, fingerprint, key_for, stream, subkey
from winsor.tuning.outcome import PRUNED, Job, PrivateScore, TrialRow, TuningResult, checked
from winsor.tuning.price import Price, Total, Trial, law_of
from winsor.tuning.pruning import Pruning
from winsor.tuning.sealed import Seal
from winsor.tuning.space import Space
from winsor.tuning.trial_counts import TrialCounts, draw

Train = Callable[[dict[str, Any], Job], tuple[Any, Any, Any]]
"""(setting, job) -> (model, the trial's ledger, score)."""
Suggest = Callable[[Sequence[TrialRow], np.random.Generator], Mapping[str, Any]]
"""(earlier trials, generator) -> the next setting; for ``release="all"``."""


def tune(
    train: Train,
    space: Space | Mapping[str, Any] | Suggest,
    *,
    trial: Trial,
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
    begin: Callable[[Ledger], None] | None = None,
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
        The models must then be plain: numbers, text, arrays, tensors, lists, tuples and dicts.
    random_state
        None draws a fresh secret key. An int makes the tuning reproducible, hence K no secret.
    begin
        Called with the ledger before anything is paid: it may note files there, or refuse.
    keep
        Called with the result before the sealed trials are deleted: what it stores survives a kill
        at any moment. It may be called again after one.

    Examples
    --------
    >>> import numpy as np
    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> from winsor.tables import clipped_mean
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
    total = Total(epsilon, probability("delta", delta), as_relation(relation))
    if pruning is not None:
        pruning = replace(pruning, maximise=maximise)
    price = Price.of(trial, law_of(trials, release), total, score, pruning)
    job = Job(b"", 0, price.noise_multiplier, delta, total.relation, score, pruning)
    tuning = _Tuning(train, _settings(space, release), price, job, maximise)
    folder = None if directory is None else Path(directory)
    return tuning.execute(folder, random_state, begin, keep)


@dataclass(frozen=True)
class _Tuning:
    """A tuning: what all its trials have in common."""

    train: Train
    space: Space | Suggest
    price: Price
    job: Job
    maximise: bool

    def execute(
        self,
        folder: Path | None,
        random_state: int | bytes | None,
        begin: Callable[[Ledger], None] | None,
        keep: Callable[[TuningResult], None] | None,
    ) -> TuningResult:
        """Pay, run the trials that are not done yet, release; then forget the rest."""
        ledger = Ledger(self.header, None if folder is None else folder / "ledger.jsonl")
        seal = Seal(None if folder is None else folder / "sealed", self.price.releases_all)
        try:
            if begin is not None:
                begin(ledger)
            wanted = key_for(random_state, None, "tuning", self.space_in_words, self.price.law)
            key = seal.key(lambda: _unused(wanted, ledger))
            paid = ledger.steps(fingerprint(key)) > 0
            if folder is not None and (seal.fresh if paid else seal.done):
                raise LedgerError(
                    f"{folder / 'sealed'} must hold the trials that the ledger has paid for. Got "
                    "others instead. Restore it from a copy, or delete it and tune again."
                )
            if seal.fresh:
                seal.store()
            self.price.pay(ledger, fingerprint(key))
            self.run_all(seal, key)
            best, rows = seal.found()
            known = isinstance(random_state, int)
            result = TuningResult(best, self.price.guarantee(ledger, known), ledger, rows)
            if keep is not None:
                keep(result)
            seal.destroy()
            return result
        finally:
            ledger.close()

    @property
    def header(self) -> dict[str, Any]:
        return {
            "method": "tuning",
            "relation": self.job.relation.value,
            "space": self.space_in_words,
            "release": "all" if self.price.releases_all else "best",
            "trials": str(self.price.law),
        }

    @property
    def space_in_words(self) -> Any:
        """The space as the ledger's header names it: a tuning resumes only in the same space."""
        return self.space.describe() if isinstance(self.space, Space) else "adaptive"

    def run_all(self, seal: Seal, key: bytes) -> None:
        """Run the trials that are not done yet: as many as were drawn, whatever they score."""
        law = self.price.law
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
        model, score = checked(
            self.train(dict(setting), job),
            self.price.declared,
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


def _unused(key: bytes, ledger: Ledger) -> bytes:
    """A key that no finished tuning of this ledger had: the same noise must not cover other trials,
    and a tuning under a known key would look like a repeat that costs nothing."""
    while ledger.steps(fingerprint(key)):
        key = bound_key(key, "another tuning")
    return key
