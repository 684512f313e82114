"""Gradient embedding: two clipped parts, one public basis, and its mixing form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor.contrib.embedding.embedding import Basis, Embedding, PublicBasis, RandomBasis
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor.core.contract import ConfigurationError, Released, UnsoundRelease
from winsor.gradients.rows import RowsView

PARAMETERS = {"w": torch.zeros(3, 2), "b": torch.zeros(4)}
FIRST_TWO = PublicBasis(torch.eye(10)[:2])


def tree(matrix):
    return {"w": matrix[:, :6].reshape(-1, 3, 2), "b": matrix[:, 6:]}


def parts_of(rule, matrix):
    state = rule.init(PARAMETERS, 4.0)
    return rule.bounded(rule.contributions(RowsView(tree(matrix)), state), state), state


def flat(value):
    return torch.cat([value["w"].flatten(), value["b"]]).double()


def row(*leading):
    return torch.tensor([[*leading, *[0.0] * (10 - len(leading))]])


# -------------------------------------------------------------------------------------- clipping


def test_both_parts_by_hand():
    parts, _ = parts_of(Embedding(5.0, 1.0, FIRST_TWO), row(6.0, 8.0, 0.0, 3.0, 4.0))
    torch.testing.assert_close(
        parts["embedded"].value, torch.tensor([3.0, 4.0]).double(), rtol=2e-4, atol=0
    )
    expected = row(0.0, 0.0, 0.0, 0.6, 0.8)[0].double()
    torch.testing.assert_close(flat(parts["residual"].value), expected, rtol=2e-4, atol=1e-7)
    assert parts["embedded"].sensitivity.add_remove == 5.0
    assert parts["residual"].sensitivity.add_remove == 1.0
    assert parts["embedded"].share == parts["residual"].share == 0.5


def test_short_rows_come_back_whole():
    matrix = torch.randn(3, 10, generator=torch.Generator().manual_seed(1)) * 0.1
    rule = Embedding(10.0, 10.0, RandomBasis(4, seed=3))
    parts, state = parts_of(rule, matrix)
    released = Released({name: part.value for name, part in parts.items()}, {}, 0)
    gradient, after = rule.after(released, state)
    grad = gradient.values["grad"]
    torch.testing.assert_close(flat(grad), matrix.sum(0).double(), rtol=1e-5, atol=1e-6)
    assert after["step"] == 1
    assert after["basis"] is state["basis"]
    together, _ = parts_of(Embedding(10.0, 10.0, RandomBasis(4, seed=3), joint=False), matrix)
    torch.testing.assert_close(
        flat(together["grad"].value), matrix.sum(0).double(), rtol=1e-5, atol=1e-6
    )


@given(st.floats(-40, 36), st.integers(0, 500), st.sampled_from(["any", "inside", "outside"]))
def test_bounds_hold_for_every_row(exponent, seed, where):
    generator = torch.Generator().manual_seed(seed)
    basis = RandomBasis(3, seed=seed % 7)
    vectors = basis.directions(PARAMETERS)
    matrix = torch.randn(1, 10, generator=generator)
    inside = (matrix @ vectors.T) @ vectors
    matrix = {"any": matrix, "inside": inside, "outside": matrix - inside}[where]
    matrix = matrix * 10.0**exponent
    parts, _ = parts_of(Embedding(0.3, 0.02, basis), matrix)
    assert parts["embedded"].value.double().norm() <= 0.3
    assert flat(parts["residual"].value).norm() <= 0.02
    together, _ = parts_of(Embedding(0.3, 0.02, basis, joint=False, p=5), matrix)
    whole = flat(together["grad"].value)
    assert whole.norm() <= math.hypot(0.3, 0.02)
    assert whole.abs().max() <= math.hypot(0.3, 0.02) / math.sqrt(5)
    assert together["grad"].coordinate_bound == pytest.approx(math.hypot(0.3, 0.02) / 5**0.5)


def test_the_residuals_noise_is_taken_out_of_the_subspace():
    rule = Embedding(1.0, 1.0, RandomBasis(4))
    state = rule.init(PARAMETERS, 1.0)
    noise = torch.randn(1, 10, generator=torch.Generator().manual_seed(2))
    coefficients = torch.tensor([1.0, -2.0, 3.0, -4.0])
    released = Released(
        {"embedded": coefficients, "residual": {n: t[0] for n, t in tree(noise).items()}}, {}, 0
    )
    gradient, _ = rule.after(released, state)
    grad = gradient.values["grad"]
    torch.testing.assert_close(
        state["basis"].double() @ flat(grad), coefficients.double(), rtol=1e-5, atol=1e-5
    )


# ----------------------------------------------------------------------------------------- bases


def test_top_directions_of_public_gradients():
    generator = torch.Generator().manual_seed(4)
    span = torch.linalg.qr(torch.randn(10, 2, generator=generator))[0]
    rows = torch.randn(30, 2, generator=generator) @ span.T * 5
    rows += 0.01 * torch.randn(30, 10, generator=generator)
    basis = PublicBasis.of_gradients(tree(rows), 2).directions(PARAMETERS)
    torch.testing.assert_close(basis @ basis.T, torch.eye(2), rtol=0, atol=1e-6)
    assert (basis @ span).norm() ** 2 == pytest.approx(2, abs=1e-3)
    with pytest.raises(ConfigurationError, match="k must be from 1"):
        PublicBasis.of_gradients(rows, 11)


def test_given_vectors_are_made_orthonormal_and_told_apart():
    basis = PublicBasis(torch.randn(3, 10, generator=torch.Generator().manual_seed(5)))
    vectors = basis.directions(PARAMETERS)
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(3), rtol=0, atol=1e-6)
    assert repr(basis) != repr(FIRST_TWO)
    assert repr(basis) == repr(PublicBasis(basis.vectors.clone()))
    with pytest.raises(ConfigurationError, match=r"vectors must be \(k, 10\)"):
        PublicBasis(torch.eye(9)).directions(PARAMETERS)
    with pytest.raises(ConfigurationError, match="linearly independent"):
        PublicBasis(torch.ones(2, 10)).directions(PARAMETERS)


def test_a_random_basis_adapts_to_small_models():
    vectors = RandomBasis(50).directions(PARAMETERS)
    assert vectors.shape == (10, 10)
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(10), rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Turning(Basis):
    """Another axis at every second step."""

    def directions(self, parameters):
        return torch.eye(10)[:1]

    def refreshed(self, step):
        return torch.eye(10)[step : step + 1] if step % 2 == 0 else None


def test_a_basis_may_be_refreshed_between_steps():
    rule = Embedding(1.0, 1.0, Turning(), joint=False)
    state = rule.init(PARAMETERS, 1.0)
    axes = []
    for _ in range(4):
        released = Released({"grad": dict(PARAMETERS)}, {}, 0)
        _, state = rule.after(released, state)
        axes.append(int(state["basis"].argmax()))
    assert axes == [0, 2, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, FIRST_TWO), "c_embedded must be"),
        ((1.0, -1.0, FIRST_TWO), "c_residual must be"),
        ((1.0, 1.0, torch.eye(10)), "basis must be"),
        ((1.0, 1.0, FIRST_TWO, True, 1.0), "embedded_share must be strictly between"),
        ((1.0, 1.0, FIRST_TWO, True, 0.5, 4), "p must be"),
        ((1.0, 1.0, FIRST_TWO, False, 0.5, 0), "p must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Embedding(*arguments)


# -------------------------------------------------------------------------------------- training


def start(rule, **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    arguments = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "dataset": TensorDataset(x, (x[:, 0] > 0).long()),
        "rule": rule,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "steps": 3,
        "batch_size": 16,
        "seed": 0,
        "max_physical_batch_size": 7,
    }
    private = winsor.make_private(**{**arguments, **changes})
    for features, labels in private.batches():
        private.step(F.cross_entropy(private.model(features), labels, reduction="none"))
    return private


def test_a_joint_run_costs_what_flat_clipping_costs():
    joint = start(Embedding(1.0, 0.5, RandomBasis(3)))
    assert joint.spent().epsilon == start(winsor.rules.Flat(1.0)).spent().epsilon


def test_the_single_release_can_be_mixed_and_the_joint_one_cannot():
    rule = Embedding(3.0, 4.0, RandomBasis(3), joint=False, p=4)
    mixed = start(rule, mechanism=ModelMix(0.5))
    (event, count), *rest = mixed.ledger.history()
    assert count == 3
    assert not rest
    assert isinstance(event, MixedGaussianDpEvent)
    assert event.coordinates == pytest.approx(4)
    assert event.width_ratio == pytest.approx(0.5 * 16 / 5.0)
    with pytest.raises(UnsoundRelease, match="one bounded part"):
        start(Embedding(3.0, 4.0, RandomBasis(3)), mechanism=ModelMix(0.5))
