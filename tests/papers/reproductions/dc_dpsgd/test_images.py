"""Images, their features and their long-tailed versions, on small made-up files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from winsor_papers.reproductions.dc_dpsgd.features import featured
from winsor_papers.reproductions.dc_dpsgd.images import Images, load_images
from winsor_papers.reproductions.dc_dpsgd.longtail import long_tailed
from winsor_papers.reproductions.dc_dpsgd.printed import LONG_TAIL

from winsor.core.contract import ConfigurationError
from winsor.features.public import oriented_gradients
from winsor.training.losses import LdamDrw, exponential_profile


def write(path: Path, shape: tuple[int, ...] = (28, 28), rows: int = 40) -> None:
    generator = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = generator.integers(0, 256, (rows, *shape), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(rows) % 10).astype(np.uint8)
    np.savez(path, **arrays)


def test_grey_images_get_a_channel_and_public_scaling(tmp_path: Path) -> None:
    write(tmp_path / "mnist.npz")
    images = load_images("MNIST", tmp_path, rows=15)
    assert images.x.shape == (15, 1, 28, 28)
    assert images.x_test.shape == (40, 1, 28, 28)
    assert images.classes == 10
    with np.load(tmp_path / "mnist.npz") as file:
        expected = (file["x_train"][3, 5, 7] / 255 - 0.1307) / 0.3081
    assert float(images.x[3, 0, 5, 7]) == pytest.approx(expected, rel=1e-5)


def test_a_whole_cifar_is_preferred_to_the_subset(tmp_path: Path) -> None:
    write(tmp_path / "cifar10_20k_5k.npz", (3, 32, 32), rows=20)
    assert len(load_images("CIFAR-10", tmp_path).y) == 20
    write(tmp_path / "cifar10.npz", (3, 32, 32), rows=30)
    assert len(load_images("CIFAR-10", tmp_path).y) == 30


def test_a_missing_file_or_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"data must hold fashion_mnist.npz"):
        load_images("Fashion-MNIST", tmp_path)
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((1, 28, 28), np.uint8))
    with pytest.raises(ConfigurationError, match="without y_train, x_test, y_test"):
        load_images("MNIST", tmp_path)


def test_features_have_unit_norm_and_look_at_one_image_each() -> None:
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = oriented_gradients(x)
    assert features.shape == (6, 9 * 64 + 3 * 64)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(oriented_gradients(x[2:3])[0], features[2])


def test_an_edge_votes_for_its_own_direction() -> None:
    x = torch.zeros(1, 1, 8, 8)
    x[..., 4:] = 1.0  # brightness changes from left to right: direction 0
    histogram = oriented_gradients(x)[0, : 9 * 4].view(9, 4)
    assert float(histogram[0].sum()) > 0
    assert float(histogram[1:].abs().sum()) == 0


def test_features_replace_pixels(tmp_path: Path) -> None:
    write(tmp_path / "cifar10.npz", (3, 32, 32), rows=12)
    images = load_images("CIFAR-10", tmp_path)
    made = featured(images)
    assert made.x.shape == made.x_test.shape == (12, 768)
    assert torch.equal(made.y, images.y)


def test_profiles_are_those_that_the_paper_lists() -> None:
    assert exponential_profile(5000, 10) == LONG_TAIL["CIFAR-10-HT"]
    mine = exponential_profile(946, 10)
    assert all(abs(a - b) <= 1 for a, b in zip(mine, LONG_TAIL["ImageNette-HT"], strict=True))


def test_long_tailed_keeps_the_profile_and_the_test_rows() -> None:
    y = torch.arange(3).repeat(20)
    images = Images("toy", torch.arange(60.0)[:, None], y, torch.zeros(3, 1), torch.arange(3))
    made = long_tailed(images, (20, 6, 2))
    assert made.y.bincount().tolist() == [20, 6, 2]
    assert made.name == "toy-HT"
    assert torch.equal(made.x_test, images.x_test)
    with pytest.raises(ConfigurationError, match="class 0 of toy must have at least 21 rows"):
        long_tailed(images, (21, 1, 1))


def test_rare_classes_get_larger_margins_and_later_larger_weights() -> None:
    loss = LdamDrw((1000, 100, 10))
    margins = loss.margins()
    torch.testing.assert_close(margins, 0.5 * torch.tensor([0.01, 0.1, 1.0]) ** 0.25)
    weights = loss.weights()
    assert weights[0] < weights[1] < weights[2]
    assert float(weights.mean()) == pytest.approx(1.0)
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 2, 1])
    shifted = logits.clone()
    shifted[torch.arange(5), labels] -= margins[labels]
    early = loss(logits, labels, 0.79)
    torch.testing.assert_close(early, F.cross_entropy(shifted, labels, reduction="none"))
    torch.testing.assert_close(loss(logits, labels, 0.8), early * weights[labels])
