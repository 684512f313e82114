"""LDAM-DRW: one value per row, from the row and the public profile alone."""

from __future__ import annotations

import pytest
import torch

import winsor
from winsor.core.contract import ConfigurationError
from winsor.training.losses import LdamDrw, exponential_profile


def test_a_row_does_not_see_the_others():
    loss = LdamDrw(exponential_profile(500, 4))
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    for progress in (0.0, 0.9):
        together = loss(logits, labels, progress)
        alone = torch.cat([loss(logits[i, None], labels[i, None], progress) for i in range(6)])
        torch.testing.assert_close(together, alone)


def test_counts_may_be_released():
    labels = torch.tensor([0] * 900 + [1] * 100 + [2] * 20)
    found = winsor.training.losses.released_counts(
        labels, 3, noise_multiplier=2.0, delta=1e-4, seed=0
    )
    weights = LdamDrw(found.counts).weights()
    assert weights[2] > weights[1] > weights[0]
    assert float(weights.mean()) == pytest.approx(1.0)


def test_it_is_at_the_front_door():
    assert winsor.training.losses.LdamDrw is LdamDrw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": (5,)}, "profile must be a count"),
        ({"profile": (5, 0)}, "profile must be a count"),
        ({"profile": (5, 1), "largest_margin": -1.0}, "largest_margin must be"),
        ({"profile": (5, 1), "scale": 0.0}, "scale must be"),
        ({"profile": (5, 1), "beta": 1.0}, "beta must be"),
        ({"profile": (5, 1), "deferred": 2.0}, "deferred must be"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigurationError, match=message):
        LdamDrw(**options)
