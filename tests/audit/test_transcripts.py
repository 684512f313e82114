"""Runs one at a time: secret coins, and public state that must follow releases only."""

import numpy as np
import pytest
import torch
from selfaudit.mistakes import LeakyQuantile
from selfaudit.transcripts import CERTAIN, RandomRuleExperiment, TranscriptExperiment
from winsor_papers.neighbouring import AuditSetting, pairs
from winsor_papers.records import LINE, GradientRecords

from winsor.audit.curve import ABSENT, PRESENT
from winsor.core.contract import Neighbouring
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor.rules.discriminative import Discriminative
from winsor.rules.quantile import Quantile

ADD = Neighbouring.ADD_OR_REMOVE_ONE


def test_coins_are_drawn_afresh_for_every_run():
    z = torch.full((1, 1), 1e3)
    records = GradientRecords("alone", z[:0], z[:0], z, LINE)
    rule = Discriminative(1.0, 0.1, selection="random", tail_fraction=0.3, seed=0)
    experiment = RandomRuleExperiment(
        rule, records, AuditSetting(Gaussian(1e-4), FullBatch(5), ADD)
    )
    values = experiment._values(PRESENT, 1_000, bytes(32))["grad"].value["weight"][:, 0]
    in_tail = (values > 0.5).double().mean()
    assert sorted({round(float(v), 3) for v in values}) == [0.1, 1.0]
    assert float(in_tail) == pytest.approx(0.3, abs=0.05)
    again = experiment._values(PRESENT, 1_000, bytes(32))["grad"].value["weight"][:, 0]
    assert torch.equal(values, again)


def transcript(rule, runs=20):
    setting = AuditSetting(Gaussian(1.0), FullBatch(10), ADD, steps=2)
    experiment = TranscriptExperiment(rule, next(iter(pairs(ADD))), setting)
    return [experiment.scores(dataset, runs, 0) for dataset in (ABSENT, PRESENT)]


def test_a_state_that_follows_releases_gives_no_certainty():
    for scores in transcript(Quantile(1.0)):
        assert (np.abs(scores) < CERTAIN / 2).all()


def test_a_state_that_follows_exact_counts_is_certain_in_every_run():
    absent, present = transcript(LeakyQuantile(1.0))
    assert (absent < -CERTAIN / 2).all() and (present > CERTAIN / 2).all()


def test_the_ledger_of_a_transcript_has_every_step():
    setting = AuditSetting(Gaussian(1.0), FullBatch(10), ADD, steps=3)
    experiment = TranscriptExperiment(Quantile(1.0), next(iter(pairs(ADD))), setting)
    ((event, count),) = experiment.history
    assert count == 3 and event.noise_multiplier == pytest.approx(1.0)
