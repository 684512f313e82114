"""Tunings with one mistake each, under replay and under a curve audit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from scipy import stats
from selfaudit.honest_trials import table
from small_tunings import DELTA, LAW, ROWS, key_with, plan, release

from winsor.audit import curve, replay
from winsor.core.accounting import flatten
from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.metrics import Accuracy
from winsor.tuning import PRUNED, PrivateScore, Pruning, tune
from winsor.tuning.selection import SelectionDpEvent, certified_deltas
from winsor.tuning.trial_counts import TruncatedNegativeBinomial, smallest_log_ratio

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def tuning(mistake=None):
    """A tuning of a noisy sign, whose trials make the mistake."""

    def run(data):
        x, y = data

        def train(setting, job):
            ledger = Ledger({"n": 24})
            door = PrepaidDoor(ledger, ADD, job.key)
            steps, sign = 3, Sensitivity.per_sample(1.0, "clipped")
            paid = door.pay(Gaussian(job.noise_multiplier), FullBatch(24), sign, steps, 1)
            for _ in range(steps):
                sums = np.array([float(np.clip(x[:, 0], -1, 1).sum())])
                slope = float(paid.release(sums)[0])
                guesses = (x[:, 0] * np.sign(slope) > setting["bar"]).astype(int)
                right = float(np.mean(guesses == y))
                loss = float(np.mean(np.maximum(0, 1 - (2 * y - 1) * x[:, 0] * slope)))
                if mistake == "stops early on exact scores" and loss < 1e6:
                    break
            if mistake == "scores outside the account":
                return slope, ledger, right
            return slope, ledger, job.measure(ledger, targets=y, predictions=guesses)

        inside = mistake != "scores outside the account"
        return tune(
            train,
            {"bar": [0.0, 0.5]},
            trial=lambda nm: [(GaussianDpEvent(nm), 3)],
            score=PrivateScore(Accuracy(), 5.0) if inside else None,
            epsilon=3.0,
            delta=1e-3,
            trials=4,
        )

    return run


def test_an_honest_tuning_passes_replay():
    report = replay(tuning(), table(0))
    assert report.passed, str(report)


@pytest.mark.parametrize("mistake", ["scores outside the account", "stops early on exact scores"])
def test_replay_finds_the_mistake(mistake):
    assert not replay(tuning(mistake), table(0), first_only=True).passed


class BestOfGaussians:
    """The best of K noisy zeros, or ones: the selection itself, for the curve audit."""

    def __init__(self, law, shift):
        self.law, self.shift = law, shift

    def scores(self, world, runs, part):
        """P(best <= y) = phi(P(one <= y)), inverted at uniform numbers."""
        rng = np.random.default_rng([world, part, 7])
        grid = np.linspace(0.0, 1.0, 50_001)
        reached = np.array([self.law.generating(z) for z in grid])
        below = np.interp(rng.random(runs), reached, grid)
        return stats.norm.ppf(np.clip(below, 1e-300, 1 - 1e-16)) + self.shift * world


@pytest.mark.parametrize("mean", [3, 30])
def test_the_bound_is_never_below_what_a_curve_audit_proves(mean):
    law, multiplier = TruncatedNegativeBinomial.of_mean(mean), 2.0
    bars = np.array([1.0, 1.8, 2.4, 3.0])  # fixed beforehand: no pilot is needed
    found = curve.measure(BestOfGaussians(law, 1 / multiplier), bars, 300_000)
    event = SelectionDpEvent(GaussianDpEvent(multiplier), law)
    at = np.linspace(0.05, 3.0, 25)
    claimed = certified_deltas([(event, 1)], at, ADD)
    a, b = found.true_positive, found.false_positive
    proven = np.maximum(
        (a[:, None] - np.exp(at) * b[:, None]).max(axis=0),
        (1 - b[:, None] - np.exp(at) * (1 - a[:, None])).max(axis=0),
    )
    assert proven.max() > 0.02  # the audit sees something
    assert np.all(claimed >= proven)
    halved = SelectionDpEvent(GaussianDpEvent(3 * multiplier), law)
    assert np.any(certified_deltas([(halved, 1)], at, ADD) < proven)  # and would see a third


class BestOfCoins:
    """The best of K coins; the mutant tells K as well. Scores are log-likelihood ratios."""

    CHANCES = (0.5, 0.3)  # of the better side, by world

    def __init__(self, law, tells_the_number):
        self.law, self.tells = law, tells_the_number

    def scores(self, world, runs, part):
        rng = np.random.default_rng([world, part, 8])
        pairs = itertools.islice(self.law.probabilities(), 400)
        chances = np.array([float(chance) for _, chance in pairs])
        number = rng.choice(np.arange(1, 401), size=runs, p=chances / chances.sum())
        lost = rng.random(runs) < (1 - self.CHANCES[world]) ** number
        if self.tells:
            none = [(1 - chance) ** number for chance in self.CHANCES]
        else:
            none = [np.full(runs, self.law.generating(1 - chance)) for chance in self.CHANCES]
        return np.where(lost, np.log(none[1] / none[0]), np.log((1 - none[1]) / (1 - none[0])))


@pytest.mark.parametrize("tells_the_number", [False, True])
def test_a_curve_audit_finds_the_mutant_that_tells_the_number_of_trials(tells_the_number):
    law = TruncatedNegativeBinomial.of_mean(10)
    one, other = (np.array([1 - chance, chance]) for chance in BestOfCoins.CHANCES)

    def profile(at):
        ratios = [p - np.exp(at)[:, None] * q for p, q in ((one, other), (other, one))]
        return np.max([np.maximum(ratio, 0).sum(axis=1) for ratio in ratios], axis=0)

    shift = smallest_log_ratio(law, profile, 4.0)
    at = shift + np.linspace(0.0, 1.0, 25)
    claimed = law.mean * profile(at - shift)
    bars = np.array([0.3, 1.0, 1.6, 2.4])
    found = curve.measure(BestOfCoins(law, tells_the_number), bars, 100_000)
    a, b = found.true_positive, found.false_positive
    proven = (a[:, None] - np.exp(at) * b[:, None]).max(axis=0)
    assert np.any(proven > claimed) == tells_the_number


# ------------------------------------------------------------------------ trials that are dropped

ODD = [2.0, float("nan"), PRUNED, -np.inf, 2.0, -7.0, PRUNED, float("nan"), 1.0]
"""Scores of trials that a search could drop: no number, given up, the worst, equal to the best."""


class Failed(Exception):
    """A trial that comes to nothing."""


@pytest.mark.parametrize("failing", [None, 0, 4, 8])
@pytest.mark.parametrize("released", ["best", "all"])
def test_no_trial_is_dropped_and_none_is_drawn_instead(tmp_path, released, failing):
    """Trials that come to nothing were drawn and paid for like others: another in their place, or
    one fewer, would make their number depend on scores. One that fails is run again as it was."""
    begun, left = [], [failing]

    def train(setting, job):
        begun.append(job.key)
        place = len(dict.fromkeys(begun)) - 1
        if place == left[0]:
            left[0] = None
            raise Failed
        ledger = Ledger({"n": 100})
        release(ROWS, job, ledger, noise=4.0)
        return [place], ledger, ODD[place]

    options = {"trial": plan(4.0), "delta": DELTA, "release": released, "directory": tmp_path}
    options |= {"trials": LAW if released == "best" else len(ODD), "pruning": Pruning({10: -1e9})}
    options |= {"random_state": key_with(LAW, len(ODD))}
    if failing is not None:
        with pytest.raises(Failed):
            tune(train, {"a": [1, 2, 3]}, **options)
    result = tune(train, {"a": [1, 2, 3]}, **options)
    assert len(dict.fromkeys(begun)) == len(ODD)
    assert len(begun) == len(ODD) + (failing is not None)
    assert result.best_score == 2.0
    ((event, count),) = result.ledger.history()
    if released == "best":
        assert count == 1 and event.trials == LAW
    else:
        assert [row.model for row in result.trials] == [[place] for place in range(len(ODD))]
        scores = [row.score for row in result.trials]
        np.testing.assert_array_equal(scores, ODD)
        assert flatten(result.ledger.history()) == [(GaussianDpEvent(4.0), len(ODD))]
