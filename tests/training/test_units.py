"""The unit is a person: all rows of one, bounded once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.audit import replay
from winsor.core.contract import ConfigurationError, LedgerError, LossError
from winsor.core.ledger.ledger import Ledger
from winsor.core.sampling.units import UnitRows
from winsor.rules import Automatic, Averaged, Flat, PerLayer, Quantile

PERSONS, DELTA = 40, 1e-3
IDS = np.repeat(np.arange(PERSONS), np.r_[50, 1 + np.arange(PERSONS - 1) % 5])
"""Person 0 has 50 rows, the others one to five."""


def rows(scale=1.0):
    x = torch.randn(len(IDS), 4, generator=torch.Generator().manual_seed(0))
    x[IDS == 0] *= scale
    return TensorDataset(x, (x[:, 0] > 0).long())


def build(data=None, seed=3, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    chosen = {"rule": Flat(0.5), "unit": IDS, "batch_size": 10, "steps": 12, "delta": DELTA}
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2), dataset=data or rows(),
        noise_multiplier=1.0, seed=seed, **(chosen | options),
    )  # fmt: skip
    return model, private


def losses(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def train(model, private):
    for batch in private.batches():
        private.step(losses(model, batch))


def sums_of(private, model, monkeypatch_store):
    """The bounded sums before noise, step by step."""
    door = private._door
    release = door.release

    def noted(step, parts):
        monkeypatch_store.append(
            {
                n: {k: v.clone() for k, v in p.value.items()}
                for n, p in parts.items()
                if isinstance(p.value, dict)
            }
        )
        return release(step, parts)

    door.release = noted
    train(model, private)


def test_the_account_is_of_persons():
    model, private = build()
    train(model, private)
    spent = private.spent()
    assert private.sampler.n == PERSONS
    by_hand = winsor.core.accounting.certify(
        [(event, count) for event, count in private.ledger.history()], DELTA, spent.relation
    )
    assert spent.epsilon == by_hand.epsilon
    assert any("up to 8 of its rows" in condition for condition in spent.conditions)
    assert any("number of units, n = 40" in condition for condition in spent.conditions)


def test_a_step_sees_whole_persons_up_to_the_limit():
    seen = []
    model, private = build(rows_per_unit=3)
    for x, y in private.batches():
        seen.append(len(x))
        private.step(losses(model, (x, y)))
    units = private._feed.units
    for step in range(12):
        drawn = private.sampler.indices(private._feed.key, step)
        chosen = [units.chosen(int(u), private._feed.key, step) for u in drawn]
        assert all(len(r) == min(3, (u == IDS).sum()) for u, r in zip(drawn, chosen, strict=True))
        assert all((IDS[r] == u).all() for u, r in zip(drawn, chosen, strict=True))
    assert max(seen) <= 3 * PERSONS


def test_the_rows_of_a_large_person_change_from_visit_to_visit_and_not_with_others():
    units = UnitRows(IDS, 4)
    key = bytes(32)
    visits = {tuple(units.chosen(0, key, step)) for step in range(20)}
    assert len(visits) > 10
    assert tuple(units.chosen(0, key, 3)) == tuple(UnitRows(IDS, 4).chosen(0, key, 3))


@pytest.mark.parametrize("within", ["mean", "sum"])
def test_the_sum_is_that_of_clipped_persons(within):
    """Against autograd, person by person."""
    model, private = build(within_unit=within, steps=1, sampling="full", batch_size=PERSONS)
    reference = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    reference.load_state_dict(model.state_dict())
    store = []
    sums_of(private, model, store)
    units, data = private._feed.units, rows()
    expected = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
    for person in range(PERSONS):
        index = torch.from_numpy(units.chosen(person, private._feed.key, 0))
        values = losses(reference, data[index])
        total = values.mean() if within == "mean" else values.sum()
        grads = torch.autograd.grad(total, list(reference.parameters()))
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        for name, grad in zip(expected, grads, strict=True):
            expected[name] += grad * min(1.0, 0.5 / float(norm))
    for name, value in store[0]["grad"].items():
        assert torch.allclose(value, expected[name].double(), rtol=1e-3, atol=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e20]),
    within=st.sampled_from(["mean", "sum"]),
    limit=st.integers(1, 60),
)
def test_a_person_with_fifty_rows_moves_the_sum_by_at_most_c(scale, within, limit):
    stores = []
    for data in (rows(1.0), rows(scale)):
        model, private = build(data, within_unit=within, steps=1, sampling="full",
                               batch_size=PERSONS, rows_per_unit=limit)  # fmt: skip
        store = []
        sums_of(private, model, store)
        stores.append(torch.cat([v.reshape(-1) for v in store[0]["grad"].values()]))
    assert float((stores[0] - stores[1]).norm()) <= 2 * 0.5 * (1 + 1e-4)  # replaced: twice C


@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize(
    "rule", [Flat(0.5), Quantile(0.5), PerLayer(0.5), Automatic(0.5), Averaged(0.5)]
)
def test_replay_finds_nothing_at_the_level_of_persons(rule, limit):
    def fit(data):
        model, private = build(data, rule=rule, max_physical_batch_size=limit)
        train(model, private)
        return model

    report = replay(fit, rows())
    assert report.passed, str(report)


def test_replay_finds_a_person_whose_rows_are_bounded_one_by_one():
    """Rows drawn by person but clipped as rows: a person with many moves the sum by many C."""

    def fit(data):
        model, private = build(data, rule=Flat(1e-3))
        private._grouping = None
        train(model, private)
        return model

    report = replay(fit, rows())
    assert not report.passed


def test_views_of_a_row_are_averaged_before_clipping():
    model, private = build(unit=None, group_size=3, steps=1, sampling="full", batch_size=len(IDS))
    reference = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    reference.load_state_dict(model.state_dict())
    store = []
    door, release = private._door, private._door.release
    door.release = lambda step, parts: (store.append(parts["grad"].value["0.weight"].clone()),
                                        release(step, parts))[1]  # fmt: skip
    shifts = torch.tensor([0.0, 0.3, -0.7])
    for x, y in private.batches():
        views = (x[:, None] + shifts[None, :, None]).flatten(0, 1)
        private.step(losses(model, (views, y.repeat_interleave(3))))
    expected = torch.zeros(6, 4)
    for x, y in rows():
        values = losses(reference, (x + shifts[:, None], y.expand(3)))
        grads = torch.autograd.grad(values.mean(), list(reference.parameters()))
        norm = torch.cat([g.reshape(-1) for g in grads]).norm()
        expected += grads[0] * min(1.0, 0.5 / float(norm))
    assert torch.allclose(store[0], expected.double(), rtol=1e-3, atol=1e-5)


def test_a_group_needs_all_its_losses():
    model, private = build(unit=None, group_size=3)
    with pytest.raises(LossError, match="one value per row"):
        train(model, private)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": IDS[:-1]}, "one identifier for each"),
        ({"unit": IDS.reshape(1, -1)}, "one identifier for each"),
        ({"unit": np.where(IDS == 3, np.nan, IDS)}, "NaN"),
        ({"unit": [None, *IDS[1:]]}, "None"),
        ({"rows_per_unit": 0}, "rows_per_unit"),
        ({"within_unit": "median"}, "within_unit"),
        ({"group_size": 0}, "group_size"),
        ({"batch_size": 41}, "at most n = 40"),
    ],
)
def test_what_makes_no_sense_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        build(**options)


def test_units_by_a_function_of_the_row_and_by_names():
    names = np.array([f"patient {i}" for i in IDS])
    _, by_name = build(unit=names)
    assert by_name.sampler.n == PERSONS
    x = torch.arange(30.0)[:, None].repeat(1, 4)
    data = TensorDataset(x, torch.zeros(30, dtype=torch.long))
    _, by_row = build(data, unit=lambda row: int(row[0][0]) // 3, batch_size=5)
    assert by_row.sampler.n == 10
    assert by_row._feed.units.of(2).tolist() == [6, 7, 8]


def test_metrics_of_rows_are_refused_where_persons_are_protected():
    """One person's rows move an accuracy by as many halves as there are rows."""
    from winsor.metrics import Accuracy
    from winsor.training.evaluation import Evaluation

    looks = Evaluation(Accuracy(), noise_multiplier=5.0)
    _, private = build()
    with pytest.raises(ConfigurationError, match="where rows are protected"):
        looks.look(private, rows())
    model = nn.Linear(4, 2)
    with pytest.raises(ConfigurationError, match="where rows are protected"):
        winsor.fit(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=rows(),
            rule=Flat(1.0), unit=IDS, batch_size=10, steps=3, delta=DELTA, noise_multiplier=1.0,
            evaluate=looks, progress=False,
        )  # fmt: skip


