"""Mirror images: the same shared features, and the order of channels that makes them so."""

from __future__ import annotations

import pytest
import torch

from winsor.core.contract import ConfigurationError
from winsor.features import MirrorShared, Scattering


def images(n=4, colours=None, side=28):
    """Smooth ones, as photographs are."""
    shape = (n, side, side) if colours is None else (n, colours, side, side)
    rough = torch.rand(*shape, generator=torch.Generator().manual_seed(0))
    flat = rough.reshape(-1, 1, side, side)
    return torch.nn.functional.avg_pool2d(flat, 3, 1, 1).reshape(shape)


def gap(one, two):
    return float((one - two).norm() / one.norm())


@pytest.mark.parametrize(("J", "L"), [(2, 8), (2, 6), (1, 4), (3, 4)])
def test_the_mirrored_image_has_the_same_coefficients_in_another_order(J, L):
    waves, x = Scattering(J, L, groups=None, centred=True), images(side=32)
    plain, turned = waves(x), waves(x.flip(-1))
    assert gap(turned, plain[:, MirrorShared(J, L).channels].flip(3)) < 0.02
    moved = Scattering(J, L, groups=None)
    apart = gap(moved(x.flip(-1)), moved(x)[:, MirrorShared(J, L).channels].flip(3))
    assert apart > 0.04  # places that are not centred are other places in the mirror


@pytest.mark.parametrize(
    ("colours", "side", "shape"), [(None, 28, (81, 7, 4)), (3, 32, (243, 8, 4))]
)
def test_an_image_and_its_mirror_image_share_their_features(colours, side, shape):
    waves, x = Scattering(groups=None, centred=True), images(colours=colours, side=side)
    one, two = (MirrorShared()(waves(rows)) for rows in (x, x.flip(-1)))
    assert one.shape[1:] == shape
    assert gap(one, two) < 0.02


def test_order_is_its_own_inverse_and_whole():
    for J, L in ((1, 4), (2, 8), (3, 6)):
        order = MirrorShared(J, L).channels
        assert len(order) == Scattering(J, L, groups=None).channels
        assert [order[place] for place in order] == list(range(len(order)))


def test_centred_places_lie_evenly():
    """A bright spot in the middle is seen alike from both sides."""
    x = torch.zeros(1, 28, 28)
    x[0, 13:15, 13:15] = 1.0
    mean = Scattering(groups=None, centred=True)(x)[0, 0]
    torch.testing.assert_close(mean, mean.flip(0).flip(1), rtol=0, atol=1e-4)
    assert float(mean[3, 3]) == float(mean.max())


def test_logarithms_are_taken_before_groups_are_normalised():
    x = images()
    plain = Scattering(groups=None, centred=True)(x)
    found = Scattering(groups=1, centred=True, floor=1e-3)(x)
    logs = (plain.clamp_min(0) + 1e-3).log()
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(logs, logs.shape[1:]))
    with pytest.raises(ConfigurationError, match="floor"):
        Scattering(floor=0.0)


def test_what_it_refuses():
    with pytest.raises(ConfigurationError, match="colours x 81"):
        MirrorShared()(torch.zeros(2, 80, 7, 7))
    with pytest.raises(ConfigurationError, match="L"):
        MirrorShared(L=0)
