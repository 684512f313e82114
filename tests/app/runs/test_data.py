"""Rows from every kind of source, and refusals that say what to change."""

from __future__ import annotations

import csv

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from winsor.app.runs.config import DataSettings
from winsor.app.runs.data import load_data
from winsor.core.contract import ConfigurationError

FEATURES = np.arange(24, dtype=np.float64).reshape(8, 3)
LABELS = np.array([0, 1, 0, 1, 1, 0, 0, 1])


def write_csv(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def load(source, **settings):
    settings = {"classes": 2, "held_out_fraction": 0.0, **settings}
    return load_data(DataSettings(source=str(source), **settings))


def test_digits_need_nothing_but_their_name():
    data = load_data(DataSettings(source="digits"))
    assert (data.shape, data.outputs) == ((64,), 10)
    assert data.size + data.held_out_size == 1797
    x = torch.stack([data.train[i][0] for i in range(50)])
    assert float(x.min()) >= 0 and float(x.max()) == 1.0
    assert load_data(DataSettings(source="digits", shape=[1, 8, 8])).shape == (1, 8, 8)


def test_the_same_rows_from_npz_csv_and_parquet(tmp_path):
    np.savez(tmp_path / "rows.npz", x=FEATURES, y=LABELS)
    rows = [[*x, label] for x, label in zip(FEATURES.tolist(), LABELS.tolist(), strict=True)]
    write_csv(tmp_path / "rows.csv", ["a", "b", "c", "y"], rows)
    columns = {name: FEATURES[:, i] for i, name in enumerate("abc")}
    pyarrow.parquet.write_table(pyarrow.table({**columns, "y": LABELS}), tmp_path / "rows.parquet")
    for name in ("rows.npz", "rows.csv", "rows.parquet"):
        data = load(tmp_path / name, subtract=[1.0, 2.0, 3.0], divide=2.0)
        x, y = data.train.tensors
        expected = (FEATURES - [1.0, 2.0, 3.0]) / 2
        assert torch.equal(x, torch.tensor(expected, dtype=torch.float32)), name
        assert y.tolist() == LABELS.tolist() and y.dtype == torch.int64


def test_columns_can_be_chosen_and_labels_be_text(tmp_path):
    path = write_csv(
        tmp_path / "t.csv",
        ["id", "age", "pay", "ill"],
        [["p1", 30, 1.5, "no"], ["p2", 40, 2.5, "yes"], ["p3", 50, 3.5, "no"]],
    )
    data = load(path, target="ill", features=["pay", "age"], classes=["no", "yes"])
    assert data.train.tensors[0].tolist() == [[1.5, 30.0], [2.5, 40.0], [3.5, 50.0]]
    assert data.train.tensors[1].tolist() == [0, 1, 0]
    with pytest.raises(ConfigurationError, match="'id' of .* has words"):
        load(path, target="ill", classes=["no", "yes"])
    with pytest.raises(ConfigurationError, match="data.classes must list the labels"):
        load(path, target="ill", features=["age"])
    with pytest.raises(ConfigurationError, match=r"labels among \['yes', 'maybe'\]"):
        load(path, target="ill", features=["age"], classes=["yes", "maybe"])
    with pytest.raises(ConfigurationError, match="data.target must name columns"):
        load(path, target="sick", features=["age"])


def test_an_npz_with_its_own_test_rows_and_images(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    path = tmp_path / "images.npz"
    np.savez(path, x_train=x[:4], y_train=LABELS[:4], x_test=x[4:], y_test=LABELS[4:6])
    data = load(path, shape=[1, 4, 4], divide=255.0, held_out_fraction=0.5)
    assert (data.size, data.held_out_size, data.shape) == (4, 2, (1, 4, 4))
    assert data.train.tensors[0].max() <= 1
    with pytest.raises(ConfigurationError, match="as many values as a row, 16"):
        load(path, shape=[1, 28, 28])
    with pytest.raises(ConfigurationError, match=r"data.inputs must be the name of an array.*x_t"):
        load(path, inputs="pixels")


def test_a_second_file_is_held_out(tmp_path):
    np.savez(tmp_path / "one.npz", x=FEATURES, y=LABELS)
    np.savez(tmp_path / "two.npz", x=FEATURES[:3], y=LABELS[:3])
    data = load(tmp_path / "one.npz", held_out=str(tmp_path / "two.npz"))
    assert (data.size, data.held_out_size) == (8, 3)


def test_holding_a_row_out_does_not_depend_on_other_rows(tmp_path):
    """A row more at the end changes nothing for the others."""
    x = np.random.default_rng(0).normal(size=(101, 2))
    y = np.zeros(101, dtype=int)
    sets = []
    for n in (100, 101):
        np.savez(tmp_path / f"{n}.npz", x=x[:n], y=y[:n])
        data = load(tmp_path / f"{n}.npz", held_out_fraction=0.3)
        sets.append({tuple(row) for row in data.train.tensors[0].tolist()})
    assert len(sets[0] ^ sets[1]) <= 1 and 55 < len(sets[0]) < 85


def test_regression_and_language(tmp_path):
    np.savez(tmp_path / "r.npz", x=FEATURES, y=np.linspace(0, 1, 8))
    data = load(tmp_path / "r.npz", task="regression", classes=None)
    assert data.outputs == 1 and data.train.tensors[1].dtype == torch.float32
    np.savez(tmp_path / "t.npz", x=np.array([[1, 2, 3], [4, 0, -1]]))
    data = load(tmp_path / "t.npz", task="language", classes=5)
    assert (data.outputs, data.shape, len(data.train.tensors)) == (5, (3,), 1)
    with pytest.raises(ConfigurationError, match="tokens below data.classes = 4"):
        load(tmp_path / "t.npz", task="language", classes=4)
    with pytest.raises(ConfigurationError, match="whole numbers of shape"):
        load(tmp_path / "r.npz", task="language", classes=4)


@pytest.mark.parametrize("task", ["classification", "regression", "language"])
def test_synthetic_rows_are_the_same_each_time(task):
    settings = {"task": task, "classes": 4, "options": {"rows": 30}}
    one, two = (load("synthetic", **settings) for _ in range(2))
    other = load("synthetic", **settings, seed=1)
    for a, b, c in zip(one.train.tensors, two.train.tensors, other.train.tensors, strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)


def test_synthetic_features_have_heavy_tails():
    data = load("synthetic", options={"rows": 4000, "features": 10, "degrees": 2.5})
    x = data.train.tensors[0]
    assert x.abs().max() > 20  # a normal distribution would stay below 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "digit"}, "data.source must be one of digits, synthetic, a file"),
        ({"source": "missing.npz"}, "data.source must be a file that exists. Got 'missing.npz'"),
        ({"source": "no.such.module:rows"}, "data.source must be something that can be imported"),
        ({"source": "synthetic"}, "data.classes must be given"),
        ({"source": "synthetic", "classes": 2, "options": {"rwos": 3}}, "data.options.rwos is not"),
        (
            {"source": "synthetic", "classes": 2, "options": {"rows": -3}},
            "rows must be a positive finite number",
        ),
        ({"source": "digits", "task": "regression"}, "data.task must be classification for digits"),
        ({"source": "digits", "subtract": [1.0, 2.0]}, "data.subtract must be one number or one"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        load_data(DataSettings(**settings))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.npz", b"not a zip", "cannot read .*bad.npz"),
        ("bad.parquet", b"not a parquet", "cannot read .*bad.parquet"),
        ("empty.csv", b"", "must have rows"),
        ("torn.csv", b"a,y\n1,0\n2\n", "must have 2 values in each line.*Got 1 in line 3"),
        ("gaps.csv", b"a,y\n1,0\nnan,1\n", "has gaps or infinite values"),
        ("names.csv", b"a,a\n1,0\n", "different names in its header"),
        ("binary.csv", b"a,y\n\xff,0\n", "binary.csv must be text in UTF-8"),
        ("labels.csv", b"a,y\n1,0\n2,7\n", r"labels among 0\.\.1"),
        ("half.csv", b"a,y\n1,0\n2,0.5\n", r"labels among 0\.\.1"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        load(tmp_path / name)


def test_unequal_arrays_and_pickles(tmp_path):
    np.savez(tmp_path / "u.npz", x=FEATURES, y=LABELS[:3])
    with pytest.raises(ConfigurationError, match="equally many rows. Got 8 and 3"):
        load(tmp_path / "u.npz")
    np.savez(tmp_path / "p.npz", x=np.array([{"a": 1}], dtype=object), y=LABELS[:1])
    with pytest.raises(ConfigurationError, match="cannot read"):
        load(tmp_path / "p.npz")


# ------------------------------------------------------------------------------------ import paths


class Rows(Dataset):
    def __init__(self, n: int = 20) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        return torch.full((3,), float(i)), i % 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module in the working directory."""
    (tmp_path / "their_rows.py").write_text(
        "from test_data_rows import Rows, Stream\n"
        "instance = Rows(12)\n"
        "def pair(n):\n    return Rows(n), Rows(3)\n"
        "def broken():\n    raise OSError('no database')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    import sys

    monkeypatch.setitem(sys.modules, "test_data_rows", sys.modules[__name__])
    yield "their_rows"
    sys.modules.pop("their_rows", None)


def test_datasets_by_import_path(module):
    assert load(f"{module}:instance").size == 12
    assert load(f"{module}:Rows", options={"n": 7}).size == 7
    data = load(f"{module}:pair", options={"n": 9}, held_out_fraction=0.5)
    assert (data.size, data.held_out_size, data.shape) == (9, 3, (3,))
    data = load(f"{module}:instance", held_out_fraction=0.5)
    assert data.size + data.held_out_size == 12 and data.held_out_size > 0


def test_import_paths_that_fail(module):
    for source, message in (
        (f"{module}:nothing", "has no attribute 'nothing'"),
        (f"{module}:broken", "cannot be built: OSError: no database"),
        (f"{module}:number", "must be a map-style dataset.*Got int"),
        (f"{module}:Stream", "must be a map-style dataset.*Got Stream"),
        (f"{module}:Rows", "unexpected keyword argument 'm'"),
    ):
        options = {"m": 3} if source.endswith(":Rows") else {}
        with pytest.raises(ConfigurationError, match=message):
            load(source, options=options)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    data = load_data(DataSettings(source="digits", held_out_fraction=0.0))
    assert torch.equal(data.train.tensors[0], torch.from_numpy(x / 16.0).float())
    assert torch.equal(data.train.tensors[1], torch.from_numpy(y).long())
