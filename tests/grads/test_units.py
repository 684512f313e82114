"""Units: the gradient of a unit is the sum of its rows' gradients, for every layer."""

from __future__ import annotations

import engine_zoo as zoo
import pytest
import torch
from layer_zoo import MODELS
from torch import nn

from winsor.contract import ConfigurationError
from winsor.grads import make_engine, trainable_parameters
from winsor.grads.rows import RowsView
from winsor.grads.units import Units, units_view
from winsor.grads.view import Need
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
    clean = units_view(clean, Units([2, 3, 1]))
    x[3] = float("inf")
    _, view = zoo.make_view(model, x, "ghost", lambda out: out.square().sum(1) * 1e30)
    view = units_view(view, Units([2, 3, 1]))
    assert view.neutralised >= 1
    assert view.norms()[1] == 0
    assert torch.isfinite(view.weighted_sum(torch.ones(3))["0.weight"]).all()
    assert clean.norms()[1] > 0


@pytest.mark.parametrize("needs", [Need.LOSSES | Need.MEAN, Need.LOSSES | Need.WEIGHTED_SUM])
def test_rules_that_need_no_norms_see_units_too(needs):
    torch.manual_seed(0)
    model, x, sizes = nn.Linear(4, 2), torch.randn(6, 4), [2, 3, 1]
    expected = oracle(model, x, sizes)
    engine = make_engine(model, trainable_parameters(model), "ghost", needs)
    engine.attach()
    engine.recording(True)
    view = units_view(engine.view(zoo.square_loss(model(x))), Units(sizes))
    assert view.size == 3
    zoo.close(view.losses(), expected.losses(), 1e-5)
    if Need.WEIGHTED_SUM in needs:
        weights = torch.tensor([0.3, 1.2, 0.5])
        zoo.close_trees(view.weighted_sum(weights), expected.weighted_sum(weights), 1e-5)
    zoo.close_trees(view.total(), expected.total(), 1e-5)


def test_bounds_from_the_forward_pass_are_of_rows_and_refuse_units():
    model = nn.Sequential(nn.Linear(4, 2))
    rule = Value(1.0)
    engine = make_engine(model, trainable_parameters(model), "auto", rule.needs)
    engine.attach()
    engine.recording(True)
    view = engine.view(zoo.square_loss(model(torch.randn(4, 4))))
    with pytest.raises(ConfigurationError, match="see rows, not units"):
        units_view(view, Units([2, 2]))
