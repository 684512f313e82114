"""Runs, methods and verdicts of paper 1's reproductions, on a small synthetic task."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.reproductions.dc_dpsgd.descent import Descent, DescentTask, steps_of
from winsor_papers.reproductions.dc_dpsgd.methods import (
    DC,
    DC_CODE,
    DC_COIN,
    DC_LOSS,
    DC_NORM,
    NON_PRIVATE,
    DcSetting,
    measured_line,
    published_multiplier,
    readings,
)
from winsor_papers.reproductions.dc_dpsgd.runs import (
    SeedOutcomes,
    noise_for,
    plain_runs,
    private_runs,
    tuned,
)
from winsor_papers.reproductions.dc_dpsgd.verdict import by_label, span
from winsor_papers.reproductions.reproduction import Line
from winsor_papers.reproductions.training_runs import gaussian_classes

from winsor.core.accounting import certify
from winsor.rules.discriminative import Discriminative
from winsor.rules.flat import Flat


@pytest.fixture(scope="module")
def task() -> DescentTask:
    train, test = gaussian_classes(n=1000, dimension=30, classes=4, seed=0)
    return DescentTask(
        "toy",
        train,
        test,
        lambda: nn.Linear(30, 4),
        batch_size=100,
        steps=steps_of(1000, 100, 3),
        delta=1e-4,
        descent=Descent(2.0),
        rates={DC: 0.5},
    )


def test_private_runs_learn_and_spend_what_was_asked(task: DescentTask) -> None:
    rule = Flat(0.5)
    outcome = private_runs(task, rule, noise_for(task, rule, 8.0), (1, 2))
    assert 7.9 < outcome.epsilon <= 8.0
    assert outcome.measured.seeds == 2
    assert min(outcome.accuracies) > 60
    again = private_runs(task, rule, outcome.noise_multiplier, (1,))
    assert again.accuracies[0] == outcome.accuracies[0]


def test_averaging_and_a_falling_rate_change_the_released_model(task: DescentTask) -> None:
    rule = Flat(0.5)
    noise = noise_for(task, rule, 8.0)
    plain = private_runs(task, rule, noise, (1,)).accuracies
    averaging = replace(task, descent=Descent(2.0, 0.5, cosine=True, average_from=0.5))
    assert private_runs(averaging, rule, noise, (1,)).accuracies != plain


def test_training_without_privacy_is_not_certified(task: DescentTask) -> None:
    outcome = plain_runs(task, (1,))
    assert outcome.accuracies[0] > 75
    assert math.isinf(outcome.epsilon)


def test_a_tail_drawn_by_coins_needs_less_noise(task: DescentTask) -> None:
    coins, rank = DcSetting(k=None).rule(), DcSetting(k=20).rule()
    assert (coins.selection, rank.selection) == ("random", "rank")
    assert noise_for(task, coins, 8.0) < noise_for(task, rank, 8.0)


def test_the_published_noise_is_that_of_the_account(task: DescentTask) -> None:
    setting = DcSetting(k=20)
    run = DcDpsgdRun(batch=100, records=1000, steps=30, delta=1e-4)
    assert published_multiplier(task, setting) == pytest.approx(run.noise_multiplier("rank"))
    code = published_multiplier(task, replace(setting, reading="public code"))
    assert code == pytest.approx(
        run.noise_multiplier("rank") * math.hypot(0.1, 0.09) / math.hypot(1, 0.1)
    )


def test_lines_keep_claims_and_certificates_apart(task: DescentTask) -> None:
    setting = DcSetting(k=20)
    line = measured_line(DC, task, setting, (1,), "9")
    assert line.published is not None and line.certified is not None
    assert line.certified_epsilon is not None and line.certified_epsilon <= 8.0
    run = DcDpsgdRun(batch=100, records=1000, steps=30, delta=1e-4)
    certified = certify(run.certified_history(), 1e-4).epsilon
    assert line.published_certifies == pytest.approx(certified, rel=1e-6)
    assert line.published_certifies > 8.0
    code = measured_line(DC_CODE, task, setting, (1,), None)
    assert code.certified is None and code.published_certifies is not None
    assert code.published_certifies > line.published_certifies
    for method, selection in ((DC_NORM, "norm"), (DC_LOSS, "loss"), (DC_COIN, "random")):
        rule = readings(setting)[method]
        assert isinstance(rule, Discriminative) and rule.selection == selection
        own = measured_line(method, task, setting, (1,), None)
        assert own.published is None and own.certified is not None
        assert own.certified_epsilon == pytest.approx(8.0, abs=0.1)
        assert own.certified_epsilon <= 8.0
    free = measured_line(NON_PRIVATE, task, setting, (1,), None)
    assert free.certified is None and free.certified_epsilon is None


def test_methods_may_have_rates_of_their_own(task: DescentTask) -> None:
    assert task.for_method(DC).descent.lr == 0.5
    assert task.for_method("DP-SGD").descent.lr == 2.0


@pytest.mark.parametrize(
    ("trials", "whole", "halfway"),
    [
        ({1: 5, 4: 9, 16: 6}, None, 8.0),  # towards the better neighbour
        ({1: 6, 4: 9, 16: 5}, None, 2.0),
        ({1: 9, 4: 6, 16: 5}, None, 2.0),  # the only one that was tried
        ({1: 7, 4: 9, 16: 8}, {1: 8, 4: 9}, 8.0),  # of 16 there is only a trial: trials decide
        ({1: 8, 4: 9, 16: 7}, {0.25: 6, 1: 9, 4: 8}, 2.0),  # whole runs of both
        ({1: 8, 4: 9, 16: 7}, {0.25: 8.5, 1: 9, 4: 8}, 0.5),
    ],
)
def test_the_rate_half_way_to_the_better_neighbour_is_tried(
    task: DescentTask, trials: dict[float, float], whole: dict[float, float] | None, halfway: float
) -> None:
    trying = replace(task, tried=(1.0, 4.0, 16.0), tried_for=1.0 if whole is None else 0.5)
    asked: list[float] = []

    def run(at: DescentTask, seeds: object) -> SeedOutcomes:
        asked.append(at.descent.lr)
        known = trials if whole is None or at.taken < at.steps else whole
        return SeedOutcomes((known.get(at.descent.lr, 9.5),), 1.0, 1.0)

    plain, _ = tuned(trying, "any", run)
    before = list(asked)
    refined, curve = tuned(trying, "any", run, refined=True)
    assert asked[len(before) :] == [*before, halfway]
    assert refined.descent.lr == halfway != plain.descent.lr
    assert f"{halfway:g}: 9.50" in curve.rsplit("whole runs", 1)[-1]


def test_span_and_lookup() -> None:
    assert span([8.0, None, 8.001]) == "8"
    assert span([3.0, 20.04]) == "3 to 20"
    lines = (Line({"a": "1", "b": "2"}), Line({"a": "1", "b": "3"}))
    assert by_label(lines, a="1", b="3") is lines[1]
    assert by_label(lines, a="2") is None
