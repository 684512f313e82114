"""Adjusted logits, and class counts that are released with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import winsor
from winsor.core.contract import ConfigurationError
from winsor.training.losses import LogitAdjusted, released_counts


def test_the_shift_is_the_log_of_the_prior():
    loss = LogitAdjusted((80, 15, 5), tau=0.5)
    expected = 0.5 * np.log(np.array([0.80, 0.15, 0.05]))
    np.testing.assert_allclose(loss.shift().numpy(), expected, rtol=1e-6)
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2])
    wanted = F.cross_entropy(logits + torch.tensor(expected), labels, reduction="none")
    torch.testing.assert_close(loss(logits, labels).double(), wanted)
    assert torch.equal(loss(logits, labels, progress=0.9), loss(logits, labels))


def test_without_tau_it_is_cross_entropy():
    logits, labels = torch.randn(3, 2), torch.tensor([0, 1, 1])
    plain = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(LogitAdjusted((9, 1), tau=0.0)(logits, labels), plain)


@pytest.mark.parametrize("profile", [(1,), (1, 0), (1, math.nan), (1, math.inf)])
def test_profiles_without_a_logarithm_are_refused(profile):
    with pytest.raises(ConfigurationError, match="profile"):
        LogitAdjusted(profile)


def test_counts_are_released_once_and_paid_for():
    labels = np.repeat([0, 1, 2], [5000, 500, 5])
    found = released_counts(labels, 4, epsilon=1.0, delta=1e-5, seed=1)
    assert found.guarantee.epsilon <= 1.0 and found.guarantee.steps == 1
    assert np.abs(np.array(found.counts[:3]) - [5000, 500, 5]).max() < 40
    assert min(found.counts) >= 1.0
    assert tuple(labels[:3]) == (0, 0, 0)  # nothing was overwritten
    assert winsor.total(found).epsilon == pytest.approx(found.guarantee.epsilon)
    LogitAdjusted(found.counts)


def test_noise_has_the_stated_size():
    labels = np.zeros(50_000, dtype=np.int64)
    errors = [
        released_counts(labels, 2, noise_multiplier=20.0, delta=1e-6, seed=s).counts[0] - 50_000
        for s in range(400)
    ]
    assert np.std(errors) == pytest.approx(20.0, rel=0.15)


def test_replacing_a_row_moves_two_cells():
    labels = np.zeros(1000, dtype=np.int64)
    one = released_counts(labels, 2, noise_multiplier=5.0, delta=1e-4)
    other = released_counts(labels, 2, noise_multiplier=5.0, delta=1e-4, relation="replace_one")
    assert other.guarantee.epsilon > 1.2 * one.guarantee.epsilon


def test_what_is_refused():
    with pytest.raises(ConfigurationError, match="either"):
        released_counts([0, 1], 2, delta=1e-3, allow_large_delta=True)
    with pytest.raises(ConfigurationError, match="labels"):
        released_counts([0.5, 1.0], 2, epsilon=1.0, delta=1e-3)
    with pytest.raises(ConfigurationError, match="classes"):
        released_counts([0, 1], 1, epsilon=1.0, delta=1e-3)
