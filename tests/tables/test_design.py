"""Closed-form GLM gradients against autograd, and the bound that clipping promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from winsor.core.arithmetic.rows import FARTHEST, slack
from winsor.gradients.rows import RowsView
from winsor.gradients.view import Directions, View
from winsor.tables.design import Design, DesignRows, clip_residuals, row_norms
from winsor.tables.linear.rule_view import GlmView
from winsor.tables.losses import Huber, Logistic, Softmax, Squared

LOSSES = [Logistic(), Softmax(3), Squared(), Huber(0.7)]
IDS = ["logistic", "softmax", "squared", "huber"]
N, D = 12, 5


def torch_loss(loss, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if isinstance(loss, Logistic):
        return torch.nn.functional.binary_cross_entropy_with_logits(scores, y, reduction="none")
    if isinstance(loss, Softmax):
        return torch.nn.functional.cross_entropy(scores, y.long(), reduction="none")
    if isinstance(loss, Squared):
        return (scores - y) ** 2 / 2
    return torch.nn.functional.huber_loss(scores, y, reduction="none", delta=loss.slope)


def problem(loss, intercept: bool, seed: int = 0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.5)
    y = rng.integers(0, 3 if isinstance(loss, Softmax) else 2, size=N).astype(float)
    shape = (D + intercept,) if loss.outputs == 1 else (D + intercept, loss.outputs)
    return x, y, rng.standard_normal(shape)


def autograd_rows(loss, x, y, theta, intercept: bool, unit: float) -> np.ndarray:
    """(n, *theta.shape) per-sample gradients, one backward per row."""
    rows = []
    for i in range(len(x)):
        t = torch.tensor(theta, requires_grad=True)
        features = torch.tensor(x[i : i + 1] * unit)
        scores = features @ (t[:-1] if intercept else t) + (t[-1] if intercept else 0)
        torch_loss(loss, scores, torch.tensor(y[i : i + 1])).sum().backward()
        rows.append(t.grad.numpy())
    return np.stack(rows)


def design_of(x, intercept: bool, unit: float, layout: str, monkeypatch) -> Design:
    if layout == "dense":
        return Design(x, intercept, unit)
    monkeypatch.setattr("winsor.tables.design._DENSE_NUMBERS", 0)
    design = Design(sparse.csr_array(x), intercept, unit)
    assert sparse.issparse(design.x)
    return design


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("unit", [1.0, 0.25])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_gradients_equal_autograd(loss, intercept, unit, layout, monkeypatch):
    x, y, theta = problem(loss, intercept)
    truth = autograd_rows(loss, x, y, theta, intercept, unit)
    design = design_of(x, intercept, unit, layout, monkeypatch)
    rows = design.rows(np.arange(N))
    residual = loss.residual(rows.scores(theta), y)
    assert np.allclose(rows.pull(residual), truth.sum(0))
    assert np.allclose(rows.gradients(residual), truth)
    lengths = np.linalg.norm(truth.reshape(N, -1), axis=1)
    assert np.allclose(np.linalg.norm(residual.reshape(N, -1), axis=1) * design.norms, lengths)
    pieces = [r.pull(loss.residual(r.scores(theta), y[p])) for p, r in design.chunks(2 * D)]
    assert len(pieces) == N // 2
    assert np.allclose(sum(pieces), truth.sum(0))


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
def test_values_slopes_and_curvatures(loss):
    rng = np.random.default_rng(1)
    shape = (500,) if loss.outputs == 1 else (500, loss.outputs)
    z = rng.standard_normal(shape) * 3
    y = rng.integers(0, 3 if isinstance(loss, Softmax) else 2, size=500).astype(float)
    expected = torch_loss(loss, torch.tensor(z), torch.tensor(y)).numpy()
    assert np.allclose(loss.value(z, y), expected)
    residual = loss.residual(z, y).reshape(500, -1)
    assert (np.linalg.norm(residual, axis=1) <= loss.slope + 1e-12).all()
    step = rng.standard_normal(shape) * 1e-3
    change = loss.residual(z + step, y).reshape(500, -1) - residual
    lengths = np.linalg.norm(step.reshape(500, -1), axis=1)
    assert (np.linalg.norm(change, axis=1) <= loss.curvature * lengths * (1 + 1e-6)).all()


ODD = st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e30, -1e30, 1e200, 1e308, np.inf, -np.inf, np.nan])


@given(st.lists(ODD, min_size=6, max_size=6), st.floats(1e-3, 1e3), st.booleans())
def test_clipped_gradients_never_exceed_the_bound(residuals, bound, many):
    rng = np.random.default_rng(0)
    x = rng.standard_t(1, size=(6, 4)) * [[0.0], [1.0], [1e-200], [1e30], [1e100], [3.0]]
    design = Design(x, intercept=True)
    residual = np.array(residuals)
    if many:
        residual = np.stack([residual, residual[::-1], np.ones(6)], axis=1)
    clipped = clip_residuals(residual, design.limits(bound))
    gradients = design.rows(np.arange(6)).gradients(clipped)
    scaled = gradients.reshape(6, -1) / bound
    assert np.isfinite(scaled).all()
    assert (np.linalg.norm(scaled, axis=1) <= 1 + slack(1, 5)).all()


def test_clipping_leaves_short_gradients_alone():
    design = Design(np.ones((3, 3)), intercept=True)  # norms 2
    assert clip_residuals(np.array([0.1, -0.4, 5.0]), design.limits(1.0)) == pytest.approx(
        [0.1, -0.4, 0.5]
    )


@pytest.mark.parametrize("nonzeros", [0, 1, 1_999, 2_000, 100_000])
def test_the_shape_of_a_sparse_table_says_whether_it_becomes_dense(nonzeros):
    """One nonzero number more made 1,999 of them another method."""
    for columns, dense in ((100, True), (40_000, False)):
        table = sparse.csr_array((1_000, columns))
        data, places = np.ones(nonzeros), np.arange(nonzeros)
        table = sparse.csr_array((data, (places // 100, places % 100)), shape=table.shape)
        assert isinstance(Design(table, True).x, np.ndarray) is dense


# ----------------------------------------------------------------------------------- GlmView


@pytest.mark.parametrize("loss", LOSSES, ids=IDS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_the_view_equals_explicit_rows(loss, intercept, layout, monkeypatch):
    x, y, theta = problem(loss, intercept)
    design = design_of(x, intercept, 0.5, layout, monkeypatch)
    rows = design.rows(np.arange(N))
    view = GlmView(rows, y, loss, theta, chunk=5)
    assert isinstance(view, View)
    explicit = torch.tensor(autograd_rows(loss, x, y, theta, intercept, 0.5)).reshape(
        N, D + intercept, -1
    )
    tree = {"coef": explicit[:, :D]} | ({"intercept": explicit[:, -1]} if intercept else {})
    oracle = RowsView(tree, view.losses())
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)
    by_name = {name: weights * (2 + j) for j, name in enumerate(tree)}
    directions = Directions(k=3, seed=1)
    assert view.size == N
    assert view.neutralised == 0
    assert torch.allclose(view.norms(), oracle.norms())
    groups = [[name] for name in tree]
    assert torch.allclose(view.group_norms(groups), oracle.group_norms(groups))
    assert torch.allclose(view.sketch(directions), oracle.sketch(directions))
    halve = lambda rows: {name: value.clamp(-0.1, 0.1) for name, value in rows.items()}  # noqa: E731
    for ours, theirs in (
        (view.total(), oracle.total()),
        (view.weighted_sum(weights), oracle.weighted_sum(weights)),
        (view.weighted_sum(by_name), oracle.weighted_sum(by_name)),
        (view.map_sum(halve), oracle.map_sum(halve)),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.allclose(ours[name], theirs[name]) for name in ours)


def test_the_view_neutralises_rows_that_are_not_finite():
    x = np.array([[1.0], [1e200], [2.0]])
    rows = DesignRows(x, intercept=True, unit=1.0)
    view = GlmView(rows, np.zeros(3), Squared(), np.array([1e110, 0.0]))
    assert view.neutralised == 1
    assert view.norms()[1] == 0
    summed = view.weighted_sum(torch.tensor([0.0, torch.inf, 0.0]))
    assert summed["coef"].item() == 0


def test_an_empty_batch():
    rows = DesignRows(np.zeros((0, 3)), intercept=True, unit=1.0)
    view = GlmView(rows, np.zeros(0), Logistic(), np.zeros(4))
    assert view.size == 0
    assert view.total()["coef"].shape == (3, 1)
    assert view.sketch(Directions(k=2, seed=0)).shape == (0, 2)


MAGNITUDES = 10.0 ** np.arange(-320.0, 309.0, 4.0)


def test_limits_are_normal_numbers_and_keep_every_row_inside():
    norms = np.append(MAGNITUDES, [0.0, np.inf, np.nan])
    table = Design(np.zeros((len(norms), 1)), intercept=False)
    table.norms = norms
    for bound in (1e-120, 1.0, 1e120):
        factors = table.limits(bound)
        assert np.isfinite(factors).all() and (factors[norms > FARTHEST] == 0).all()
        assert (factors[factors > 0] > 1e-300).all()
        finite = np.isfinite(norms)
        assert (factors[finite] * norms[finite] <= bound * (1 + 1e-15)).all()
        assert (factors[~finite] == 0).all()


def test_sparse_rows_of_any_magnitude_have_the_norms_of_dense_ones():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (60, 5)) * rng.choice(MAGNITUDES, (60, 1)) * (rng.random((60, 5)) < 0.6)
    norms = row_norms(sparse.csr_array(x))
    np.testing.assert_allclose(norms, row_norms(x), rtol=1e-15, atol=5e-324)
