"""Pairs of datasets: the enumerated laws are the sampler's, stacked runs are real releases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, multivariate_normal
from winsor_papers.neighbouring import (
    AuditSetting,
    LaplaceLikelihoods,
    Likelihoods,
    RuleExperiment,
    batches,
    canary,
    drawn_batches,
    in_noise_units,
)
from winsor_papers.records import LINE, MODEL, GradientRecords, as_tree, chosen, dimension, stacked

from winsor.audit.curve import ABSENT, PRESENT
from winsor.core.contract import Bounded, Neighbouring, Sensitivity, UnsoundRelease
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson
from winsor.rules.flat import Flat

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


@pytest.mark.parametrize("sampler", [FullBatch(4), Poisson(4, 0.3), FixedSize(4, 2)])
def test_the_law_of_batches_is_what_the_sampler_draws(sampler):
    masks, law = batches(sampler, 4)
    assert law.sum() == pytest.approx(1)
    assert (law @ masks).tolist() == pytest.approx([sampler.rate] * 4)
    drawn = drawn_batches(sampler, 4, 4_000, bytes(32))
    counts = np.bincount(drawn, minlength=len(law))
    if len(law) > 1:
        assert chisquare(counts, 4_000 * law).pvalue > 1e-3


def test_no_records_have_one_batch():
    masks, law = batches(Poisson(1, 0.5), 0)
    assert masks.shape == (1, 0) and law.tolist() == [1.0]


def test_trees_hold_every_coordinate_once():
    rows = torch.arange(2.0 * dimension(MODEL)).view(2, -1)
    tree = as_tree(rows, MODEL)
    assert {name: t.shape[1:] for name, t in tree.items()} == dict(MODEL)
    assert torch.equal(torch.cat([t.flatten(1) for t in tree.values()], dim=1), rows)


def test_bounds_that_depend_on_the_rows_are_refused():
    outputs = [
        {"grad": Bounded(torch.zeros(2), Sensitivity.per_sample(c, "by rows"))} for c in (1.0, 2.0)
    ]
    with pytest.raises(UnsoundRelease, match="must not depend on the rows"):
        stacked(outputs)


def test_stacked_runs_get_the_stated_noise_each_its_own():
    setting = AuditSetting(Gaussian(2.0), FullBatch(5), ADD)
    table = {"grad": Bounded(torch.tensor([[3.0]]), Sensitivity.per_sample(0.5, "given"))}
    parts = chosen(table, np.zeros(100_000, dtype=np.int64))
    released = setting.door(bytes(32)).release(0, parts)
    x = in_noise_units(released)
    assert released.std == {"grad": pytest.approx(1.0, rel=5e-4)}
    assert x.mean() == pytest.approx(3.0, abs=0.02) and x.std() == pytest.approx(1.0, abs=0.01)
    assert len(np.unique(x)) > 99_000
    assert table["grad"].value.item() == 3.0  # the table survives the in-place noise


def test_the_score_is_the_log_likelihood_ratio():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 2))
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    table = {"grad": Bounded(torch.from_numpy(centres), Sensitivity.per_sample(1.0, "given"))}
    likelihoods = Likelihoods.of(table, {"grad": 2.0}, weights)
    x = rng.normal(size=(5, 2))
    densities = np.stack([multivariate_normal(c / 2).pdf(x) for c in centres], axis=1)
    expected = np.log(densities @ weights[PRESENT]) - np.log(densities @ weights[ABSENT])
    assert likelihoods.ratio(x) == pytest.approx(expected)


def test_the_laplace_score_is_bounded_by_the_loss_of_one_coordinate():
    table = {"grad": Bounded(torch.tensor([[0.0], [1.0]]), Sensitivity.per_sample(1.0, "given"))}
    likelihoods = LaplaceLikelihoods.of(table, {"grad": 2.0**0.5}, np.eye(2))
    ratio = likelihoods.ratio(np.array([[-9.0], [9.0], [0.5 * 0.5**0.5]]))
    assert ratio == pytest.approx([-1.0, 1.0, 0.0])


def test_equal_batches_are_merged_and_impossible_ones_keep_no_weight():
    table = {"grad": Bounded(torch.tensor([[1.0], [1.0], [2.0]]), Sensitivity.per_sample(1.0, ""))}
    likelihoods = Likelihoods.of(table, {"grad": 1.0}, np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    assert np.exp(likelihoods.log_weights).tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(("relation", "shift"), [(ADD, 1.0), (REPLACE, 2.0)])
def test_the_canary_moves_flat_clipping_by_its_whole_sensitivity(relation, shift):
    setting = AuditSetting(Gaussian(1.0), FullBatch(5), relation)
    experiment = RuleExperiment(Flat(1.0), canary(relation), setting)
    assert experiment.shift() == pytest.approx(shift, rel=1e-4)
    ((event, count),) = experiment.history
    assert (event.noise_multiplier, count) == (pytest.approx(1 / shift), 1)


def test_scores_are_a_function_of_seed_dataset_and_part():
    setting = AuditSetting(Gaussian(1.0), Poisson(5, 0.4), ADD, steps=3)
    experiment = RuleExperiment(Flat(1.0), canary(ADD, silent=2), setting)
    scores = experiment.scores(PRESENT, 500, 1)
    assert np.array_equal(scores, experiment.scores(PRESENT, 500, 1))
    assert not np.array_equal(scores, experiment.scores(PRESENT, 500, 2))
    assert not np.array_equal(scores, experiment.scores(ABSENT, 500, 1))
    other = RuleExperiment(Flat(1.0), canary(ADD, silent=2), replace(setting, seed=1))
    assert not np.array_equal(scores, other.scores(PRESENT, 500, 1))


def test_the_real_sampler_and_its_law_give_scores_of_one_distribution():
    setting = AuditSetting(Gaussian(0.5), Poisson(5, 0.4), ADD)
    by_law = RuleExperiment(Flat(1.0), canary(ADD, silent=2), setting).scores(PRESENT, 4_000, 0)
    drawn = RuleExperiment(Flat(1.0), canary(ADD, silent=2), setting, real_sampler=True)
    assert drawn.scores(PRESENT, 4_000, 0).mean() == pytest.approx(by_law.mean(), abs=0.15)


def test_turned_gradients_are_turned():
    records = GradientRecords(
        "any", torch.ones(1, 1), torch.zeros(0, 1), 2 * torch.ones(1, 1), LINE
    )
    assert records.turned().rows(PRESENT).flatten().tolist() == [-1.0, -2.0]
