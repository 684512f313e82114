"""One row of any magnitudes moves the sum of Value by its bound at most, with it and without it.

Inputs and output-gradients of the last row go through the whole range of their type, all alike or
each number for itself, beside rows of ordinary size.
"""

from __future__ import annotations

import pytest
import torch
from contrib_attacks import dropout, forward_sum, underflow
from torch import nn

from winsor.contrib.value.value import Value
from winsor.contrib.value.wgc import NetworkGrowth

MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(7, 5)), (7,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(60, 40, bias=False)), (60,)),
    "two layers": (lambda: nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3)), (7,)),
    "places": (lambda: nn.Sequential(nn.Linear(7, 5)), (6, 7)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, padding=1)), (2, 6, 6)),
    "few places": (lambda: nn.Sequential(nn.Conv2d(9, 20, 3, padding=1)), (9, 3, 3)),
    "bounded": (lambda: nn.Sequential(nn.Conv2d(8, 30, 5, 2, 2, groups=2)), (8, 6, 6)),
    "dilated": (lambda: nn.Sequential(nn.Conv1d(6, 40, 4, dilation=2, padding=3)), (6, 12)),
    "two convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 2, 3)), (2, 8, 8),
    ),
    "normalised": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(64)
        ),
        (2, 6, 6),
    ),
}  # fmt: skip
RANGE = {torch.float32: (-45.0, 38.5), torch.float64: (-320.0, 308.2)}


def hostile(shape, dtype, generator):
    """Numbers alike or each of its own size; +1, -1 in turn or normal."""
    low, high = RANGE[dtype]

    def draw(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    exponents = (low + (high - low) * draw(*([1] if draw(1) < 0.6 else shape))).expand(shape)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if draw(1) < 0.5:
        values = 1.0 - 2.0 * (torch.arange(values.numel()).view(shape) % 2)
    largest = torch.finfo(dtype).max
    return (values * 10.0**exponents).clamp(-largest, largest).to(dtype)


def moves(rule, make, shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = make().to(dtype)
    if seed % 3 == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 10.0 ** float(torch.rand(1) * 20 - 10)
    x = torch.randn(5, *shape, dtype=dtype)
    e = torch.randn(5, model(x)[0].numel(), dtype=dtype)
    x[-1], e[-1] = hostile(shape, dtype, generator), hostile(e.shape[1:], dtype, generator)
    both = [forward_sum(rule, model, x[:n], e[:n]) for n in (5, 4)]
    assert all(found.isfinite().all() for found in both)
    return float((both[0] - both[1]).div(rule.max_grad_norm).norm())


@pytest.mark.parametrize("dtype", RANGE, ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["outputs", "forward"])
def test_a_row_of_any_magnitudes_moves_the_sum_by_its_bound_at_most(form, name, dtype):
    make, shape = MODELS[name]
    for seed in range(12):
        bound = (1.0, 1e-5, 1e3, 1e-9)[seed % 4]
        assert moves(Value(bound, form=form), make, shape, dtype, seed) <= 1


@pytest.mark.parametrize("dtype", RANGE, ids=str)
@pytest.mark.parametrize(
    "rule", [Value(1e-5, form="value"), Value(1e-5, growth=NetworkGrowth())], ids=repr
)
def test_bounds_from_the_loss_value_hold_too(rule, dtype):
    def chain():
        return nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False))

    for seed in range(20):
        assert moves(rule, chain, (6,), dtype, seed) <= 1


def test_inputs_whose_squares_underflow_count_below_the_last_convolution():
    """In float32, 1e-23 squared is 0: the row moved the sum by 25 times its bound."""
    assert 0.1 < underflow() <= 1


@pytest.mark.parametrize("form", ["outputs", "forward"])
def test_dropout_has_the_mask_that_was_bounded_on_any_device(form):
    """Where a random state is not restored, a second forward pass draws another mask: there is
    none, even beside rows that are not finite."""
    largest, masks = dropout(form)
    assert largest <= 1
    assert masks == 40


def test_a_row_that_cancels_itself_is_bounded_by_what_rounding_leaves():
    """Two places at +-1e16 whose gradients cancel, and a third one of ordinary size."""
    model = nn.Sequential(nn.Linear(3, 2))
    x = torch.tensor([[[1e16, 1e16, 1.0], [1e16, 1e16, 1.0], [1.0, 2.0, 3.0]]])
    e = torch.tensor([[1e8, 1.0, -1e8, -1.0, 0.3, 0.1]])
    assert forward_sum(Value(1.0), model, x, e).norm() <= 1
