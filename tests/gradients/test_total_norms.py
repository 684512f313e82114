"""What pieces share changes no norm: together they are the sum of each alone, and of float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients import Need, make_engine, recorded_view, trainable_parameters
from winsor.gradients.arithmetic import THETA
from winsor.gradients.parameter_rows import Factors, Rows
from winsor.gradients.recorded_view import total_square


class Attention(nn.Module):
    """Query, key and value as three layers that read one tensor."""

    def __init__(self, d: int, bias: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d, d, bias=bias) for _ in range(3))
        self.out = nn.Linear(d, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        h = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.out(h.mean(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [3, 9])
def test_three_readers_of_one_input_have_the_norms_of_the_oracle(length, bias, monkeypatch):
    torch.manual_seed(0)
    together, square = [], recorded_view.square_of_factors
    monkeypatch.setattr(
        recorded_view,
        "square_of_factors",
        lambda lefts, right: (together.append(len(lefts)), square(lefts, right))[1],
    )
    model = Attention(160, bias)
    x = torch.randn(5, length, 160)
    norms = {}
    for name in ("ghost", "loop"):
        engine = make_engine(
            model, trainable_parameters(model), name, Need.NORMS | Need.WEIGHTED_SUM
        )
        engine.attach()
        engine.recording(True)
        view = engine.view(F.cross_entropy(model(x), torch.arange(5) % 2, reduction="none"))
        norms[name] = view.norms().detach().clone()
        engine.detach()
    torch.testing.assert_close(norms["ghost"], norms["loop"], rtol=2e-5, atol=0)
    assert 3 in together


@pytest.mark.parametrize("places", [5, 64, 70])
def test_one_gram_matrix_gives_the_norms_of_each_alone(places):
    torch.manual_seed(0)
    right = torch.randn(3, places, 300)
    pieces = [Factors(torch.randn(3, places, out), right) for out in (300, 200, 300)]
    alone = sum(piece.square() for piece in pieces)
    torch.testing.assert_close(total_square(pieces), alone, rtol=1e-5, atol=0)


@pytest.mark.parametrize("left_over", [0.05, 1e-4])
def test_rows_that_cancel_are_held_to_a_part_of_their_places(left_over):
    """e_t = +-e and one x: every row's gradient nearly vanishes, its places do not."""
    torch.manual_seed(0)
    right = torch.randn(4, 1, 40).expand(4, 6, 40).contiguous()
    signs = torch.tensor([1.0, -1.0] * 3).view(1, 6, 1)
    noise = [left_over * torch.randn(4, 6, 50) for _ in range(3)]
    lefts = [torch.randn(4, 1, 50) * signs + each for each in noise]
    pieces = [Factors(left, right) for left in lefts]
    exact = sum((left.double().mT @ right.double()).square().sum((1, 2)) for left in lefts)
    lengths = right.double().norm(dim=2)
    gross = sum((left.double().norm(dim=2) * lengths).sum(1).square() for left in lefts)
    torch.testing.assert_close(total_square(pieces), exact + THETA * gross, rtol=1e-9, atol=0)


def test_other_inputs_of_the_same_shape_stay_apart():
    torch.manual_seed(0)
    pieces = [Factors(torch.randn(3, 2, 30), torch.randn(3, 2, 20)) for _ in range(3)]
    pieces.append(Rows(torch.randn(3, 7)))
    alone = sum(piece.square() for piece in pieces)
    torch.testing.assert_close(total_square(pieces), alone, rtol=1e-5, atol=0)
