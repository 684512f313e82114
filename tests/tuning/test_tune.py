"""Tuning: what it releases, what it costs, that it resumes, and that mutants are caught."""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import re
import stat
import weakref

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from scipy import stats
from small_tunings import ADD, DELTA, LAW, ROWS, Model, counting, key_with, plan, release

from winsor.core.accounting import account, flatten
from winsor.core.contract import (
    BudgetExceeded,
    ConfigurationError,
    LedgerError,
    Neighbouring,
    ProtocolError,
    Sensitivity,
    UnsoundRelease,
)
from winsor.core.events.alternatives import AlternativesDpEvent
from winsor.core.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.metrics import Accuracy, measure
from winsor.tuning import LogUniform, PrivateScore, TuningResult, Uniform, tune
from winsor.tuning.selection import SelectionDpEvent, log_ratio
from winsor.tuning.trial_counts import PoissonTrials, TruncatedNegativeBinomial, draw
from winsor.tuning.trials import Seal

REPLACE = Neighbouring.REPLACE_ONE
SPACE = {"lr": LogUniform(0.1, 10.0), "clip": [0.5, 1.0]}
TUNE = importlib.import_module("winsor.tuning.trials")


# ------------------------------------------------------------------------------- release="best"


def test_the_best_trial_leaves_at_the_price_of_a_selection():
    seen = []
    key = new_key(5)
    result = tune(
        counting(ROWS, seen), SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=key
    )
    assert len(seen) == draw(LAW, new_key(5))
    best = max(seen, key=lambda pair: pair[1])
    assert (result.best_setting, result.best_score) == best
    assert result.best_model.value == best[1]
    assert 2.95 <= result.guarantee.epsilon <= 3.0 and result.guarantee.delta == DELTA
    ((event, count),) = result.ledger.history()
    assert isinstance(event, SelectionDpEvent) and count == 1
    assert event.trials == LAW
    assert "scores computed on public rows" in result.guarantee.conditions


def test_smaller_scores_win_if_asked_and_nan_never_does():
    values = iter([3.0, math.nan, 1.0, math.inf, 2.0, *([5.0] * 500)])

    def train(setting, job):
        ledger = Ledger({"n": 1})
        release(ROWS, job, ledger)
        return None, ledger, next(values)

    key = key_with(LAW, 5)
    result = tune(
        train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, maximise=False, random_state=key
    )
    assert result.best_score == 1.0


def test_nothing_of_the_other_trials_survives():
    alive = []

    def train(setting, job):
        ledger = Ledger({"n": len(ROWS)})
        model = Model(release(ROWS, job, ledger))
        alive.append(weakref.ref(model))
        return model, ledger, model.value

    key = key_with(LAW, 13)
    result = tune(train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=key)
    gc.collect()
    assert len(alive) == 13
    assert [ref() for ref in alive if ref() is not None] == [result.best_model]
    with pytest.raises(ProtocolError, match="released the best only"):
        _ = result.trials
    assert not re.search(r"\b13\b", repr(result))
    assert 13 not in reachable(result) and result.guarantee.steps == 1


def reachable(thing, depth=12):
    """Every number that can be reached from an object through attributes and containers."""
    found, seen, stack = set(), set(), [(thing, 0)]
    while stack:
        item, level = stack.pop()
        if id(item) in seen or level > depth:
            continue
        seen.add(id(item))
        if isinstance(item, int | float) and not isinstance(item, bool):
            found.add(item)
        elif isinstance(item, dict):
            stack += [(part, level + 1) for pair in item.items() for part in pair]
        elif isinstance(item, list | tuple | set | frozenset):
            stack += [(part, level + 1) for part in item]
        elif not isinstance(item, str | bytes | type):
            names = {*getattr(item, "__dict__", {}), *getattr(type(item), "__slots__", ())}
            stack += [(getattr(item, n), level + 1) for n in names if hasattr(item, n)]
    return found


def test_a_mutant_that_reveals_the_number_of_trials_is_caught(monkeypatch):
    class Talkative(TuningResult):
        def __init__(self, best, guarantee, ledger, rows):
            super().__init__(best, guarantee, ledger, rows)
            self.count = draw(LAW, key)

    key = key_with(LAW, 13)
    monkeypatch.setattr(TUNE, "TuningResult", Talkative)
    result = tune(counting(ROWS), SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=key)
    assert 13 in reachable(result)  # what the test above would have seen


