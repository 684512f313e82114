"""Replay on honest trainings: nothing is found, and what is measured is what was planted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import winsor
from winsor import rules
from winsor.audit import replay
from winsor.audit.replaying import neighbours
from winsor.audit.replaying.transcript import _norm
from winsor.core.contract import ConfigurationError
from winsor.gradients import parameter_rows
from winsor.tables import (
    PrivateLogisticRegression,
    PrivateRadius,
    PrivateRidge,
    PrivateScaler,
    clipped_mean,
    iterative_mean,
)

N, D, WIDE = 24, 3, 64


def table(seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(N, D))
    return x, (x[:, 0] > 0).astype(np.int64)


def tensors():
    x, y = table()
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def training(model=None, loss=F.cross_entropy, **options):
    """A training of four steps, as a user writes it."""

    def train(dataset):
        torch.manual_seed(0)
        net = model() if model is not None else nn.Linear(D, 2)
        arguments = {
            "rule": rules.Flat(1.0), "batch_size": 8, "steps": 4, "noise_multiplier": 1.0,
            "delta": 1e-3, **options,
        }  # fmt: skip
        optimizer = arguments.pop("optimizer", None) or torch.optim.SGD
        private = winsor.make_private(
            model=net, optimizer=optimizer(net.parameters(), lr=0.5), dataset=dataset, **arguments
        )
        for inputs, labels in private.batches():
            private.step(loss(net(inputs), labels, reduction="none"))
        return private

    return train


# ------------------------------------------------------------------------------------- honest runs


@pytest.mark.parametrize("rule", rules.all_examples(), ids=repr)
def test_every_rule_keeps_its_claim(rule):
    report = replay(training(rule=rule, batch_size=12), tensors())
    report.assert_passed()
    assert report.releases == 4
    assert 0 < report.largest_share <= 1.001


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "fixed", "relation": "replace_one"},
        {"sampling": "full", "batch_size": N},
        {"sampling": "full", "batch_size": N, "relation": "replace_one"},
        {"relation": "replace_one"},
        {"mechanism": "laplace", "rule": rules.L1(1.0)},
        {"mechanism": winsor.ModelMix(0.1)},
        {"max_physical_batch_size": 3},
        {"iterate": "averaged"},
        {"iterate": "random"},
        {"optimizer": torch.optim.Adam},
        {"seed": 3},
        {"engine": "func"},
        {"engine": "loop"},
    ],
    ids=str,
)
def test_samplers_mechanisms_and_options_pass(options):
    replay(training(**options), tensors()).assert_passed()


def test_dropout_is_the_same_for_the_rows_that_two_batches_share():
    def model():
        return nn.Sequential(
            nn.Dropout(0.3), nn.Linear(D, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)
        )

    report = replay(training(model), tensors())
    report.assert_passed()
    assert report.notes == () and "removed" in report.neighbours


def test_a_removed_row_moves_the_sum_by_the_whole_clipping_norm():
    """The shift is measured, not only bounded: a removed row of norm C shows C."""
    report = replay(training(rule=rules.Flat(1e-3), sampling="full", batch_size=N), tensors())
    report.assert_passed()
    assert report.largest_share == pytest.approx(1.0, rel=1e-3)


class OverPlaces(nn.Module):
    """A linear layer at every place, and the mean over places."""

    def __init__(self):
        super().__init__()
        # No bias, whose slopes do not cancel; so wide that norms come from Gram matrices.
        self.linear = nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x):
        return self.linear(x).mean(1)


@pytest.mark.parametrize("held", [True, False])
def test_places_that_cancel_are_tried(monkeypatch, held):
    """Their gradient is short and their rounding is not: seen, if norms did not account for it."""
    if not held:
        monkeypatch.setattr(parameter_rows, "THETA", 0.0)
    torch.manual_seed(0)
    places = torch.randn(N, 16, WIDE) * 1e-3
    rows = TensorDataset(places, torch.arange(N) % 2)
    report = replay(training(OverPlaces, rule=rules.Flat(1e-3)), rows)
    assert "places that cancel" in report.neighbours
    assert report.passed is held


def test_two_rows_of_a_person_are_exchanged_together():
    units = {"unit": [row // 2 for row in range(N)], "rows_per_unit": 2}
    report = replay(training(**units), tensors())
    report.assert_passed()
    assert "rows that cancel" in report.neighbours
    assert "rows that cancel" not in replay(training(), tensors()).neighbours
    exchanged = neighbours.hostile_rows(tensors(), 4, [], [4, 5])["rows that cancel"]
    data = neighbours.with_row(tensors(), 4, exchanged).tensors[0]
    assert torch.equal(data[4], -data[5])
    assert data[4].abs().tolist() == pytest.approx([neighbours.OPPOSED] * D)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_vanish_and_products_do_not(dtype):
    x, y = torch.randn(4, 3, dtype=dtype), torch.randn(4, dtype=dtype)
    dataset = TensorDataset(x, y)
    small, large = neighbours.hostile_rows(dataset, 1, [])["squares that vanish"]
    assert float(small.square().sum()) == 0.0 and bool((small * large != 0).all())
    assert bool((small * large).isfinite().all())


@pytest.mark.parametrize(
    "units", [{}, {"unit": [row // 2 for row in range(N)], "rows_per_unit": 2}]
)
def test_a_crowd_has_as_many_rows_as_asked_for(units):
    seen = set()

    def loss(out, labels, reduction):
        seen.add(len(out))
        return F.cross_entropy(out, labels, reduction=reduction)

    report = replay(training(loss=loss, **units), tensors(), crowd=50)
    report.assert_passed()
    each = 2 if units else 1
    assert seen == {50 * each, 51 * each}


def test_a_shift_that_is_too_long_to_be_squared_counts():
    values = np.array([3e200, -4e200, np.inf])
    assert _norm(values) == pytest.approx(5e200) and _norm(values, 1) == pytest.approx(7e200)
    assert _norm(np.array([3e-200, 4e-200])) == pytest.approx(5e-200)
    assert _norm(np.zeros(2)) == _norm(np.zeros(0)) == 0.0


class Rows(Dataset):
    """Map-style, not made of tensors."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        x, y = table()
        return x[index].astype(np.float32), int(y[index])


