"""Readers of local files, on files made here."""

from __future__ import annotations

import numpy as np
import pytest
from winsor_papers.reproductions.datasets import DATASETS, load

from winsor.core.contract import ConfigurationError

RNG = np.random.default_rng(0)
ARRAYS = {
    "x": RNG.standard_normal((10, 3)).astype(np.float32),
    "y": RNG.random(10),
    "split": np.array([0, 1, 2, 0, 0, 1, 0, 0, 0, 0], dtype=np.uint8),
    "feature_names": np.array(["a", "b", "c"]),
    "x_train": RNG.integers(0, 2, (6, 4)).astype(np.uint8),
    "y_train": RNG.integers(0, 2, 6).astype(np.uint8),
    "x_test": RNG.integers(0, 2, (3, 4)).astype(np.uint8),
    "y_test": RNG.integers(0, 2, 3).astype(np.uint8),
    "loss_mdkk": RNG.random(5),
    "days_since_1970": np.arange(5),
}
ARRAYS |= {f"claim_{key}": ARRAYS[key] for key in ("x", "y", "split", "feature_names")}


def write(directory, name: str, leave_out: str = "") -> None:
    source = DATASETS[name]
    arrays = {key: ARRAYS[key] for key in source.arrays if key != leave_out}
    np.savez(directory / source.file, **arrays)


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_reads(name, tmp_path):
    write(tmp_path, name)
    table = load(name, tmp_path)
    assert table.x_train.dtype == table.y_train.dtype == np.float64
    assert len(table.x_train) == len(table.y_train) > 0
    assert len(table.x_test) == len(table.y_test)
    assert len(table.feature_names) == table.x_train.shape[1]
    assert table.name == name


def test_the_split_is_the_files(tmp_path):
    write(tmp_path, "aus_injury_claims")
    table = load("aus_injury_claims", tmp_path)
    assert np.array_equal(table.y_train, ARRAYS["y"][ARRAYS["split"] == 0])
    assert np.array_equal(table.y_test, ARRAYS["y"][ARRAYS["split"] == 1])  # 2 is validation


def test_unknown_names_missing_files_and_missing_arrays_are_explained(tmp_path):
    with pytest.raises(ConfigurationError, match="name must be one of a9a"):
        load("mnist", tmp_path)
    with pytest.raises(ConfigurationError, match=r"Put there: .* x_train, y_train"):
        load("a9a", tmp_path)
    write(tmp_path, "a9a", leave_out="y_test")
    with pytest.raises(ConfigurationError, match="without y_test"):
        load("a9a", tmp_path)


def test_pickles_are_never_read(tmp_path):
    np.savez(tmp_path / "a9a.npz", **{k: np.array([{}]) for k in DATASETS["a9a"].arrays})
    with pytest.raises(ValueError, match="pickle"):
        load("a9a", tmp_path)