def test_a_poisson_number_of_trials_may_be_none():
    law = PoissonTrials(1.0)
    for wanted in (0, 2):
        key = key_with(law, wanted)
        result = tune(
            counting(ROWS), SPACE, trial=plan, epsilon=5.0, delta=DELTA, trials=law,
            random_state=key,
        )  # fmt: skip
        assert result.empty is (wanted == 0)
        if result.empty:
            with pytest.raises(ProtocolError, match="drew none"):
                _ = result.best_score
            assert "empty" in repr(result)


def test_trials_have_their_own_keys_and_settings():
    seen = []

    def train(setting, job):
        seen.append((setting["lr"], job.key, job.seed))
        ledger = Ledger({"n": 1})
        return None, ledger, release(ROWS, job, ledger)

    tune(train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=key_with(LAW, 20))
    assert all(len(set(column)) == 20 for column in zip(*seen, strict=True))


# -------------------------------------------------------------------------------- release="all"


def test_all_trials_leave_at_the_price_of_composition():
    result = tune(
        counting(ROWS), SPACE, trial=plan, epsilon=3.0, delta=DELTA, trials=6, release="all",
        random_state=1,
    )  # fmt: skip
    assert len(result.trials) == 6
    assert result.best_score == max(row.score for row in result.trials)
    ((event, count),) = flatten(result.ledger.history())
    assert isinstance(event, GaussianDpEvent) and count == 6
    assert 2.95 <= result.guarantee.epsilon <= 3.0
    best_only = tune(
        counting(ROWS, noise=event.noise_multiplier),
        SPACE,
        trial=[(event, 1)],
        delta=DELTA,
        trials=6,
    )
    assert best_only.guarantee.epsilon < result.guarantee.epsilon


# ------------------------------------------------------------------------------ private scores


def scoring(rows, cheat=None):
    def train(setting, job):
        ledger = Ledger({"n": len(rows)})
        release(rows, job, ledger)
        guesses = np.ones(len(rows))
        if cheat == "a number":
            return None, ledger, float(np.mean(guesses == rows))
        if cheat == "another ledger":
            return None, ledger, job.measure(Ledger({}), targets=rows, predictions=guesses)
        if cheat == "less noise":
            found = measure(
                Accuracy(), targets=rows, predictions=guesses, noise_multiplier=1.0, delta=1e-3,
                ledger=ledger,
            )  # fmt: skip
            return None, ledger, found
        return None, ledger, job.measure(ledger, targets=rows, predictions=guesses)

    return train


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_private_score_is_part_of_the_trial(relation):
    score = PrivateScore(Accuracy(), 20.0)
    train = scoring_under_replace if relation is REPLACE else scoring(ROWS)
    result = tune(
        train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, score=score, relation=relation,
        random_state=2,
    )  # fmt: skip
    assert 0.2 < result.best_score <= 1.0
    ((event, _),) = result.ledger.history()
    events = [one for one, _ in event.trial]
    assert score.event(relation) in events and len(events) == 2
    (stated,) = [c for c in result.guarantee.conditions if "measured in each trial" in c]
    alone = account([(score.event(relation), 1)], DELTA, relation).epsilon
    assert f"epsilon {alone:.3g} alone" in stated
    (first, _), *_ = event.trial
    free = tune(
        counting(ROWS, noise=first.noise_multiplier), SPACE, trial=[(first, 1)], delta=DELTA
    )
    assert free.guarantee.epsilon < result.guarantee.epsilon


def scoring_under_replace(setting, job):
    """The same training with its events under replace-one."""
    ledger = Ledger({"n": len(ROWS)})
    door = PrepaidDoor(ledger, REPLACE, job.key)
    sensitivity = Sensitivity(1.0, 1.0, "a count of rows of which one becomes another")
    door.pay(Gaussian(job.noise_multiplier), FullBatch(len(ROWS)), sensitivity, 1, 1).release(
        np.array([float(ROWS.sum())])
    )
    return None, ledger, job.measure(ledger, targets=ROWS, predictions=np.ones(len(ROWS)))


