"""Pruning, adaptive settings, tables and importance: what is free, and what is paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from small_tunings import DELTA, LAW, ROWS, counting, key_with, plan, release

from winsor.core.contract import ConfigurationError, ProtocolError, UnsoundRelease
from winsor.core.ledger import Ledger
from winsor.metrics import Accuracy
from winsor.tuning import PRUNED, PrivateScore, Pruning, importance, tune


def pruned_below(bar):
    """A training whose public score is its setting, looked at once."""

    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        if job.prune(10, setting["level"]):
            return None, ledger, PRUNED
        assert setting["level"] >= bar
        return None, ledger, setting["level"]

    return train


OPTIONS = {"trial": plan, "epsilon": 3.0, "delta": DELTA}
SPACE = {"level": [0.1, 0.9]}


def test_public_pruning_is_free():
    key = key_with(LAW, 9)
    result = tune(pruned_below(0.5), SPACE, pruning=Pruning({10: 0.5}), random_state=key, **OPTIONS)
    assert result.best_score == 0.9
    ((event, _),) = result.ledger.history()
    assert [one for one, _ in event.trial] == [GaussianDpEvent(event.trial[0][0].noise_multiplier)]
    assert any("bars fixed beforehand, on public rows" in c for c in result.guarantee.conditions)


def test_where_smaller_is_better_the_bar_is_a_ceiling():
    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        return None, ledger, PRUNED if job.prune(10, setting["level"]) else setting["level"]

    result = tune(
        train, SPACE, pruning=Pruning({10: 0.5}), maximise=False, random_state=key_with(LAW, 9),
        **OPTIONS,
    )  # fmt: skip
    assert result.best_score == 0.1


def looking(cheat=False):
    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        columns = {"targets": ROWS, "predictions": np.full(100, setting["guess"])}
        for step in (10, 20):
            if cheat:
                job.prune(step, float(np.mean(setting["guess"] == ROWS)))
            elif job.prune(step, ledger=ledger, **columns):
                return None, ledger, PRUNED
        return None, ledger, job.measure(ledger, **columns)

    return train


LOOKS = Pruning({10: 0.2, 20: 0.3}, score=PrivateScore(Accuracy(), 15.0))


def test_private_pruning_is_charged_to_every_trial():
    score = PrivateScore(Accuracy(), 20.0)
    options = {**OPTIONS, "score": score, "random_state": key_with(LAW, 5)}
    result = tune(looking(), {"guess": [1, 7]}, pruning=LOOKS, **options)
    assert result.best_setting == {"guess": 1}
    ((event, _),) = result.ledger.history()
    assert (GaussianDpEvent(15.0), 2) in event.trial
    assert any("2 paid looks" in c for c in result.guarantee.conditions)
    assert 2.95 <= result.guarantee.epsilon <= 3.0
    with pytest.raises(UnsoundRelease, match="must be paid for"):
        tune(looking(cheat=True), {"guess": [1]}, pruning=LOOKS, **options)


def test_a_trial_gives_up_only_where_pruning_was_asked_for():
    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        assert not job.prune(10, 0.0)
        return None, ledger, PRUNED

    with pytest.raises(UnsoundRelease, match=r"job\.measure"):
        tune(train, SPACE, score=PrivateScore(Accuracy(), 20.0), **OPTIONS)


def test_impossible_pruning_is_refused():
    for bars in ({}, {10: math.nan}):
        with pytest.raises(ConfigurationError, match="bars must"):
            Pruning(bars)
    with pytest.raises(ConfigurationError, match="score on public rows"):
        tune(looking(), {"guess": [1]}, pruning=Pruning({10: 0.2}), **OPTIONS)


# ------------------------------------------------------------------------ tables and importance


def test_trials_that_were_paid_for_are_a_table_with_importance():
    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        return None, ledger, -abs(math.log(setting["lr"])) + 0.01 * (setting["kind"] == "a")

    space = {"lr": {"log_uniform": [0.1, 10.0]}, "kind": ["a", "b"]}
    result = tune(train, space, trials=12, release="all", random_state=1, **OPTIONS)
    rows = result.table()
    assert len(rows) == 12 and set(rows[0]) == {"lr", "kind", "score"}
    assert rows[0]["score"] == result.best_score == max(row["score"] for row in rows)
    shares = result.importance()
    assert list(shares) == ["lr", "kind"] and sum(shares.values()) == pytest.approx(1)
    assert shares["lr"] > 0.9
    with pytest.raises(ProtocolError, match="released the best only"):
        tune(counting(ROWS), SPACE, **OPTIONS).importance()


def test_importance_needs_trials_and_takes_pruned_ones():
    with pytest.raises(ConfigurationError, match="at least 4"):
        importance([({"a": 1}, 0.0)] * 3)
    trials = [({"a": k, "b": None}, PRUNED if k < 3 else float(k)) for k in range(8)]
    assert importance(trials)["a"] == pytest.approx(1)


# ------------------------------------------------------------------------------ adaptive settings


def test_a_sampler_may_learn_from_trials_that_are_paid_for():
    def suggest(earlier, generator):
        best = max((row.score for row in earlier), default=0.0)
        return {"level": best + 1}

    def train(setting, job):
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger)
        return None, ledger, setting["level"]

    result = tune(train, suggest, trials=4, release="all", **OPTIONS)
    assert [row.score for row in result.trials] == [1, 2, 3, 4]
    with pytest.raises(ConfigurationError, match='release="all" only'):
        tune(train, suggest, **OPTIONS)
