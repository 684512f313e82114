"""Units: the gradient of a unit is the sum of its rows' gradients, for every layer."""

from __future__ import annotations

import engine_zoo as zoo
import pytest
import torch
from layer_zoo import MODELS
from torch import nn

from winsor.core.contract import ConfigurationError
from winsor.gradients import make_engine, trainable_parameters
from winsor.gradients.arithmetic import THETA
from winsor.gradients.buffers import Layout
from winsor.gradients.parameter_rows import Outer, Rows
from winsor.gradients.recorded_view import RecordedView
from winsor.gradients.rows import RowsView
from winsor.gradients.units import Units, units_view
from winsor.gradients.view import Need
from winsor.rules import Value


def oracle(model, x, sizes):
    """The rows of the loop engine, added up unit by unit in plain Python."""
    _, view = zoo.make_view(model, x, "loop")
    rows, losses = {}, []
    for name, values in view.raw.items():
        rows[name] = torch.stack([part.sum(0) for part in values.split(sizes)])
    losses = torch.stack([part.sum() for part in view.raw_losses.split(sizes)])
    return RowsView(rows, losses)


def sizes_for(n):
    """Uneven units; of one row, and of several."""
    return [n] if n < 3 else [1, n - 2, 1]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_units_equal_the_sum_of_their_rows_on_every_layer(name, engine):
    make, draw = MODELS[name]
    torch.manual_seed(0)
    model, x = make().double(), draw()
    x = x.double() if x.is_floating_point() else x
    names = list(trainable_parameters(model))
    for sizes in (sizes_for(len(x)), [len(x)], [1] * len(x)):
        _, view = zoo.make_view(model, x, engine)
        zoo.assert_same_views(
            units_view(view, Units(sizes)), oracle(model, x, sizes), names, rtol=1e-9
        )


@pytest.mark.parametrize("sizes", [[2, 2, 2], [3, 3], [1, 4, 1]])
def test_even_and_uneven_units_agree_with_plain_sums(sizes):
    units = Units(sizes)
    x = torch.randn(6, 3, 2)
    parts = x.split(sizes)
    assert torch.allclose(units.summed(x), torch.stack([p.sum(0) for p in parts]))
    wide = units.padded(x, -1.0)
    assert wide.shape == (len(sizes), max(sizes) * 3, 2)
    for row, part in zip(wide, parts, strict=True):
        assert torch.equal(row[: 3 * len(part)], part.flatten(0, 1))
        assert (row[3 * len(part) :] == -1).all()
    assert units.spread(torch.arange(len(sizes))).tolist() == [
        u for u, size in enumerate(sizes) for _ in range(size)
    ]


def test_a_row_that_is_not_finite_silences_its_unit_and_no_other():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), torch.randn(6, 4)
    _, clean = zoo.make_view(model, x, "ghost")
    clean = units_view(clean, Units([2, 3, 1])).norms()
    x[3] = float("inf")
    _, view = zoo.make_view(model, x, "ghost", lambda out: out.square().sum(1) * 1e30)
    view = units_view(view, Units([2, 3, 1]))
    assert view.neutralised >= 1
    assert view.norms()[1] == 0
    assert torch.isfinite(view.weighted_sum(torch.ones(3))["0.weight"]).all()
    assert clean[1] > 0


def test_rules_that_need_no_norms_see_units_too():
    torch.manual_seed(0)
    model, x, sizes = nn.Linear(4, 2), torch.randn(6, 4), [2, 3, 1]
    expected = oracle(model, x, sizes)
    engine = make_engine(model, trainable_parameters(model), "ghost", Need.LOSSES | Need.MEAN)
    engine.attach()
    engine.recording(True)
    view = units_view(engine.view(zoo.square_loss(model(x))), Units(sizes))
    assert view.size == 3
    zoo.close(view.losses(), expected.losses(), 1e-5)
    zoo.close_trees(view.total(), expected.total(), 1e-5)


def test_bounds_from_the_forward_pass_are_of_rows_and_refuse_units():
    model = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))  # linear layers alone have norms
    rule = Value(1.0)
    engine = make_engine(model, trainable_parameters(model), "auto", rule.needs)
    engine.attach()
    engine.recording(True)
    view = engine.view(zoo.square_loss(model(torch.randn(4, 4))))
    with pytest.raises(ConfigurationError, match="see rows, not units"):
        units_view(view, Units([2, 2]))


def grouped_norms(model, x, sizes):
    _, view = zoo.make_view(model, x, "ghost")
    return units_view(view, Units(sizes))


@pytest.mark.parametrize("left_over", [0.05, 1e-5])
def test_units_whose_rows_cancel_are_held_to_a_part_of_their_rows(left_over):
    """Rows in pairs of opposite sign, but for a little."""
    torch.manual_seed(0)
    model = nn.Linear(50, 40, bias=False)
    x = torch.randn(3, 1, 50) * torch.tensor([1.0, -1.0, 1.0, -1.0]).view(1, 4, 1)
    x = (x + left_over * torch.randn(3, 4, 50)).reshape(12, 50)
    view = RecordedView(
        dict(model.named_parameters()),
        {"weight": Outer(Rows(torch.ones(12, 40)), Rows(x))},
        torch.zeros(12, requires_grad=True),
        Layout(dict(model.named_parameters())),
    )
    exact = x.double().view(3, 4, 50).sum(1).norm(dim=1) * 40**0.5
    apart = x.double().view(3, 4, 50).norm(dim=2).sum(1) * 40**0.5
    found = units_view(view, Units([4, 4, 4])).norms()
    torch.testing.assert_close(found, torch.hypot(exact, apart * THETA**0.5), rtol=1e-9, atol=0)


def test_a_unit_of_rows_that_cancel_is_the_same_whatever_units_there_are():
    torch.manual_seed(0)
    rows = torch.randn(7, 5, dtype=torch.float64) * 1e16
    rows[1] = -rows[0] + 1
    alone = Units([2]).summed(rows[:2])
    assert torch.equal(Units([2, 2]).summed(rows[:4])[:1], alone)
    assert torch.equal(Units([2, 5]).summed(rows)[:1], alone)


def test_a_unit_with_a_row_that_is_not_finite_contributes_nothing():
    torch.manual_seed(0)
    model, x = nn.Linear(30, 20), torch.randn(12, 30)
    x[5] = torch.inf
    view = grouped_norms(model, x, [4, 4, 4])
    names = list(trainable_parameters(model))
    assert view.neutralised == 1 and view.norms()[1] == 0
    clean = oracle(model, torch.where(x.isfinite(), x, 0.0), [4, 4, 4])
    weights = torch.tensor([0.5, 0.0, 2.0])
    found, expected = view.weighted_sum(torch.tensor([0.5, 1.0, 2.0])), clean.weighted_sum(weights)
    for name in names:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