def test_any_map_style_dataset_will_do():
    replay(training(), Rows()).assert_passed()


def test_rows_can_be_chosen():
    report = replay(training(), tensors(), rows=[2, 5])
    report.assert_passed()
    assert report.rows == (2, 5)


# -------------------------------------------------------------------------------------- estimators


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    "method",
    [
        winsor.tables.FlatDescent(steps=4),
        winsor.tables.FlatDescent(steps=4, batch_size=6),
        winsor.tables.AveragedDescent(clip=1.0, batch_size=6, learning_rate=0.1, steps=4),
        winsor.tables.Restarted(runs=2, clip=1.0, batch_size=6, learning_rate=0.1, steps=2),
        winsor.tables.Simple(clip=1.0, steps=3, learning_rate=0.1),
        winsor.tables.Iterative(clip=1.0, steps=2, learning_rate=0.1, groups=4),
        winsor.tables.Iterative(
            clip=1.0, steps=2, learning_rate=0.1, groups=4, grouping="partition"
        ),
        winsor.tables.RobustGD(scale=1.0, learning_rate=0.1, steps=3),
        winsor.tables.Ruled("quantile", {"max_grad_norm": 1.0}, steps=3),
    ],
    ids=lambda method: f"{type(method).__name__}",
)
def test_linear_models_keep_their_claims(method, relation):
    def train(data):
        return PrivateLogisticRegression(
            method=method, noise_multiplier=1.0, relation=relation, feature_bound=3.0,
        ).fit(*data)  # fmt: skip

    report = replay(train, table())
    report.assert_passed()
    assert report.releases >= 2


def test_a_pipeline_of_scaler_and_model_passes():
    """The scaler draws no rows, so its release counts as one in which the row was replaced."""

    def train(data):
        x, y = data
        scaler = PrivateScaler(-3, 3, epsilon=1.0).fit(x)
        model = PrivateRidge(epsilon=1.0, method=winsor.tables.FlatDescent(steps=3))
        return scaler, model.fit(scaler.transform(x), y)

    x, y = table()
    replay(train, (x, y.astype(float))).assert_passed()


