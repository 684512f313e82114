"""RowsView is the plainest reading of the View protocol."""

from __future__ import annotations

import pytest
import torch

from winsor.core.contract import ConfigurationError
from winsor.gradients.directions import sketch_rows
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Directions, View

NAN, INF = float("nan"), float("inf")


def some_rows(n=5):
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(n, 3, 2, generator=generator).double(),
        "b": torch.randn(n, 3, generator=generator).double(),
        "c": torch.randn(n, generator=generator).double(),  # a parameter without dimensions
    }


def broken_rows():
    """Rows 1 (NaN), 2 (inf), 3 (beyond 2^250) and 4 (loss inf) are to be neutralised."""
    rows = some_rows(6)
    rows["a"][1, 0, 0] = NAN
    rows["b"][2, 1] = -INF
    rows["a"][3] = 1e80
    return rows, torch.tensor([1.0, 2.0, 3.0, 4.0, INF, 6.0])


def stacked(rows):
    return torch.cat([t.reshape(len(t), -1) for t in rows.values()], dim=1)


def test_it_is_a_view():
    assert isinstance(RowsView(some_rows()), View)


def test_norms_and_group_norms():
    rows = some_rows()
    view = RowsView(rows)
    torch.testing.assert_close(view.norms(), stacked(rows).norm(dim=1))
    groups = view.group_norms([["a", "c"], ["b"], []])
    expected = torch.stack(
        [stacked({"a": rows["a"], "c": rows["c"]}).norm(dim=1), rows["b"].norm(dim=1)], dim=1
    )
    torch.testing.assert_close(groups[:, :2], expected)
    assert groups[:, 2].eq(0).all()


def test_weighted_sum_with_one_weight_per_row_and_per_parameter():
    rows = some_rows()
    view, weights = RowsView(rows), torch.arange(5.0)
    summed = view.weighted_sum(weights)
    for name, tensor in rows.items():
        expected = sum(weights[i] * tensor[i] for i in range(5))
        torch.testing.assert_close(summed[name], expected)
    by_name = view.weighted_sum({"a": weights, "b": weights + 1, "c": torch.zeros(5)})
    torch.testing.assert_close(by_name["a"], summed["a"])
    torch.testing.assert_close(by_name["b"], summed["b"] + rows["b"].sum(0))
    assert by_name["c"] == 0


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_map_sum_maps_rows_in_chunks(chunk):
    rows = some_rows()
    sizes = []

    def double(part):
        sizes.append(len(part["a"]))
        return {name: 2 * tensor for name, tensor in part.items()}

    mapped = RowsView(rows, chunk=chunk).map_sum(double)
    assert sum(sizes) == 5
    assert max(sizes) <= chunk
    for name, tensor in rows.items():
        torch.testing.assert_close(mapped[name], 2 * tensor.sum(0))


def test_sketch_is_that_of_the_rows():
    rows, directions = some_rows(), Directions(4, 1, "weibull", 2.0)
    expected = sketch_rows({**rows, "c": rows["c"][:, None]}, directions)
    torch.testing.assert_close(RowsView(rows).sketch(directions), expected)


def test_broken_rows_are_neutralised_everywhere_but_in_the_total():
    rows, losses = broken_rows()
    view = RowsView(rows, losses)
    kept = [0, 5]
    good = RowsView({name: t[kept] for name, t in rows.items()}, losses[kept])
    assert (view.size, view.neutralised) == (6, 4)
    assert view.norms()[[1, 2, 3, 4]].eq(0).all()
    torch.testing.assert_close(view.norms()[kept], good.norms())
    assert view.losses().tolist() == [1.0, 2.0, 3.0, 4.0, 0.0, 6.0]
    directions = Directions(4, 1)
    assert view.sketch(directions)[[1, 2, 3, 4]].eq(0).all()
    torch.testing.assert_close(view.sketch(directions)[kept], good.sketch(directions))
    # Weights of neutralised rows are irrelevant, whatever they are.
    weights = torch.tensor([1.0, NAN, INF, 5.0, -INF, 2.0])
    for name, expected in good.weighted_sum(weights[kept]).items():
        torch.testing.assert_close(view.weighted_sum(weights)[name], expected)
    # A map that turns zero into something else must not see them either.
    mapped = view.map_sum(lambda part: {name: t + 1 for name, t in part.items()})
    for name, tensor in rows.items():
        torch.testing.assert_close(mapped[name], (tensor[kept] + 1).sum(0))
    assert view.total()["a"].isnan().any()


def test_huge_rows_have_finite_norms():
    view = RowsView({"a": torch.full((2, 4), 1e30)})
    assert view.neutralised == 0
    torch.testing.assert_close(view.norms(), torch.full((2,), 2e30).double(), rtol=1e-7, atol=0)


def test_an_empty_batch():
    rows = some_rows(0)
    view = RowsView(rows, torch.zeros(0))
    assert view.size == view.neutralised == 0
    assert view.norms().shape == (0,)
    assert view.sketch(Directions(4, 1)).shape == (0, 4)
    sums = (view.total(), view.weighted_sum(torch.zeros(0)), view.map_sum(lambda part: part))
    for tree in sums:
        assert {name: tuple(t.shape) for name, t in tree.items()} == {
            "a": (3, 2),
            "b": (3,),
            "c": (),
        }
        assert all(t.eq(0).all() for t in tree.values())


@pytest.mark.parametrize(
    "rows, losses, message",
    [
        ({}, None, "at least one parameter"),
        ({"a": torch.zeros(2, 2, dtype=torch.long)}, None, "floating-point"),
        ({"a": torch.tensor(1.0)}, None, r"\(n, \*shape\)"),
        ({"a": torch.zeros(2, 2), "b": torch.zeros(3, 2)}, None, "number of rows"),
        ({"a": torch.zeros(2, 2)}, torch.zeros(3), "number of rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, losses, message):
    with pytest.raises(ConfigurationError, match=message):
        RowsView(rows, losses)
