"""Planning a tuning: what it costs against a single run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from winsor.core.accounting import account, certify
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.planning.plan import Question, solve
from winsor.tuning.price import compare
from winsor.tuning.selection import SelectionDpEvent
from winsor.tuning.trial_counts import TruncatedNegativeBinomial

QUESTION = Question(n=60_000, batch_size=600, epochs=10, epsilon=3.0, delta=1e-5)
WHOLE = Question(n=60_000, sampling="full", steps=20, epsilon=3.0, delta=1e-5)


def test_the_untuned_run_is_the_planned_one():
    assert compare(WHOLE, [2]).untuned == solve(WHOLE).noise_multiplier


def test_more_trials_need_more_noise_and_less_than_composition():
    found = compare(WHOLE, [2, 10, 50])
    noises = [option.noise_multiplier for option in found.options]
    assert found.untuned < noises[0] < noises[1] < noises[2]
    assert all(o.noise_multiplier < o.composed_multiplier for o in found.options[1:])
    for option in found.options:
        assert option.rows_left == pytest.approx(60_000 / option.noise_ratio)
        assert option.trial_epsilon < 3.0 and option.most_trials > option.trials
    assert str(found.options[0].trials).rstrip("0.") in found.advice
    json.dumps(found.to_json())


def test_each_option_spends_the_budget():
    (option,) = compare(QUESTION, [10]).options
    trial = QUESTION.run().history(option.noise_multiplier)
    event = SelectionDpEvent.of_history(trial, TruncatedNegativeBinomial.of_mean(10))
    assert 2.97 <= account([(event, 1)], 1e-5).epsilon <= 3.0
    assert certify(trial, 1e-5).epsilon == pytest.approx(option.trial_epsilon)


def test_a_private_score_costs_something():
    free, scored = (
        compare(WHOLE, [10], score_noise_multiplier=score).options[0].noise_multiplier
        for score in (None, 10.0)
    )
    assert free < scored


@pytest.mark.parametrize(
    "question",
    [
        WHOLE,
        dataclasses.replace(QUESTION, epochs=1, relation=Neighbouring.REPLACE_ONE),
        dataclasses.replace(
            QUESTION, epochs=0.1, relation=Neighbouring.REPLACE_ONE, sampling="fixed"
        ),
    ],
    ids=["full", "replace", "fixed"],
)
def test_every_way_to_sample(question):
    (option,) = compare(question, [5]).options
    assert 1 < option.noise_ratio < 3


def test_the_advice_follows_the_price():
    cheap = compare(dataclasses.replace(WHOLE, epsilon=8.0), [2]).advice
    dear = compare(dataclasses.replace(WHOLE, epsilon=1.0), [100]).advice
    assert cheap != dear and "recipe" in dear


def test_only_the_noise_may_be_missing():
    with pytest.raises(ConfigurationError, match="number to compute"):
        compare(dataclasses.replace(QUESTION, epsilon=None, noise_multiplier=1.0))
    with pytest.raises(ConfigurationError):
        compare(QUESTION, [0.5])


def test_it_loads_without_torch():
    code = "import winsor.tuning.price, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
