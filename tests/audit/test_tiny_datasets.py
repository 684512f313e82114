"""Datasets of one, two and three rows: the rate is given, so their size is nobody's business.

Two datasets, n - 1 rows and n, under the sampler's own draws and the door's own noise. What an
attack with 99.99 % confidence finds must stay below what is certified, and comes within a factor
of it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from winsor.core.accounting import certify
from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import new_key
from winsor.core.sampling import Poisson
from winsor.gradients import buffers as buffers  # the door releases tensors below

ADD = Neighbouring.ADD_OR_REMOVE_ONE
RUNS, ALPHA, DELTA = 40_000, 1e-4, 1e-3
UNIT = Sensitivity.per_sample(1.0, "a count")


def released(n, row, rate, multiplier, seed):
    """RUNS releases of one step. Number ``row`` counts 1, the others nothing."""
    sampler = Poisson(n, rate, size=1.0)
    key = new_key(seed=seed)
    joined = [float(row in sampler.indices(key, run)) for run in range(RUNS)]
    door = Door(
        Ledger(sampler.config()), Gaussian(multiplier), sampler, ADD, new_key(seed=seed + 1)
    )
    out = door.release(0, {"grad": Bounded(torch.tensor(joined, dtype=torch.float64), UNIT)})
    return out.values["grad"].numpy(), door.ledger


def epsilon_found(absent, present):
    """The largest epsilon that half-lines refute, with Clopper and Pearson's bounds."""
    best = 0.0
    for threshold in np.quantile(absent[:5000], [0.5, 0.9, 0.97, 0.99, 0.997]):
        hits, alarms = int((present > threshold).sum()), int((absent > threshold).sum())
        low = stats.beta.ppf(ALPHA / 10, hits, RUNS - hits + 1)
        high = stats.beta.ppf(1 - ALPHA / 10, alarms + 1, RUNS - alarms)
        if low > DELTA:
            best = max(best, math.log((low - DELTA) / high))
    return best


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 0.6), (0.9, 1.0)])
def test_one_row_more_is_hidden_as_certified(n, rate, multiplier):
    target = n - 1
    present, ledger = released(n, target, rate, multiplier, seed=n)
    absent, smaller = released(n - 1, target, rate, multiplier, seed=100 + n)  # it has no such row
    assert smaller.history() == ledger.history()  # what is recorded does not tell the size
    ((event, _),) = ledger.history()
    claimed = certify([(event, 1)], DELTA, ADD).epsilon
    found = epsilon_found(absent, present)
    assert 0.4 * claimed < found <= claimed
    assert "n" not in ledger.config