@pytest.mark.parametrize("cheat", ["a number", "another ledger", "less noise"])
def test_a_mutant_that_scores_outside_the_account_is_caught(cheat):
    with pytest.raises(UnsoundRelease):
        tune(
            scoring(ROWS, cheat), SPACE, trial=plan, epsilon=3.0, delta=DELTA,
            score=PrivateScore(Accuracy(), 20.0), random_state=2,
        )  # fmt: skip


def test_a_job_without_a_score_does_not_measure():
    with pytest.raises(ConfigurationError, match="score must be given"):
        tune(scoring(ROWS), SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=2)


# ---------------------------------------------------------------------- trials that spend otherwise


@pytest.mark.parametrize(
    ("spend", "words"),
    [
        (lambda rows, job, ledger: release(rows, job, ledger, noise=0.5), "at most what was"),
        (
            lambda rows, job, ledger: [release(rows, job, ledger) for _ in range(2)],
            "at most what was",
        ),
        (lambda rows, job, ledger: None, "empty ledger"),
    ],
)
def test_a_trial_that_spends_otherwise_than_declared_is_refused(spend, words):
    def train(setting, job):
        ledger = Ledger({"n": 100})
        spend(ROWS, job, ledger)
        return None, ledger, 0.0

    with pytest.raises(UnsoundRelease, match=words):
        tune(train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=3)


def test_settings_that_spend_differently_are_declared_as_alternatives():
    """Trials of one or of three steps, the longer ones with more noise."""

    def either(nm):
        short, long = GaussianDpEvent(nm), SelfComposedDpEvent(GaussianDpEvent(2 * nm), 3)
        return [(AlternativesDpEvent((short, long)), 1)]

    def train(setting, job):
        ledger = Ledger({"n": 100})
        noise = job.noise_multiplier * (1 if setting["steps"] == 1 else 2)
        door = PrepaidDoor(ledger, ADD, job.key)
        sensitivity = Sensitivity.per_sample(1.0, "a count")
        receipt = door.pay(Gaussian(noise), FullBatch(100), sensitivity, setting["steps"], 1)
        value = float(receipt.release(np.array([50.0]))[0])
        return None, ledger, value

    options = {"trial": either, "epsilon": 3.0, "delta": DELTA, "random_state": key_with(LAW, 9)}
    result = tune(train, {"steps": [1, 3]}, **options)
    assert 2.95 <= result.guarantee.epsilon <= 3.0
    with pytest.raises(UnsoundRelease, match="at most what was declared"):
        tune(train, {"steps": [4]}, **options)


def test_one_ledger_for_two_trials_is_refused():
    ledger = Ledger({"n": 100})

    def train(setting, job):
        return None, ledger, release(ROWS, job, ledger)

    with pytest.raises(UnsoundRelease, match="at most what was declared"):
        tune(train, SPACE, trial=plan, epsilon=3.0, delta=DELTA, random_state=key_with(LAW, 5))


@pytest.mark.parametrize(
    "returned",
    [None, (1, 2), (None, None, 1.0), (None, "ledger", 1.0), (None, [1], 1.0)],
)
def test_a_trial_must_hand_back_its_ledger(returned):
    with pytest.raises(UnsoundRelease):
        tune(lambda setting, job: returned, SPACE, trial=plan, epsilon=3.0, delta=DELTA)


def test_a_score_must_be_a_number():
    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        return None, ledger, "good"

    with pytest.raises(UnsoundRelease, match="one number"):
        tune(train, SPACE, trial=plan, epsilon=3.0, delta=DELTA)


# ------------------------------------------------------------------------------- killed and resumed


def stored(*arguments, **named):
    """`counting` with models that can be kept in a folder."""
    train = counting(*arguments, **named)

    def plain(setting, job):
        model, ledger, score = train(setting, job)
        return {"w": np.array([model.value])}, ledger, score

    return plain


class Killed(Exception):
    pass


def killing(train, after):
    """``train``, dead after some trials."""
    left = [after]

    def mortal(setting, job):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return train(setting, job)

    return mortal


