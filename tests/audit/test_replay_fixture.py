"""The fixture, as a user's test asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from winsor.audit.pytest_plugin import replay  # noqa: F401  # the entry point does this for users
from winsor.tables import clipped_mean


def train(x):
    return clipped_mean(x, radius=2.0, epsilon=1.0).estimate


def test_an_honest_training_passes(replay):  # noqa: F811
    assert replay(train, np.eye(30)).passed


def test_a_training_that_leaks_fails(replay):  # noqa: F811
    with pytest.raises(AssertionError, match=r"left behind at returned\.1"):
        replay(lambda x: (train(x), x.sum()), np.eye(30))
