"""Samplers and steps from what a user says about batches."""

from __future__ import annotations

import pytest

from winsor.core.contract import ConfigurationError
from winsor.planning.choose import make_sampler, planned_steps


def test_steps_from_epochs():
    sampler = make_sampler("poisson", 1000, 30)
    assert planned_steps(3, None, sampler) == 100
    assert planned_steps(None, 7, sampler) == 7
    assert planned_steps(None, None, sampler, default=5) == 5
    for epochs, steps in ((None, None), (3, 7)):
        with pytest.raises(ConfigurationError, match="either epochs or steps"):
            planned_steps(epochs, steps, sampler)