def test_an_absent_row_stands_for_a_removed_one():
    report = replay(
        lambda x: PrivateScaler(-3, 3, epsilon=1.0).fit(x), table()[0], absent=np.zeros(D)
    )
    report.assert_passed()
    assert report.largest_share > 0.3


@pytest.mark.parametrize("radius", [1.0, PrivateRadius(0.1, 10.0)], ids=["given", "searched"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    "mean", [clipped_mean, iterative_mean, "partition"], ids=["clipped", "poisson", "partition"]
)
def test_means_keep_their_claims(mean, relation, radius):
    options = {"radius": radius, "relation": relation, "epsilon": 1.0}
    if mean == "partition":
        mean, options = iterative_mean, {**options, "grouping": "partition"}
    report = replay(lambda x: mean(x, **options), table()[0])
    report.assert_passed()
    assert report.largest_share > 0.1


# ------------------------------------------------------------------------------------ what it sees


def test_files_in_the_run_directory_are_compared():
    def train(dataset, folder):
        private = training(ledger=folder / "ledger.jsonl")(dataset)
        torch.save(private.model.state_dict(), folder / "model.pt")
        torch.save({"training": private.state_dict()}, folder / "checkpoint.pt")
        (folder / "rows.txt").write_text(str(float(dataset.tensors[0].sum())))
        return private

    report = replay(train, tensors())
    assert {finding.part for finding in report.findings} == {"file rows.txt"}
    replay(train, tensors(), ignore=["file rows.txt"]).assert_passed()


def test_printed_text_is_compared():
    def train(dataset):
        private = training()(dataset)
        print("mean", float(dataset.tensors[0].mean()))
        return private

    report = replay(train, tensors())
    assert report.findings[0].part == "printed line.0"
    with pytest.raises(AssertionError, match="printed line"):
        report.assert_passed()


def test_an_exception_that_a_row_causes_is_a_finding():
    def train(dataset):
        if float(dataset.tensors[0].abs().max()) > 1e6:
            raise ValueError("too large")
        return training()(dataset)

    report = replay(train, tensors())
    assert report.findings[0].kind == "control flow" and "too large" in report.findings[0].detail


def test_an_error_of_the_training_itself_is_the_users():
    with pytest.raises(ZeroDivisionError):
        replay(lambda dataset: 1 / 0, tensors())


def test_a_training_that_releases_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="release something through a door"):
        replay(lambda dataset: None, tensors())
    with pytest.raises(ConfigurationError, match="at least 2 rows"):
        replay(lambda dataset: None, np.zeros((1, 2)))
    with pytest.raises(ConfigurationError, match="rows by index"):
        replay(lambda dataset: None, iter([]))


def test_a_bound_taken_from_the_data_is_found():
    """No program can see where a number comes from; replay shows it."""

    def train(data):
        return PrivateLogisticRegression(
            method=winsor.tables.RobustGD(steps=2, scale=1.0),
            noise_multiplier=1.0,
            feature_bound=float(np.linalg.norm(data[0], axis=1).max()),
        ).fit(*data)

    assert not replay(train, table()).passed


def test_nothing_is_left_patched_and_generators_are_where_they_were():
    from winsor.core.door import Door
    from winsor.core.sampling.samplers import Poisson

    before = Door.release, Poisson.indices, F.dropout, np.random.default_rng, torch.get_rng_state()
    replay(training(), tensors())
    assert (Door.release, Poisson.indices, F.dropout, np.random.default_rng) == before[:4]
    assert torch.equal(torch.get_rng_state(), before[4])


def test_the_report_says_what_was_done():
    report = replay(training(), tensors())
    assert "replay passed: 4 releases" in str(report)
    assert report.as_dict()["verdict"] == "passed"
    assert report.neighbours[0] == "removed" and "1e30" in report.neighbours


def test_the_fixture_fails_the_test():
    from winsor.audit.pytest_plugin import checked_replay

    assert checked_replay(training(), tensors()).passed
    with pytest.raises(AssertionError, match="left behind"):
        checked_replay(lambda d: (training()(d), d.tensors[0].sum()), tensors())
