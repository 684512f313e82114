"""A sum is about one unit and one relation: who else is added is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError, LedgerError, Neighbouring
from winsor.core.door import Door
from winsor.core.ledger import Ledger
from winsor.core.ledger.guarantee import guarantee, together
from winsor.core.ledger.ledger import config_hash
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.sampling.samplers import FullBatch
from winsor.metrics import Accuracy, measure
from winsor.tables import PrivacyBudget, PrivateLogisticRegression, PrivateRidge
from winsor.tables.means import (
    averaged_mean,
    clipped_mean,
    iterative_mean,
    winsorised_mean,
)
from winsor.training.losses.adjusted import released_counts

ADD, REPLACE = Neighbouring
N = 64
PERSONS = np.arange(N) % 16
X = np.random.default_rng(0).normal(size=(N, 3))
Y = (X[:, 0] > 0).astype(int)


def run(**options):
    model = torch.nn.Linear(3, 2)
    terms = {"noise_multiplier": 4.0, "steps": 1, "delta": 1e-3, "sampling": "full"} | options
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(torch.tensor(X).float(), torch.tensor(Y)),
        rule=winsor.rules.Flat(1.0), batch_size=16 if "unit" in options else N, **terms,
    )  # fmt: skip
    for inputs, labels in private.batches(1):
        losses = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        private.step(losses)
    return private


def mean(unit=None):
    return clipped_mean(X, epsilon=1.0, delta=1e-3, radius=3.0, unit=unit)


def test_rows_and_persons_have_no_total():
    for rows in (run(), mean()):
        for persons in (run(unit=PERSONS), mean(PERSONS)):
            with pytest.raises(ConfigurationError, match="another unit"):
                winsor.total(rows, persons)
    both = winsor.total(run(unit=PERSONS), mean(PERSONS))
    assert "the identifiers of all parts name the same units" in both.conditions
    assert not any("same units" in one for one in winsor.total(run(), mean()).conditions)


@pytest.mark.parametrize(
    "of_persons",
    [
        lambda: averaged_mean(X, epsilon=1.0, delta=1e-3, clip=1.0, batch_size=4, unit=PERSONS),
        lambda: iterative_mean(X, epsilon=1.0, delta=1e-3, radius=3.0, groups=2, unit=PERSONS),
        lambda: winsorised_mean(X, epsilon=1.0, delta=1e-3, unit=PERSONS),
        lambda: PrivateRidge(delta=1e-3).fit(X, Y, unit=PERSONS),
        lambda: PrivateLogisticRegression(delta=1e-3).fit(X, Y, unit=PERSONS),
    ],
)  # fmt: skip
def test_all_that_take_persons_say_so(of_persons):
    with pytest.raises(ConfigurationError, match="another unit"):
        winsor.total(run(), of_persons())


def test_a_run_of_persons_does_not_go_on_after_one_of_rows():
    terms = {"epsilon": 2.0, "noise_multiplier": None}
    for unit, before in ((PERSONS, run()), (None, mean(PERSONS))):
        options = {} if unit is None else {"unit": unit}
        with pytest.raises(ConfigurationError, match="another unit"):
            run(after=[before], **terms, **options)
    assert run(unit=PERSONS, after=[mean(PERSONS)], **terms).spent().epsilon <= 2.0


def test_a_metric_is_not_added_to_a_ledger_of_persons():
    with pytest.raises(ConfigurationError, match="one of rows"):
        measure(Accuracy(), targets=Y, predictions=Y, epsilon=1.0, ledger=mean(PERSONS).ledger)


# ------------------------------------------------------------------------------------ relation


def doors(ledger, relation):
    yield lambda: PrepaidDoor(ledger, relation, bytes(32))
    yield lambda: Door(ledger, Gaussian(1.0), FullBatch(9), relation, bytes(32))


def test_no_door_opens_on_a_ledger_of_another_relation():
    ledger = Ledger({})
    PrepaidDoor(ledger, ADD, bytes(32))
    for door in doors(ledger, REPLACE):
        with pytest.raises(ConfigurationError, match="another relation"):
            door()
    with pytest.raises(ConfigurationError, match="another relation"):
        guarantee([ledger], 1e-5, REPLACE)


def test_ledgers_of_two_relations_are_not_one_history():
    one, two = Ledger({"relation": ADD.value}), Ledger({"relation": REPLACE.value})
    with pytest.raises(ConfigurationError, match="another relation"):
        together([one, two])
    assert together([one, Ledger({})]) == []  # a ledger of version 0.2 does not say


def test_what_is_recorded_is_of_rows_unless_said():
    ledger = Ledger({})
    ledger.record("key", 0, GaussianDpEvent(1.0))
    with pytest.raises(ConfigurationError, match="another unit"):
        ledger.be_about(unit="person")
    Ledger({}).be_about(unit="person")


def test_a_file_keeps_its_relation(tmp_path):
    path = tmp_path / "counts.jsonl"
    options = {"noise_multiplier": 9.0, "delta": 1e-3, "ledger": path}
    released_counts([0, 1] * 9, 2, **options)
    with pytest.raises(LedgerError, match="relation"):
        released_counts([0, 1] * 9, 2, relation="replace_one", **options)


def test_an_old_header_is_read_and_continued(tmp_path):
    """Version 0.2 wrote no relation in the headers of single releases."""
    path, old = tmp_path / "ledger.jsonl", {"method": "class counts", "classes": 2}
    ledger = Ledger(old, path)
    ledger.record("key", 0, GaussianDpEvent(1.0))
    ledger.close()
    assert Ledger.read(path).about == {"unit": "row"}
    again = Ledger({**old, "relation": ADD.value}, path)
    assert len(again) == 1 and again.hash != config_hash(old)
    again.close()
    with pytest.raises(LedgerError, match="classes"):
        Ledger({"method": "class counts", "classes": 3, "relation": ADD.value}, path)


# --------------------------------------------------------------------------------- partial_fit


@pytest.mark.parametrize(
    ("first", "then", "name"),
    [
        ({"relation": "replace_one"}, {"relation": "add_or_remove_one"}, "another relation"),
        ({"bounds": (-1, 1)}, {"bounds": (-9, 9)}, "another bounds"),
        ({"bounds": np.full((3, 2), (-1, 1))}, {"bounds": np.full((3, 2), (-2, 2))}, "bounds"),
        ({"feature_bound": 1.0}, {"feature_bound": 2.0}, "another feature_bound"),
    ],
)
def test_a_fit_goes_on_about_the_same(first, then, name):
    model = PrivateLogisticRegression(delta=1e-3, **first).fit(X, Y)
    spent, coefficients = len(model.ledger_), model.coef_.copy()
    with pytest.raises(ConfigurationError, match=name):
        model.set_params(**then).partial_fit(X, Y)
    assert len(model.ledger_) == spent and (model.coef_ == coefficients).all()
    again = model.set_params(**first, epsilon=0.5).partial_fit(X, Y)
    assert again.epsilon_ > 1.0


def test_rows_do_not_go_on_where_persons_were_fitted():
    for model in (PrivateRidge(delta=1e-3), PrivateLogisticRegression(delta=1e-3)):
        with pytest.raises(ConfigurationError, match="another unit"):
            rows = X.copy()  # each model has rows of its own
            model.fit(rows, Y, unit=PERSONS).partial_fit(rows, Y)
    rows = X.copy()
    ranged = PrivateRidge(delta=1e-3, target_range=(0, 1)).partial_fit(rows, Y)
    with pytest.raises(ConfigurationError, match="another target_range"):
        ranged.set_params(target_range=(0, 5)).partial_fit(rows, Y)


def test_classes_stay_those_of_the_first_call():
    model = PrivateLogisticRegression(delta=1e-3).partial_fit(X, Y, classes=[0, 1])
    model.partial_fit(X, Y, classes=[1, 0])
    with pytest.raises(ConfigurationError, match="first call"):
        model.partial_fit(X, Y, classes=[0, 1, 2])


def test_a_budget_is_about_one_unit_and_refuses_before_the_fit():
    budget = PrivacyBudget()
    PrivateRidge(delta=1e-3, budget=budget).fit(X, Y)
    other = PrivateRidge(delta=1e-3, budget=budget)
    with pytest.raises(ConfigurationError, match="another unit"):
        other.fit(X, Y, unit=PERSONS)
    assert len(budget) == 1 and not hasattr(other, "ledger_")
