"""A planned run: its events are those that a real run records; its noise spends its budget."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, NoOpDpEvent
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.accounting import certify
from winsor.core.contract import ConfigurationError, UnsoundRelease
from winsor.planning.run import PARTS, PlannedRun
from winsor.training.planned import planned_run

RUN = PlannedRun.of_numbers(1000, 50, steps=40, delta=1e-4)
EARLIER = [(GaussianDpEvent(4.0), 3)]


def arguments(**changes):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    rows = TensorDataset(torch.randn(60, 3), torch.zeros(60, dtype=torch.long))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": rows,
        "rule": winsor.rules.Flat(1.0),
        "batch_size": 20,
        "steps": 7,
        "noise_multiplier": 1.5,
        "delta": 1e-3,
        "seed": 0,
    } | changes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"relation": "replace_one"},
        {"rule": winsor.rules.Quantile()},
        {"rule": winsor.rules.L1(1.0), "mechanism": "laplace"},
        {"sampling": "allocation"},
        {"sampling": "loader"},
        {"sampling": "fixed", "relation": "replace_one"},
        {"mechanism": winsor.Banded(2)},
        {"mechanism": winsor.ModelMix(0.1)},
        {"mechanism": winsor.ModelMix([(0, 0.1), (3, 0.2)])},
    ],
    ids=str,
)
def test_a_run_records_what_was_planned(changes):
    given = arguments(**changes)
    planned = planned_run(given)
    private = winsor.make_private(**given)
    for x, y in private.batches():
        private.step(F.cross_entropy(private.model(x), y, reduction="none"))
    recorded = [
        (event, count)
        for event, count in private.ledger.history()
        if not isinstance(event, NoOpDpEvent)  # steps that were paid for with an earlier one
    ]
    assert list(map(repr, planned.history(1.5))) == list(map(repr, recorded))
    assert planned.steps == private.steps_done == 7
    assert planned.spent(1.5).epsilon == private.spent().epsilon


def test_the_noise_spends_the_budget_with_all_that_comes_before_and_along():
    alone = RUN.noise_for(2.0)
    assert 1.99 <= certify(RUN.history(alone), 1e-4).epsilon <= 2.0 * (1 + 1e-4)
    more = dataclasses.replace(RUN, before=EARLIER, looks=[(GaussianDpEvent(30.0), 2)])
    louder = more.noise_for(2.0)
    assert louder > alone
    assert [count for _, count in more.history(louder)] == [3, 40, 2]
    assert more.spent(louder).epsilon == pytest.approx(2.0, rel=5e-3)


def test_how_many_steps_a_budget_covers_does_not_depend_on_the_plan():
    allowed = RUN.allowed_steps(1.5, 2.0)
    assert allowed == dataclasses.replace(RUN, steps=1).allowed_steps(1.5, 2.0) > 40
    exactly = dataclasses.replace(RUN, steps=allowed)
    assert exactly.spent(1.5).epsilon <= 2.0 * (1 + 1e-4)


def test_epochs_are_those_of_the_sampler():
    assert PlannedRun.of_numbers(1000, 50, epochs=3, delta=1e-4).steps == 60
    with pytest.raises(ConfigurationError, match="either epochs or steps"):
        PlannedRun.of_numbers(1000, 50, delta=1e-4)


def test_what_cannot_be_noised_is_refused():
    with pytest.raises(ConfigurationError, match="mechanism must be one of gaussian, laplace"):
        dataclasses.replace(RUN, mechanism="cauchy").history(1.0)
    half = {"grad": dataclasses.replace(PARTS["grad"], share=0.5)}
    with pytest.raises(UnsoundRelease, match="add up to 1"):
        dataclasses.replace(RUN, parts=half).history(1.0)
