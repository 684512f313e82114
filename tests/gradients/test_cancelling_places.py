"""Places of a row (or rows of a person) that cancel leave a short gradient and much rounding.

Where 1e7 and -1e7 meet, rounding is that of 1e7, however small their sum is: a row that is long in
its places must not pass for a short one.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from winsor.gradients.arithmetic import THETA
from winsor.gradients.engine import make_engine
from winsor.gradients.layers.convolution import ConvolutionPiece, Geometry
from winsor.gradients.parameters import trainable_parameters
from winsor.gradients.units import Units, units_view
from winsor.rules import Flat, PerLayer
from winsor.rules.rule import Rule

ROWS, PLACES = 8, 16


def shift(
    model: nn.Module, inputs: tuple[Tensor, ...], slopes: Tensor, rule: Rule, units: int = 0
) -> float:
    """How far the sum over the batch moves when the last row (or unit) leaves it."""
    parameters = trainable_parameters(model)
    engine = make_engine(model, parameters, "auto", rule.needs)
    engine.attach()
    engine.recording(True)
    state = rule.init(dict(parameters), float(ROWS))
    sums = []
    for count in (len(slopes), len(slopes) - max(units, 1)):
        out = model(*(part[:count] for part in inputs))
        view = engine.view((out * slopes[:count]).flatten(1).sum(1))
        if units:
            view = units_view(view, Units([units] * (count // units)))
        found = rule.contributions(view, state)["grad"]
        sums.append({name: leaf.double().clone() for name, leaf in found.items()})
    squares = [(sums[0][name] - sums[1][name]).square().sum() for name in parameters]
    return float(torch.stack(squares).sum().sqrt())


def opposed(*shape: int) -> Tensor:
    """(PLACES, *shape) slopes of which one half is the other's negative, in random order."""
    half = torch.randn(PLACES // 2, *shape)
    return torch.cat([half, -half])[torch.randperm(PLACES)]


def linear(width: int) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    x, slopes = torch.randn(ROWS, PLACES, width), torch.randn(ROWS, PLACES, width)
    x[-1] = torch.randn(width) * 1e7
    slopes[-1] = opposed(width)
    return nn.Linear(width, width), (x,), slopes


def convolution(kind: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    model = kind(12, 12, 1)
    x, slopes = torch.randn(ROWS, 12, 4, 4), torch.randn(ROWS, 12, 4, 4)
    x[-1] = torch.randn(12, 1, 1) * 1e7
    slopes[-1] = opposed(12).T.reshape(12, 4, 4)
    return model, (x,), slopes


def embedding() -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    tokens, slopes = torch.randint(0, 50, (ROWS, 2 * PLACES)), torch.randn(ROWS, 2 * PLACES, 30)
    tokens[-1, :PLACES] = 3  # one token cancels; the others are long, but short beside it
    slopes[-1] *= 50.0
    slopes[-1, :PLACES] = opposed(30) * 1e7
    return nn.Embedding(50, 30), (tokens,), slopes


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 30, mode="sum")

    def forward(self, tokens: Tensor, shares: Tensor) -> Tensor:
        return self.bag(tokens, per_sample_weights=shares)


def bag() -> tuple[nn.Module, tuple[Tensor, ...], Tensor]:
    tokens, shares = torch.randint(0, 50, (ROWS, PLACES)), torch.randn(ROWS, PLACES)
    tokens[-1] = 3
    shares[-1] = opposed() * 1e7
    return Bag(), (tokens, shares), torch.randn(ROWS, 30)


CASES = {
    "linear, by Gram matrices": lambda: linear(300),
    "linear, by rows": lambda: linear(6),
    "convolution": lambda: convolution(nn.Conv2d),
    "transposed convolution": lambda: convolution(nn.ConvTranspose2d),
    "embedding": embedding,
    "bag": bag,
}


@pytest.mark.parametrize("rule", [Flat(1.0), PerLayer(1.0)], ids=["flat", "per layer"])
@pytest.mark.parametrize("case", CASES)
def test_a_row_whose_places_cancel_moves_the_sum_by_its_bound(case, rule):
    torch.manual_seed(0)
    model, inputs, slopes = CASES[case]()
    assert shift(model, inputs, slopes, rule) <= 1


@pytest.mark.parametrize("width", [300, 6])
@pytest.mark.parametrize("rule", [Flat(1.0), PerLayer(1.0)], ids=["flat", "per layer"])
def test_a_person_whose_rows_cancel_moves_the_sum_by_the_bound(rule, width):
    torch.manual_seed(0)
    x, slopes = torch.randn(4 * PLACES, width), torch.randn(4 * PLACES, width)
    x[-PLACES:] = torch.randn(width) * 1e7
    slopes[-PLACES:] = opposed(width)
    model = nn.Linear(width, width)
    assert shift(model, (x,), slopes, rule, units=PLACES) <= 1


def test_a_person_whose_convolutions_cancel_moves_the_sum_by_the_bound():
    torch.manual_seed(0)
    x, slopes = torch.randn(4 * PLACES, 12, 4, 4), torch.randn(4 * PLACES, 12, 4, 4)
    x[-PLACES:] = torch.randn(12, 4, 4) * 1e7
    slopes[-PLACES:] = opposed(12, 4, 4)
    assert shift(nn.Conv2d(12, 12, 3, padding=1), (x,), slopes, Flat(1.0), units=PLACES) <= 1


def test_tied_weights_that_cancel_move_the_sum_by_the_bound():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(40, 40, bias=False)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.stack([self.inner(x), self.inner(y)], 1)

    torch.manual_seed(0)
    x, slopes = torch.randn(ROWS, 40), torch.randn(ROWS, 2, 40)
    x[-1] *= 1e7
    slopes[-1, 1] = -slopes[-1, 0]
    assert shift(Tied(), (x, x.clone()), slopes, Flat(1.0)) <= 1


@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution_is_a_linear_map_of_its_patches(groups):
    torch.manual_seed(0)
    x, g = torch.randn(2, 6, 7, 7), torch.randn(2, 6, 4, 4)
    geometry = Geometry((2, 2), (1, 1), (1, 1), False, (0, 0), groups)
    shape = torch.Size((6, 6 // groups, 3, 3))
    piece = ConvolutionPiece(x, g, shape, geometry)
    patches = nn.functional.unfold(x, 3, 1, 1, 2).unflatten(1, (groups, -1)).norm(dim=2)
    gross = (patches * g.flatten(2).unflatten(1, (groups, -1)).norm(dim=2)).sum(2)
    torch.testing.assert_close(piece.gross(2), gross.norm(dim=1).double())
    torch.testing.assert_close(piece.rows(0, 2).float(), geometry.rows(x, g, shape))
    rows = geometry.rows(x.double(), g.double(), shape)
    expected = rows.flatten(1).square().sum(1) + THETA * gross.double().square().sum(1)
    torch.testing.assert_close(piece.square(), expected)
