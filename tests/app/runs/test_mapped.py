"""A run from .npy files on disk is the run from the same rows in an .npz file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from winsor.app.runs.config import DataSettings
from winsor.app.runs.data import load_data
from winsor.core.contract import ConfigurationError


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(50, 4)), generator.integers(0, 3, 50)
    np.savez(tmp_path / "both.npz", x=x, y=y, who=np.arange(50) // 2)
    np.save(tmp_path / "rows.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "who.npy", np.arange(50) // 2)
    return tmp_path


def settings(source, **more):
    return DataSettings(source=str(source), classes=3, shape=[2, 2], divide=2.0, **more)


@pytest.mark.parametrize("unit", [None, "who"])
def test_the_same_rows_are_trained_on_and_held_out(folder, unit):
    there = load_data(settings(folder / "both.npz", unit=unit))
    here = load_data(settings(folder / "rows.npy", unit=unit))
    assert (here.size, here.held_out_size) == (there.size, there.held_out_size)
    assert (here.shape, here.outputs) == (there.shape, there.outputs)
    assert unit is None or np.array_equal(here.unit, there.unit)
    for mapped, loaded in ((here.train, there.train), (here.held_out, there.held_out)):
        for one, other in zip(mapped.take_rows(np.arange(len(mapped))), loaded[:], strict=True):
            assert torch.equal(one, other)


def test_the_digest_names_the_content(folder):
    first = load_data(settings(folder / "rows.npy")).digest
    assert load_data(settings(folder / "rows.npy")).digest == first
    np.save(folder / "y.npy", np.zeros(50, dtype=int))
    assert load_data(settings(folder / "rows.npy")).digest != first


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("y.npy", np.full(50, 7), "labels among"),
        ("rows.npy", np.full((50, 4), np.nan), "must be finite"),
        ("who.npy", np.zeros(3), "one identifier for each"),
    ],
)
def test_rows_are_checked_before_the_run(folder, name, array, message):
    np.save(folder / name, array)
    with pytest.raises(ConfigurationError, match=message):
        load_data(settings(folder / "rows.npy", unit="who"))


def test_a_missing_target_is_named(folder):
    with pytest.raises(ConfigurationError, match=r"data\.target must name an \.npy file"):
        load_data(settings(folder / "rows.npy", target="label"))
