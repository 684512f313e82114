"""Clipping in a learnt low-rank geometry: the map, its noise, what it learns, and the bound."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from winsor.rules.geometric import Geometric, _mapped

from winsor.core.contract import ConfigurationError, Released
from winsor.gradients.rows import RowsView
from winsor.rules.flat import Flat

SHAPES = {"w": torch.zeros(4, 5), "b": torch.zeros(())}
D, SIZE, STD = 21, 16.0, 0.5


def rows_of(matrix):
    return {"w": matrix[:, :20].reshape(-1, 4, 5), "b": matrix[:, 20]}


def flat_of(tree):
    return torch.cat([tree["w"].reshape(-1), tree["b"].reshape(-1)]).double()


def tree_of(vector):
    return {name: row[0] for name, row in rows_of(vector[None]).items()}


def clipped_sum(rule, matrix, state):
    return rule.contributions(RowsView(rows_of(matrix)), state)["grad"]


def after(rule, vector, state, std=STD):
    return rule.after(Released({"grad": tree_of(vector)}, {"grad": std}, 0), state)


def direction(seed=0):
    drawn = torch.randn(D, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm()


def learnt(rule, signal, steps=60, seed=1):
    """The state after released sums of ``signal`` per row and noise of ``STD`` in mapped units."""
    generator, state = torch.Generator().manual_seed(seed), rule.init(SHAPES, SIZE)
    for _ in range(steps):
        mapped = _mapped(SIZE * signal[None].double(), state["basis"], 1 / state["factors"])[0]
        noise = STD * torch.randn(D, generator=generator)
        _, state = after(rule, mapped.float() + noise, state)
    return state


def covariance(rule, state):
    """Of the released gradient, in units of the noise: the inverse map times its transpose."""
    columns = [flat_of(after(rule, unit, state)[0].values["grad"]) for unit in torch.eye(D)]
    inverse = torch.stack(columns, dim=1)
    return inverse @ inverse.T


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_without_power_or_before_anything_is_seen_it_is_flat(power):
    rule, signal = Geometric(1.0, power=power), 3 * direction()
    state = learnt(rule, signal) if power == 0 else rule.init(SHAPES, SIZE)
    matrix = torch.randn(9, D, generator=torch.Generator().manual_seed(2))
    expected = Flat(1.0).contributions(RowsView(rows_of(matrix)), {})["grad"]
    torch.testing.assert_close(clipped_sum(rule, matrix, state), expected)
    noisy = torch.randn(D, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(after(rule, noisy, state)[0].values["grad"], tree_of(noisy))


def test_it_learns_the_direction_of_released_gradients():
    state = learnt(Geometric(1.0, rank=3), 2 * direction())
    assert float((state["basis"][:, 0] @ direction()).abs()) > 0.99
    torch.testing.assert_close(state["basis"].T @ state["basis"], torch.eye(3), atol=1e-5, rtol=0)
    assert float(state["factors"][0]) > 1.5 > 1 > float(state["factors"][-1])


def test_noise_alone_leaves_the_map_near_the_identity():
    for seed in range(5):
        state = learnt(Geometric(1.0), torch.zeros(D), steps=200, seed=seed)
        assert float((state["factors"] - 1).abs().max()) < 0.2


def test_the_noise_is_larger_along_the_basis_and_in_all_that_of_flat_clipping():
    rule = Geometric(1.0, rank=3, power=2.0)
    state = learnt(rule, 2 * direction())
    found, basis = covariance(rule, state), state["basis"].double()
    squares = state["factors"].square()
    expected = squares[-1] * torch.eye(D) + basis @ torch.diag(squares[:-1] - squares[-1]) @ basis.T
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert float(found.trace()) == pytest.approx(D, rel=1e-5)
    along = float(direction().double() @ found @ direction().double())
    across = direction(7) - (direction(7) @ direction()) * direction()
    across = (across / across.norm()).double()
    assert along > 4
    assert float(across @ found @ across) < 0.9


def test_the_two_maps_are_inverses_of_each_other():
    state = learnt(Geometric(1.0, power=2.0), 2 * direction())
    rows = torch.randn(5, D, generator=torch.Generator().manual_seed(4)).double()
    there = _mapped(rows, state["basis"], 1 / state["factors"])
    assert not torch.allclose(there, rows, rtol=0.05)
    torch.testing.assert_close(
        _mapped(there, state["basis"], state["factors"]), rows, atol=1e-5, rtol=1e-5
    )


def test_short_rows_come_back_as_they_were():
    rule = Geometric(1e3, power=2.0)
    state = learnt(rule, 2 * direction())
    matrix = torch.randn(6, D, generator=torch.Generator().manual_seed(5))
    gradient, _ = after(rule, flat_of(clipped_sum(rule, matrix, state)).float(), state)
    torch.testing.assert_close(
        flat_of(gradient.values["grad"]), matrix.sum(0).double(), atol=1e-4, rtol=1e-4
    )


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=D, max_size=D),
    st.floats(1e-3, 1e3),
    st.sampled_from([0.5, 1.0, 4.0]),
)
def test_no_mapped_row_is_longer_than_the_threshold(row, threshold, power):
    rule = Geometric(threshold, rank=3, power=power)
    state = learnt(rule, 5 * direction(), steps=3)
    for matrix in (torch.tensor([row]), 1e30 * state["basis"].T, -1e30 * direction()[None]):
        for one in matrix:
            clipped = flat_of(clipped_sum(rule, one[None], state))
            assert clipped.isfinite().all()
            assert float(clipped.norm()) <= threshold


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_contributes_nothing(bad):
    rule = Geometric(1.0)
    state = learnt(rule, 2 * direction())
    good = torch.randn(3, D, generator=torch.Generator().manual_seed(6))
    broken = good[:1].clone()
    broken[0, 4] = bad
    expected = clipped_sum(rule, good, state)
    torch.testing.assert_close(clipped_sum(rule, torch.cat([good, broken]), state), expected)


def test_factors_stay_within_their_bounds_and_an_empty_batch_is_nothing():
    rule = Geometric(1.0, rank=2, power=8.0, widest=3.0)
    state = learnt(rule, 1e4 * direction(), steps=5)
    assert 1 / 3 <= float(state["factors"].min()) < 1 < float(state["factors"].max()) <= 3
    assert float(flat_of(clipped_sum(rule, torch.zeros(0, D), state)).norm()) == 0


def test_released_sums_of_nothing_without_noise_leave_it_as_it_was():
    rule = Geometric(1.0)
    _, state = after(rule, torch.zeros(D), rule.init(SHAPES, SIZE), std=0.0)
    torch.testing.assert_close(state["factors"], torch.ones(5, dtype=torch.float64))


def test_more_directions_than_coordinates_are_cut_and_one_coordinate_is_flat():
    assert Geometric(1.0, rank=50).init(SHAPES, SIZE)["basis"].shape == (D, D - 1)
    single = {"w": torch.zeros(1)}
    rule = Geometric(1.0)
    state = rule.init(single, SIZE)
    release = Released({"grad": {"w": torch.tensor([40.0])}}, {"grad": 1.0}, 0)
    for _ in range(3):
        gradient, state = rule.after(release, state)
        assert float(gradient.values["grad"]["w"]) == 40.0


def test_its_state_is_loaded_as_data_and_goes_on_alike():
    rule = Geometric(1.0)
    state = learnt(rule, 2 * direction())
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=True)
    noisy = torch.randn(D, generator=torch.Generator().manual_seed(8))
    one, other = after(rule, noisy, state), after(rule, noisy, again)
    assert torch.equal(one[0].values["grad"]["w"], other[0].values["grad"]["w"])
    assert torch.equal(one[1]["basis"], other[1]["basis"])


def test_signs_of_singular_vectors_do_not_matter():
    rule = Geometric(1.0)
    state = learnt(rule, 2 * direction())
    flipped = {**state, "basis": state["basis"] * torch.tensor([1.0, -1.0, -1.0, 1.0])}
    matrix = torch.randn(4, D, generator=torch.Generator().manual_seed(9))
    noisy = torch.randn(D, generator=torch.Generator().manual_seed(10))
    torch.testing.assert_close(clipped_sum(rule, matrix, state), clipped_sum(rule, matrix, flipped))
    one, other = after(rule, noisy, state)[1], after(rule, noisy, flipped)[1]
    torch.testing.assert_close(one["factors"], other["factors"])


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"rank": 1.5}, {"power": -1.0}, {"rate": 1.0}, {"widest": 0.5}]
)
def test_parameters_without_a_meaning_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Geometric(1.0, **wrong)
