"""Features that were kept are found, checked and scaled; without them there is None."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from winsor_papers.reproductions.dc_dpsgd import tasks
from winsor_papers.reproductions.feature_cache import (
    cifar_features,
    features_folder,
    from_maps,
    kept_scattering,
)
from winsor_papers.reproductions.modelmix.transfer import Transfer, transfer_problem
from winsor_papers.reproductions.reproduction import Request

from winsor.core.contract import ConfigurationError

RNG = np.random.default_rng(0)


def write(folder, pixels, value=None, **left_out):
    arrays = {
        "x_train": RNG.normal(size=(200, 8)).astype(np.float32) if value is None
        else np.full((200, 8), value, np.float32),
        "y_train": np.arange(200) % 10, "x_test": RNG.normal(size=(20, 8)).astype(np.float32),
        "y_test": np.arange(20) % 10,
    }  # fmt: skip
    for name in left_out:
        del arrays[name]
    np.savez(folder / f"cifar10-efficientnet-lite0-{pixels}.npz", **arrays)


def test_the_largest_edge_is_read_with_rows_of_unit_length(tmp_path):
    assert cifar_features(tmp_path) is None
    write(tmp_path, 96)
    write(tmp_path, 224, value=3.0)
    found = cifar_features(tmp_path)
    assert found.pixels == 224 and "224 pixels" in found.describe()
    assert torch.allclose(found.train[0], torch.full((200, 8), 8**-0.5))
    assert found.test[1].tolist() == [i % 10 for i in range(20)]


def test_a_file_without_an_array_is_refused(tmp_path):
    write(tmp_path, 224, y_test=True)
    with pytest.raises(ConfigurationError, match="without y_test"):
        cifar_features(tmp_path)


def test_tables_use_kept_features_at_full_strength_only(tmp_path, monkeypatch):
    monkeypatch.setenv("WINSOR_FEATURES", str(tmp_path))
    assert features_folder() == tmp_path
    write(tmp_path, 224)
    tasks._features.cache_clear()
    request = Request(data=tmp_path)  # no images there: they are not needed
    full = tasks.task("CIFAR-10", request)
    tasks._features.cache_clear()
    assert full.train[0].shape == (200, 8) and full.tried
    assert "EfficientNet" in tasks.cifar_note(request)
    assert "histograms" in tasks.cifar_note(Request(quick=True))
    with pytest.raises(ConfigurationError, match="data must hold"):
        tasks.task("CIFAR-10", Request(quick=True, data=tmp_path))
    problem = transfer_problem(tmp_path, tmp_path, Transfer(rows=100, test_rows=10))
    assert (len(problem.train[1]), len(problem.test[1])) == (100, 10)
    assert problem.data.startswith("EfficientNet-Lite0 at 224, unit length, labels ")


def test_cells_on_features_are_found_again_on_another_processor(tmp_path, monkeypatch):
    monkeypatch.setenv("WINSOR_FEATURES", str(tmp_path))

    def named(name):
        tasks._features.cache_clear()
        found = tasks.task(name, Request(data=tmp_path))
        tasks._features.cache_clear()
        return found.data, found.train[0]

    write(tmp_path, 224, value=3.0)
    before, rows = named("CIFAR-10")
    write(tmp_path, 224)  # other bits of the same network's features
    after, others = named("CIFAR-10")
    assert before == after and not torch.equal(rows, others)
    assert named("CIFAR-10-HT")[0] != before  # other rows of the same
    write(tmp_path, 300)
    assert named("CIFAR-10")[0] != before


def test_features_are_the_first_numbers_of_kept_maps(tmp_path):
    maps = {part: RNG.normal(size=(n, 1300, 1, 1)).astype(np.float16)
            for part, n in (("train", 30), ("test", 20))}  # fmt: skip
    for part, rows in maps.items():
        np.save(tmp_path / f"some_maps_224-{part}.npy", rows)
    labels = tmp_path / "cifar10.npz"
    np.savez(labels, y_train=np.arange(30) % 10, y_test=np.arange(20) % 10)
    assert from_maps("some_maps_224", labels, tmp_path).name.endswith("-224.npz")
    found = cifar_features(tmp_path)
    first = torch.from_numpy(maps["test"][:, :1280, 0, 0]).float()
    assert torch.equal(found.test[0], torch.nn.functional.normalize(first))
    assert found.train[1].tolist() == [i % 10 for i in range(30)]
    np.savez(labels, y_train=np.arange(29) % 10, y_test=np.arange(20) % 10)
    with pytest.raises(ConfigurationError, match="each of the 29 labels"):
        from_maps("some_maps_224", labels, tmp_path)


def test_scattering_of_enough_rows_only(tmp_path):
    for part, count in (("train", 6), ("test", 4)):
        np.save(
            tmp_path / f"mnist-scattering-J2-L8-{part}.npy",
            RNG.normal(size=(count, 3, 2, 2)).astype(np.float16),
        )
    assert kept_scattering("mnist", (7, 4), tmp_path) is None
    assert kept_scattering("fashion_mnist", (6, 4), tmp_path) is None
    training, test = kept_scattering("mnist", (5, 4), tmp_path)
    assert training.shape == (5, 3, 2, 2) and len(test) == 4 and training.dtype == torch.float32
