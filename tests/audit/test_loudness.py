"""Replay weighs the noise of one run: softer or louder than what is paid for is found."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from winsor.audit.replaying.checks import loudness_findings
from winsor.audit.replaying.transcript import Claim, Passage, part_of
from winsor.core.contract import Neighbouring, Sensitivity

VALUES, STEPS = 163, 5
TRIALS = 200


def alarms(scale, independent):
    """How often noise of ``scale`` times what is paid for is found, in runs of five steps."""
    claim = Claim(
        Sensitivity(1.0, 2.0, "given"), Neighbouring.ADD_OR_REMOVE_ONE, independent=independent
    )
    chance, found = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        passages = []
        for step in range(STEPS):
            value = chance.normal(size=VALUES)
            noisy = {"grad": value + 2 * scale * chance.normal(size=VALUES)}
            passage = Passage("Door", step, {"grad": part_of(value, claim)}, {}, {}, (b"", []))
            passage.noisy, passage.std = noisy, {"grad": 2.0}
            passages.append(passage)
        found += len(list(loudness_findings(SimpleNamespace(passages=passages))))
    return found


@pytest.mark.parametrize("scale", [0.5, math.sqrt(0.5), math.sqrt(2), 2])
def test_noise_by_two_ranks_or_halved_is_found_every_time(scale):
    assert alarms(scale, independent=True) == TRIALS


@pytest.mark.parametrize("independent", [True, False])
def test_honest_noise_is_not_accused(independent):
    assert alarms(1.0, independent) == 0


def test_where_values_may_be_correlated_fewer_of_them_count():
    assert alarms(1.25, independent=False) < alarms(1.25, independent=True)
