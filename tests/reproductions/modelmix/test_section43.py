"""The reproductions of ModelMix, each at a size that takes seconds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from winsor_reproductions.modelmix import table1 as modelmix_table1
from winsor_reproductions.modelmix.embedding import EmbeddingComparison, compare
from winsor_reproductions.modelmix.embedding import synthetic_problem as embedding_problem
from winsor_reproductions.modelmix.figure2 import Figure2, figure_2, quadratic, synthetic_problem
from winsor_reproductions.modelmix.section43 import Section43, section_43
from winsor_reproductions.modelmix.table1 import Table1, table_1
from winsor_reproductions.training_runs import (
    Problem,
    TrainingRecipe,
    evaluate,
    fashion_mnist,
    gaussian_classes,
    over_seeds,
    train,
)

from winsor.contract import ConfigurationError
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.features import scattering as wavelets
from winsor.features import scattering_features
from winsor.papers.published import PublishedClaim
from winsor.rules.flat import Flat
from winsor.rules.public_gradients import PublicGradients

# ----------------------------------------------------------------------------------- section 4.3


def test_section_43_sets_the_three_readings_side_by_side():
    (row,) = section_43(Section43(widths=(0.3,), coordinates=(25,)))
    assert (row.tau_over_eta, row.p, row.printed) == (0.3, 25, 5.4)
    assert isinstance(row.published, PublishedClaim)
    assert row.published.published_epsilon == pytest.approx(5.4, rel=0.04)
    assert row.certified == pytest.approx(4.95, rel=0.03)
    assert row.as_gaussian < row.certified  # the same variance, better spent


# ---------------------------------------------------------------------------------------- figure 2


def test_figure_2_the_larger_step_is_steadier_with_mixing_as_a_smaller_step_is():
    problem = dataclasses.replace(synthetic_problem(), steps=100)
    rows = {row.line: row for row in figure_2(problem, Figure2(seeds=(0,)))}
    small, large = rows["plain, small step"], rows["plain, large step"]
    mixed, shorter = rows["mixed, large step"], rows["plain, 2/3 of the large step"]
    assert small.loss < mixed.loss < large.loss
    assert mixed.loss == pytest.approx(shorter.loss, rel=0.15)
    assert mixed.lr == large.lr
    assert max(row.epsilon for row in rows.values()) <= 8.0


def test_on_a_quadratic_mixing_is_a_shorter_step_with_an_eighth_more_noise():
    gentle, steep = quadratic((0.05, 1.2), steps=400, copies=2000)
    assert gentle.mixed / gentle.plain == pytest.approx(3 / 4, rel=0.06)
    assert gentle.mixed / gentle.plain_at_two_thirds == pytest.approx(9 / 8, rel=0.08)
    assert gentle.plain == pytest.approx(0.05 / (2 - 0.05), rel=0.05)
    assert steep.plain == pytest.approx(1.2 / (2 - 1.2), rel=0.05)
    assert steep.mixed > 1e6 * steep.plain  # curvature, not noise, limits the step


# ------------------------------------------------------------------------------------------- runs


def tiny(steps=6):
    training, test = gaussian_classes(n=200, dimension=6, classes=3, seed=1)
    return Problem("tiny", training, test, lambda: nn.Linear(6, 3), 20, steps, 1e-3)


def test_a_run_reports_what_it_spent_and_where_it_was():
    outcome = train(tiny(), TrainingRecipe(Flat(1.0), 0.5, epsilon=2.0), seed=0, looks=3)
    assert 1.98 <= outcome.epsilon <= 2.0
    assert len(outcome.trail) == 3
    assert outcome.trail[-1] == outcome.loss
    assert 0 <= outcome.accuracy <= 100


def test_seeds_share_one_calibration_and_differ_in_their_noise():
    first, second = over_seeds(tiny(), TrainingRecipe(Flat(1.0), 0.5, epsilon=2.0), (0, 1))
    assert first.noise_multiplier == second.noise_multiplier
    assert first.epsilon == second.epsilon
    assert first.loss != second.loss


def test_divergence_is_an_infinite_loss():
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    assert evaluate(model, *tiny().test)[1] == math.inf


# ---------------------------------------------------------------------------------------- table 1


@pytest.fixture
def folder(tmp_path):
    """A file in the form of Fashion-MNIST: class k is an image of brightness k."""
    generator = np.random.default_rng(0)

    def part(n):
        y = np.arange(n, dtype=np.uint8) % 10
        x = 20 * y[:, None, None] + generator.integers(0, 40, (n, 28, 28))
        return x.astype(np.uint8), y

    x, y = part(80)
    x_test, y_test = part(30)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return tmp_path


SMALL = Table1((1.0,), 60, 20, batch_size=8, steps=2, tau_over_eta=(6e-4, 6e-4))


def channels(images):
    """81 channels of 7 x 7 by pooling: enough for the CNN, without kymatio."""
    pooled = F.adaptive_avg_pool2d(images[:, None], 7)
    return pooled * torch.linspace(-1, 1, 81)[:, None, None]


def test_table_1_at_equal_certified_epsilon(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(wavelets, "transform_of", lambda shape: channels)
    monkeypatch.setattr(modelmix_table1, "DELTA", 1e-3)
    rows = list(table_1(folder, tmp_path / "cache", SMALL))
    assert [row.method for row in rows] == ["DP-SGD", "mixing", "mixing, narrow"]
    for row in rows:
        assert 0.99 <= row.certified_epsilon <= 1.0
        assert row.epsilon == 1.0
    assert [row.printed for row in rows] == [85.6, 88.8, None]
    assert rows[1].noise_multiplier <= rows[0].noise_multiplier  # mixing never costs privacy


def test_features_are_computed_once_and_kept(folder, tmp_path, monkeypatch):
    calls = []

    def transform(shape):
        calls.append(shape)
        return channels

    monkeypatch.setattr(wavelets, "transform_of", transform)
    cache = tmp_path / "cache"
    first, spent = modelmix_table1.scattering_problem(folder, cache, SMALL)
    again, _ = modelmix_table1.scattering_problem(folder, cache, SMALL)
    assert spent == ()
    assert len(calls) == 2  # training and test rows
    assert torch.equal(first.train[0], again.train[0])
    assert {path.suffix for path in cache.iterdir()} == {".npy"}
    assert first.train[0].shape == (60, 81, 7, 7)
    groups = first.train[0].reshape(60, 27, -1)
    torch.testing.assert_close(groups.mean(2), torch.zeros(60, 27), rtol=0, atol=1e-4)


def test_tau_is_scaled_to_what_the_account_of_the_paper_sees():
    problem = Problem("x", (torch.zeros(60, 1), torch.zeros(60)), (), nn.Identity, 8, 4, 1e-3)
    wide = modelmix_table1.recipes(problem, Table1(), 1.0)["mixing"].mechanism
    assert wide == ModelMix(((0, 0.05 * 8192 / 8), (2, 0.025 * 8192 / 8)))


def test_scattering_has_the_shape_that_the_cnn_takes():
    images = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(0))
    features = scattering_features(images)
    assert features.shape == (3, 81, 7, 7)
    assert features.isfinite().all()


def test_a_folder_without_the_data_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"folder must hold fashion_mnist\.npz"):
        fashion_mnist(tmp_path)


# -------------------------------------------------------------------------------------- embedding


def test_the_embedding_helps_and_mixing_combines_with_it():
    problem, public = embedding_problem()
    rows = compare(problem, public, EmbeddingComparison(k=8, p=4, seeds=(0,)))
    by_method = {row.method: row for row in rows}
    assert by_method["embedding"].accuracy > by_method["flat"].accuracy + 1
    assert by_method["mixed"].noise_multiplier < by_method["flat"].noise_multiplier
    for row in rows:
        assert 0.99 <= row.certified_epsilon <= 1.0


def test_public_gradients_span_what_the_rows_span_and_follow_the_iterate():
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(40, 5, generator=generator), torch.arange(40) % 3
    model = nn.Linear(5, 3)
    parameters = dict(model.named_parameters())
    basis = PublicGradients(nn.Linear(5, 3), (x, y), k=4, refresh=2)
    start = basis.directions(parameters)
    assert start.shape == (4, 18)
    losses = F.cross_entropy(model(x), y, reduction="none")
    rows = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters.values(),
                                                                retain_graph=True)])
            for loss in losses
        ]
    )  # fmt: skip
    captured = (rows @ start.T).square().sum()
    assert captured == pytest.approx(float(torch.linalg.svdvals(rows)[:4].square().sum()), rel=1e-4)
    assert basis.refreshed(1) is None
    with torch.no_grad():
        model.weight.mul_(5).add_(1)
    moved = basis.refreshed(2)
    assert moved is not None
    assert not torch.allclose(moved.T @ moved, start.T @ start, atol=1e-3)