def test_row_metrics_are_refused_in_a_ledger_of_persons():
    model, private = build()
    train(model, private)
    labels = np.zeros(20)
    with pytest.raises(ConfigurationError, match="one of rows"):
        winsor.metrics.measure(
            winsor.metrics.Accuracy(), targets=labels, predictions=labels, epsilon=1.0,
            delta=1e-3, ledger=private.ledger,
        )  # fmt: skip


@pytest.mark.parametrize(("unit", "name"), [(None, "row"), (IDS, "person")])
def test_the_header_names_unit_and_relation_and_older_ones_are_continued(tmp_path, unit, name):
    """Ledgers and checkpoints before issue 37 say a person by ``rows_per_unit`` alone."""
    path = tmp_path / "ledger.jsonl"
    _, private = build(unit=unit)
    header = private.ledger.config
    assert (header["unit"], header["relation"]) == (name, "add_or_remove_one")
    older = Ledger({key: value for key, value in header.items() if key != "unit"}, path)
    assert older.about["unit"] == name
    older.close()
    model, private = build(unit=unit, ledger=path)
    train(model, private)
    state = private.state_dict()
    state["ledger"]["config"] = Ledger.read(path).state_dict()["config"]
    assert "unit" not in state["settings"]
    assert '"unit"' not in state["ledger"]["config"]
    build(unit=unit)[1].ledger.load_state_dict(state["ledger"])
    private.ledger.close()
    other = None if unit is not None else IDS
    with pytest.raises(LedgerError, match="rows_per_unit"):
        build(unit=other, ledger=path)
    with pytest.raises(LedgerError, match=f"unit: ledger '{name}'"):
        build(unit=other, ledger=_written(header, tmp_path / "newer.jsonl"))


def _written(header, path):
    Ledger(header, path).close()
    return path
