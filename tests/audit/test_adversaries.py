"""Adversaries are worth their name: they reach the sensitivity that each rule states."""

import pytest
from winsor_papers.neighbouring import NOMINAL, AuditSetting, pairs, worst

from winsor import rules
from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

REACHED = [
    (rules.Flat(0.05), ADD, "huge canary"),
    (rules.Averaged(1.0), ADD, "the clipped mean flips"),
    (rules.Averaged(0.05), REPLACE, "the clipped mean flips"),
    (rules.Discriminative(1.0, 0.1, selection="rank", rank_by="norm", seed=0), ADD, "rank"),
    (rules.LInf(1.0, 4), ADD, "spread over coordinates"),
    (rules.PerLayer(1.0, groups="parameter", joint=True), ADD, "every group saturated"),
    (rules.Quantile(1.0), REPLACE, "gradient and count together"),
]


@pytest.mark.parametrize(("rule", "relation", "why"), REACHED, ids=[row[2] for row in REACHED])
def test_the_worst_pair_attains_the_stated_sensitivity(rule, relation, why):
    experiment = worst(rule, AuditSetting(Gaussian(1.0), FullBatch(NOMINAL), relation))
    ((event, _),) = experiment.history
    assert experiment.shift() * event.noise_multiplier == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_every_pair_differs_in_one_record(relation):
    for records in pairs(relation):
        absent, present = records.count(0), records.count(1)
        assert present - absent == (1 if relation is ADD else 0)
        assert len(records.present) == 1


def test_there_is_an_empty_batch_and_a_silent_record_among_the_pairs():
    found = list(pairs(ADD))
    assert any(records.count(0) == 0 for records in found)
    assert any(records.count(0) > 0 and not records.present.any() for records in found)
