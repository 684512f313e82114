"""Means under attack: the adversary of each sees the whole shift that the account allows."""

import numpy as np
import pytest
from selfaudit.means import (
    AveragedMeanExperiment,
    CalledMeanExperiment,
    ClippedMeanExperiment,
    RadiusExperiment,
)

from winsor.audit.curve import ABSENT, PRESENT
from winsor.core.contract import Neighbouring

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def standard_shift(experiment, runs=1_500):
    """Distance of the mean scores of both datasets, in standard deviations of a score."""
    absent, present = (experiment.scores(dataset, runs, 0) for dataset in (ABSENT, PRESENT))
    return (present.mean() - absent.mean()) / np.sqrt((absent.var() + present.var()) / 2)


def claimed_shift(experiment):
    ((event, count),) = experiment.history
    return np.sqrt(count) / event.noise_multiplier


@pytest.mark.parametrize(
    "experiment",
    [
        ClippedMeanExperiment(1.0),
        ClippedMeanExperiment(1.0, REPLACE),
        CalledMeanExperiment(2.0),
        CalledMeanExperiment(2.0, REPLACE),
        CalledMeanExperiment(2.0, ADD, k=4),
        CalledMeanExperiment(2.0, REPLACE, k=4),
        AveragedMeanExperiment(2.0),
        AveragedMeanExperiment(2.0, REPLACE),
        RadiusExperiment(1.0),
        RadiusExperiment(1.0, REPLACE),
    ],
    ids=repr,
)
def test_the_adversary_sees_all_that_the_ledger_allows_and_no_more(experiment):
    assert standard_shift(experiment) == pytest.approx(claimed_shift(experiment), abs=0.12)