@pytest.mark.parametrize("release_what", ["best", "all"])
def test_a_killed_tuning_resumes(tmp_path, release_what):
    key = key_with(LAW, 9)
    options = {"trial": plan, "epsilon": 3.0, "delta": DELTA, "random_state": key}
    options |= {"trials": 9 if release_what == "all" else 10, "release": release_what}
    whole = tune(stored(ROWS), SPACE, **options)
    folder = tmp_path / "tuning"
    for after in (0, 2, 4):
        with pytest.raises(Killed):
            tune(killing(stored(ROWS), after), SPACE, directory=folder, **options)
    sealed = folder / "sealed"
    for name in ("key", "trials"):
        assert stat.S_IMODE((sealed / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(sealed.stat().st_mode) == 0o700
    seen = []
    result = tune(stored(ROWS, seen), SPACE, directory=folder, **options)
    assert len(seen) == 9 - 6
    assert (result.best_setting, result.best_score) == (whole.best_setting, whole.best_score)
    assert result.guarantee == whole.guarantee
    assert sorted(path.name for path in folder.iterdir() if "lock" not in path.name) == [
        "ledger.jsonl"
    ]
    assert len(Ledger.read(folder / "ledger.jsonl")) == 1
    if release_what == "all":
        assert [row.score for row in result.trials] == [row.score for row in whole.trials]


def test_a_fresh_key_survives_a_kill(tmp_path):
    options = {"trial": plan, "epsilon": 3.0, "delta": DELTA, "directory": tmp_path}
    with pytest.raises(Killed):
        tune(killing(stored(ROWS), 0), SPACE, **options)
    key = (tmp_path / "sealed" / "key").read_bytes()
    tune(stored(ROWS), SPACE, **options)
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert len(ledger) == 1 and len(key) == 32
    assert not (tmp_path / "sealed").exists()


def test_a_second_tuning_of_the_same_rows_is_added(tmp_path):
    options = {"trial": plan(4.0), "delta": DELTA, "directory": tmp_path}
    first = tune(stored(ROWS, noise=4.0), SPACE, **options)
    second = tune(stored(ROWS, noise=4.0), SPACE, **options)
    assert first.guarantee.epsilon < second.guarantee.epsilon < 2 * first.guarantee.epsilon
    with pytest.raises(BudgetExceeded, match="all that its ledger holds"):
        tune(stored(ROWS, noise=4.0), SPACE, epsilon=second.guarantee.epsilon, **options)
    assert len(Ledger.read(tmp_path / "ledger.jsonl")) == 2


def test_the_same_seed_again_is_another_tuning_and_is_paid_for(tmp_path):
    options = {"trial": plan(4.0), "delta": DELTA, "directory": tmp_path, "random_state": 0}
    first, second = (tune(stored(ROWS, noise=4.0), SPACE, **options) for _ in range(2))
    assert first.guarantee.epsilon < second.guarantee.epsilon
    assert first.best_score != second.best_score
    assert len(Ledger.read(tmp_path / "ledger.jsonl")) == 2


def test_another_space_cannot_resume(tmp_path):
    options = {"trial": plan, "epsilon": 3.0, "delta": DELTA, "directory": tmp_path}
    with pytest.raises(Killed):
        tune(killing(stored(ROWS), 0), SPACE, **options)
    with pytest.raises(LedgerError, match="another configuration"):
        tune(stored(ROWS), {"lr": Uniform(0.0, 1.0)}, **options)


def test_a_sealed_file_that_others_may_read_is_refused(tmp_path):
    options = {"trial": plan, "epsilon": 3.0, "delta": DELTA, "directory": tmp_path}
    with pytest.raises(Killed):
        tune(killing(stored(ROWS), 0), SPACE, **options)
    (tmp_path / "sealed" / "key").chmod(0o644)
    with pytest.raises(LedgerError, match="mode 0600"):
        tune(stored(ROWS), SPACE, **options)


# ----------------------------------------------------------------------------------- early stopping


def test_a_mutant_that_stops_early_on_scores_is_caught(monkeypatch):
    class Impatient(Seal):
        """Pretends that all trials are done once a score is good enough."""

        def add(self, rank, row):
            super().add(rank, row)
            if rank[0] > 40:
                self._done += 1000

    monkeypatch.setattr(TUNE, "Seal", Impatient)
    with pytest.raises(UnsoundRelease, match="exactly the trials it drew"):
        tune(
            counting(ROWS), SPACE, trial=plan, epsilon=3.0, delta=DELTA,
            random_state=key_with(LAW, 9),
        )  # fmt: skip


def finite_profile(p, q, epsilons):
    one = np.maximum(p - np.exp(epsilons)[:, None] * q, 0).sum(axis=1)
    return np.maximum(one, np.maximum(q - np.exp(epsilons)[:, None] * p, 0).sum(axis=1))


def test_the_curves_of_mutants_lie_above_the_certified_one():
    """Exact divergences on a small mechanism: honest selection fits, the mutants do not."""
    p, q = np.array([0.97, 0.02, 0.01]), np.array([0.955, 0.03, 0.015])
    nodes = np.linspace(0, 3, 600)
    shift = log_ratio(LAW, nodes, finite_profile(p, q, nodes))
    epsilons = shift + np.linspace(0.42, 1.0, 20)  # from here on the certified delta is 0
    certified = LAW.mean * finite_profile(p, q, epsilons - shift)
    assert certified.max() == 0

    def best(law):
        reached = np.array([0.0, *(LAW.generating(z) for z in np.cumsum(law))])
        return np.diff(reached)

    def revealing(law):
        """(best, K): the number of trials leaves too."""
        ks = np.arange(1, 400)
        pairs = itertools.islice(LAW.probabilities(), len(ks))
        chances = np.array([float(chance) for _, chance in pairs])
        reached = np.concatenate([[0.0], np.cumsum(law)])
        return (chances[:, None] * np.diff(reached[None, :] ** ks[:, None], axis=1)).ravel()

    honest = finite_profile(best(p), best(q), epsilons)
    assert honest.max() <= 1e-12
    told = finite_profile(revealing(p), revealing(q), epsilons)
    assert told.max() > 1e-4


def refuted(wins, runs, epsilon, delta):
    """Clopper-Pearson: whether the claim fails with 99 % confidence."""
    other, one = wins
    low = stats.beta.ppf(0.005, one, runs - one + 1) if one else 0.0
    high = stats.beta.ppf(0.995, other + 1, runs - other) if other < runs else 1.0
    return low > math.exp(epsilon) * high + delta


def scoring_by_what_it_saw(rows, noise):
    """The mutant: it trains with noise, but its score has none."""

    def train(setting, job):
        ledger = Ledger({"n": len(rows)})
        release(rows, job, ledger, noise)
        return None, ledger, float(np.sum(rows))

    return train


def test_honest_runs_of_tune_stay_under_the_claim_and_a_mutant_does_not():
    """A threshold test on the released score, many runs on neighbouring rows."""
    runs, delta, noise = 300, 1e-2, 3.0
    law = TruncatedNegativeBinomial.of_mean(3)
    neighbours = [np.zeros(100), np.append(np.ones(1), np.zeros(99))]

    def audit(training, bar):
        wins = []
        for world, rows in enumerate(neighbours):
            results = [
                tune(
                    training(rows, noise=noise), SPACE, trial=plan(noise), delta=delta,
                    trials=law, random_state=new_key(10_000 * world + seed),
                )
                for seed in range(runs)
            ]  # fmt: skip
            wins.append(sum(result.best_score > bar for result in results))
        return refuted(wins, runs, results[0].guarantee.epsilon, delta)

    assert not audit(counting, bar=3.0)
    assert audit(scoring_by_what_it_saw, bar=0.5)


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "change",
    [
        {"release": "some"},
        {"trials": 0.5},
        {"trials": LAW, "release": "all"},
        {"trials": 2.5, "release": "all"},
        {"delta": 1.0},
        {"epsilon": None},
        {"space": {}},
        {"relation": "other"},
    ],
)
def test_refusals(change):
    options = {"space": SPACE, "trial": plan, "epsilon": 3.0, "delta": DELTA} | change
    with pytest.raises(ConfigurationError):
        tune(counting(ROWS), options.pop("space"), **options)
