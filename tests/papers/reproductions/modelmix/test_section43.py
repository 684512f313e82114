"""The reproductions of ModelMix, each at a size that takes seconds."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from winsor_papers.published import PublishedClaim
from winsor_papers.reproductions.modelmix.embedding import EmbeddingComparison, compare
from winsor_papers.reproductions.modelmix.embedding import synthetic_problem as embedding_problem
from winsor_papers.reproductions.modelmix.figure2 import (
    Figure2,
    figure_2,
    quadratic,
    synthetic_problem,
)
from winsor_papers.reproductions.modelmix.section43 import Section43, section_43
from winsor_papers.reproductions.training_runs import (
    Problem,
    TrainingRecipe,
    evaluate,
    gaussian_classes,
    over_seeds,
    train,
)

from winsor.contrib.embedding.public_gradients import PublicGradients
from winsor.rules.flat import Flat

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
