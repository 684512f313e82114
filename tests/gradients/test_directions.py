"""Structured directions: unit norm, orthonormal where promised, reproducible."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from winsor.core.contract import ConfigurationError
from winsor.gradients.directions import bases, sketch_rows
from winsor.gradients.view import Directions

SHAPES = {"conv": (6, 4, 3, 3), "weight": (20, 30), "norm": (64,), "bias": (5,), "scalar": ()}


def matrix(directions: Directions, shapes: dict[str, tuple[int, ...]]) -> Tensor:
    """All directions as a (d, k) matrix: sketch every unit vector."""
    d = sum(math.prod(shape) for shape in shapes.values())
    eye = torch.eye(d, dtype=torch.float64)
    sizes = [math.prod(shape) for shape in shapes.values()]
    pieces = eye.split(sizes, dim=1)
    rows = {
        name: piece.reshape(d, *shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
    return sketch_rows(rows, directions)


@pytest.mark.parametrize("distribution", ["gaussian", "weibull"])
@pytest.mark.parametrize("k", [1, 7, 50])
def test_directions_have_unit_norm_and_are_nearly_orthogonal(distribution: str, k: int) -> None:
    columns = matrix(Directions(k, 5, distribution, theta=1.0), SHAPES)
    gram = columns.T @ columns
    torch.testing.assert_close(gram.diagonal(), torch.ones(k).double(), rtol=1e-6, atol=1e-6)
    d = sum(math.prod(shape) for shape in SHAPES.values())
    small = sum(math.prod(s) for s in SHAPES.values() if math.prod(s) < k) / d
    off = gram - torch.eye(k)
    assert float(off.abs().max()) <= small + 1e-6


def test_directions_are_orthonormal_when_every_parameter_is_large() -> None:
    columns = matrix(Directions(12, 0), {"a": (5, 4), "b": (3, 3, 3), "c": (40,)})
    torch.testing.assert_close(columns.T @ columns, torch.eye(12).double(), rtol=0, atol=1e-6)


def test_the_sketch_preserves_norms_in_the_mean() -> None:
    """E |V^T g|^2 = k/d |g|^2 over seeds, for a gradient that is spread over all parameters."""
    shapes = {"a": (8, 9), "b": (30,)}
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(1, *s, generator=generator).double() for name, s in shapes.items()}
    square = sum(float(r.square().sum()) for r in rows.values())
    seen = [float(sketch_rows(rows, Directions(10, seed)).square().sum()) for seed in range(400)]
    expected = 10 / 102 * square
    error = torch.tensor(seen).std() / len(seen) ** 0.5
    assert abs(sum(seen) / len(seen) - expected) < 4 * float(error)


def test_directions_depend_on_seed_and_name_only() -> None:
    a, b = {"w": torch.zeros(4, 5)}, {"w": torch.zeros(4, 5), "v": torch.zeros(4, 5)}
    one, other = bases(Directions(6, 1), a)["w"], bases(Directions(6, 1), b)
    ratio = math.sqrt(2)  # half of the coordinates: the factor c changes, the directions do not
    torch.testing.assert_close(one.u, other["w"].u * ratio)  # type: ignore[union-attr]
    assert not torch.allclose(other["w"].u, other["v"].u)  # type: ignore[union-attr]
    again = bases(Directions(6, 2), a)["w"]
    assert not torch.allclose(one.u, again.u)  # type: ignore[union-attr]


def test_weibull_draws_have_heavier_tails_for_larger_theta() -> None:
    def kurtosis(theta: float) -> float:
        basis = bases(Directions(1, 0, "weibull", theta), {"v": torch.zeros(20_000)})["v"]
        values = basis.values.double()  # type: ignore[union-attr]
        return float(values.pow(4).mean() / values.square().mean() ** 2)

    assert kurtosis(0.5) < kurtosis(1.0) < kurtosis(2.0)
    assert kurtosis(1.0) == pytest.approx(6.0, rel=0.15)  # symmetrised exponential: Laplace


@pytest.mark.parametrize(
    ("directions", "message"),
    [
        (Directions(0, 1), "k must be at least 1"),
        (Directions(3, 1, "cauchy"), "distribution must be"),
        (Directions(3, 1, theta=0.0), "theta must be positive"),
    ],
)
def test_bad_directions_are_refused(directions: Directions, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bases(directions, {"w": torch.zeros(3, 3)})
