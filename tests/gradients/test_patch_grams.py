"""Gram matrices of patches are those of the unfolded input, and give the norms of the oracle."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients import Need, make_engine, trainable_parameters
from winsor.gradients.layers import convolution
from winsor.gradients.layers.convolution import ConvolutionPiece, Geometry
from winsor.gradients.layers.patches import Axis, patch_grams
from winsor.gradients.parameter_rows import NORM_FLOOR


@pytest.mark.parametrize(
    "kernel,stride,padding,dilation",
    [
        *itertools.product([1, 3], [1, 2], [0, 1], [1, 2]),
        (2, 3, 1, 1),
        (4, 1, 3, 1),
        (3, 1, 6, 3),
        (5, 4, 2, 1),
    ],
)
def test_patches_overlap_as_their_pixels_do(kernel, stride, padding, dilation):
    x = torch.randn(3, 4, 9, 7, generator=torch.Generator().manual_seed(0)).double()
    unfolded = F.unfold(x, kernel, dilation, padding, stride)
    lengths = [(side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for side in (9, 7)]
    axes = [Axis(kernel, stride, padding, dilation, length) for length in lengths]
    torch.testing.assert_close(patch_grams(x, axes), unfolded.mT @ unfolded)


MAPS = {
    "plain": (lambda: nn.Conv2d(6, 8, 3, padding=1), (6, 5, 4)),
    "strided": (lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False), (6, 7, 5)),
    "dilated": (lambda: nn.Conv2d(6, 8, 3, dilation=2, padding=2), (6, 6, 5)),
    "grouped": (lambda: nn.Conv2d(6, 9, (3, 2), groups=3), (6, 5, 4)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, padding="same", groups=6), (6, 5, 4)),
    "circular": (lambda: nn.Conv2d(6, 8, 3, padding=1, padding_mode="circular"), (6, 5, 4)),
    "of sequences": (lambda: nn.Conv1d(6, 8, 5, padding=2, stride=2), (6, 9)),
    "of volumes": (lambda: nn.Conv3d(4, 5, (1, 2, 3), padding=(0, 1, 1)), (4, 3, 3, 3)),
}


def norms(model: nn.Module, x: Tensor, slopes: Tensor, name: str) -> Tensor:
    engine = make_engine(model, trainable_parameters(model), name, Need.NORMS | Need.WEIGHTED_SUM)
    engine.attach()
    engine.recording(True)
    found = engine.view((model(x) * slopes).flatten(1).sum(1)).norms().detach()
    engine.detach()
    return found


@pytest.mark.parametrize("rows_at_once", [1 << 22, 300])
@pytest.mark.parametrize("name", MAPS)
def test_ghost_norms_of_convolutions_are_those_of_the_oracle(name, rows_at_once, monkeypatch):
    torch.manual_seed(0)
    asked = []
    ghosts = ConvolutionPiece._ghosts
    monkeypatch.setattr(
        ConvolutionPiece, "_ghosts", lambda piece: (asked.append(1), ghosts(piece))[1]
    )
    monkeypatch.setattr(convolution, "costs_of_convolution", lambda *_: {"ghost": 1.0})
    monkeypatch.setattr(convolution, "ROWS_AT_ONCE", rows_at_once)
    make, shape = MAPS[name]
    model, x = make(), torch.randn(7, *shape)
    slopes = torch.randn_like(model(x))
    found = norms(model, x, slopes, "ghost")
    exact = norms(model.double(), x.double(), slopes.double(), "loop")
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    assert asked


@pytest.mark.parametrize("left_over", [3.0, 1e-3])
def test_places_that_cancel_are_formed_and_held(left_over):
    torch.manual_seed(0)
    half = torch.randn(4, 8, 2, 4)
    x = torch.randn(4, 6, 1, 1).expand(4, 6, 4, 4) + 0.0
    g = torch.cat([half, -half], dim=2) * 100.0
    g = g + left_over * torch.randn_like(g)
    geometry = Geometry((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    piece = ConvolutionPiece(x, g, torch.Size((8, 6, 1, 1)), geometry, ghost=True)
    exact = torch.einsum("nohw,nihw->noi", g.double(), x.double()).square().sum((1, 2))
    held = NORM_FLOOR * (g.double().square().sum(1) * x.double().square().sum(1)).sum((1, 2))
    assert bool((exact > held).all()) == (left_over > 1)
    torch.testing.assert_close(
        piece.square().double(), torch.maximum(exact, held), rtol=2e-5, atol=0
    )


def test_few_places_and_many_channels_are_ghosts_and_many_places_are_rows():
    def cheapest(channels: int, side: int) -> str:
        x = torch.empty(2, channels, side, side)
        shape = torch.Size((channels, channels, 3, 3))
        geometry = Geometry((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
        costs = convolution.costs_of_convolution(x, x, shape, geometry)
        return min(costs, key=lambda way: costs[way])

    assert [cheapest(16, 32), cheapest(32, 16)] == ["rows", "rows"]
    assert [cheapest(64, 8), cheapest(128, 8), cheapest(256, 4)] == ["ghost"] * 3
