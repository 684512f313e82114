"""Rows that stay on disk are the rows of the array, in any order, and files are checked."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.core.contract import ConfigurationError
from winsor.training.feeding.mapped import MappedRows, npy_from_parquet


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(200, 3)).astype(np.float32), generator.integers(0, 4, 200)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    return tmp_path / "x.npy", tmp_path / "y.npy", x, y


@given(st.lists(st.integers(0, 199), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_rows_by_index_are_those_of_the_array(files, wanted):
    x_file, y_file, x, y = files
    index = np.array(wanted, dtype=np.int64)
    found = MappedRows(x_file, y_file).take_rows(index)
    assert np.array_equal(found[0].numpy(), x[index])
    assert np.array_equal(found[1].numpy(), y[index])


@pytest.mark.parametrize("asked", [1, 2, 3, 256])
def test_rows_far_apart_are_fetched_in_blocks_and_are_the_same(files, monkeypatch, asked):
    monkeypatch.setattr("winsor.training.feeding.mapped._ASKED", asked)
    monkeypatch.setattr("winsor.training.feeding.mapped.SPARSE", 1)
    x_file, y_file, x, y = files
    rows = MappedRows(x_file, y_file)
    for wanted in ([], [199, 0, 7, 7], [-1, 5], list(range(198, -1, -1))):
        index = np.array(wanted, dtype=np.int64)
        found = rows.take_rows(index)
        assert np.array_equal(found[0].numpy(), x[index])
        assert np.array_equal(found[1].numpy(), y[index])
    for wrong in (200, -201):
        with pytest.raises(IndexError):
            rows.take_rows(np.array([wrong]))


def test_a_file_that_ends_early_is_refused_while_rows_are_fetched(files, monkeypatch):
    rows = MappedRows(*files[:2])
    monkeypatch.setattr("winsor.training.feeding.mapped.os.preadv", lambda *_: 5)
    with pytest.raises(ConfigurationError, match="must stay as it is"):
        rows.take_rows(np.array([3]))


def test_a_part_of_a_part_and_a_pickled_copy_see_the_same_rows(files):
    x_file, y_file, x, _ = files
    rows = MappedRows(x_file, y_file).subset(np.arange(0, 200, 2)).subset(np.array([3, 1]))
    copy = pickle.loads(pickle.dumps(rows))
    for part in (rows, copy):
        assert len(part) == 2
        assert np.array_equal(part[0][0].numpy(), x[6])
        assert np.array_equal(part[-1][0].numpy(), x[2])
        with pytest.raises(IndexError):
            part[2]


def test_what_a_batch_holds_is_its_own(files):
    rows = MappedRows(*files[:2])
    first = rows.take_rows(np.array([0, 1]))[0]
    before = first.clone()
    first += 1  # neither the file nor the next batch
    assert torch.equal(rows.take_rows(np.array([0, 1]))[0], before)


def test_pieces_are_the_whole_file(files, monkeypatch):
    monkeypatch.setattr("winsor.training.feeding.mapped._PIECE", 100)
    pieces = list(MappedRows(*files[:2]).pieces())
    assert len(pieces) > 10
    assert np.array_equal(np.concatenate([x for x, _ in pieces]), files[2])


def test_a_private_run_is_the_run_on_the_same_rows_in_memory(files):
    x_file, y_file, x, y = files

    def weights(dataset):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 4)
        private = winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=dataset,
            rule=winsor.rules.Flat(1.0), noise_multiplier=1.0, delta=1e-4, steps=5,
            batch_size=40, max_physical_batch_size=16, seed=3,
        )  # fmt: skip
        for inputs, labels in private.batches():
            private.step(F.cross_entropy(private.model(inputs), labels, reduction="none"))
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    in_memory = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert torch.equal(weights(MappedRows(x_file, y_file)), weights(in_memory))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.asfortranarray(np.ones((4, 3))), "C order"),
        (np.array(["a", "b"]), "array of numbers"),
        (np.float64(1.0), "with a row for each"),
        (np.ones((3, 2)), "equally many rows"),
    ],
)
def test_files_that_cannot_be_rows_are_refused(tmp_path, array, message):
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "y.npy", np.ones(4))
    with pytest.raises(ConfigurationError, match=message):
        MappedRows(tmp_path / "x.npy", tmp_path / "y.npy")


def test_missing_and_changed_files_are_refused(files, tmp_path):
    with pytest.raises(ConfigurationError, match=r"cannot map .*none\.npy"):
        MappedRows(tmp_path / "none.npy")
    with pytest.raises(ConfigurationError, match="at least one"):
        MappedRows()
    rows = MappedRows(files[0])
    np.save(files[0], files[2][:10])
    with pytest.raises(ConfigurationError, match="stay as it is"):
        rows.take_rows(np.array([0]))


def test_a_parquet_table_becomes_such_files_group_by_group(tmp_path):
    columns = {"a": np.arange(10.0), "y": np.arange(10), "b": -np.arange(10.0)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", row_group_size=3)
    x, y = tmp_path / "x.npy", tmp_path / "y.npy"
    assert npy_from_parquet(tmp_path / "t.parquet", x, y, target_column="y") == 10
    inputs, labels = MappedRows(x, y).take_rows(np.array([9, 2]))
    assert inputs.tolist() == [[9.0, -9.0], [2.0, -2.0]]
    assert labels.tolist() == [9, 2]
    assert npy_from_parquet(tmp_path / "t.parquet", x, features=["b"]) == 10
    assert MappedRows(x).take_rows(np.array([4]))[0].tolist() == [[-4.0]]
    with pytest.raises(ConfigurationError, match="given together"):
        npy_from_parquet(tmp_path / "t.parquet", x, y)
