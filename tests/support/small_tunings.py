"""Tunings small enough to run thousands of times: a trial releases a noisy count."""

from __future__ import annotations

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent

from winsor.core.contract import Neighbouring, Sensitivity
from winsor.core.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import FullBatch
from winsor.tuning.trial_counts import TruncatedNegativeBinomial, draw

ADD = Neighbouring.ADD_OR_REMOVE_ONE
DELTA = 1e-5
ROWS = np.arange(100) % 2


class Model:
    """Something that can be watched and told from others."""

    def __init__(self, value):
        self.value = value


def release(rows, job, ledger, noise=None):
    """A noisy count through the door."""
    door = PrepaidDoor(ledger, ADD, job.key)
    sensitivity = Sensitivity.per_sample(1.0, "a count")
    multiplier = job.noise_multiplier if noise is None else noise
    receipt = door.pay(Gaussian(multiplier), FullBatch(len(rows)), sensitivity, 1, 1)
    return float(receipt.release(np.array([float(np.sum(rows))]))[0])


def counting(rows, seen=None, noise=None):
    """A training that releases a noisy count, which is also its score."""

    def train(setting, job):
        ledger = Ledger({"n": len(rows)})
        value = release(rows, job, ledger, noise)
        if seen is not None:
            seen.append((setting, value))
        return Model(value), ledger, value

    return train


def plan(nm):
    return [(GaussianDpEvent(nm), 1)]


def key_with(law, wanted):
    """A key under which exactly this many trials are drawn."""
    keys = (new_key(seed) for seed in range(10_000))
    return next(key for key in keys if draw(law, key) == wanted)


LAW = TruncatedNegativeBinomial.of_mean(10)
