"""Replay finds mistakes in the arithmetic of norms and sums, on whatever data it is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from arithmetic_mutants import MUTANTS, mutant
from selfaudit.honest_trials import ROWS, tensors, train_network
from torch import nn

from winsor.audit import replay
from winsor.rules import NSGD, Flat

SEEDS = range(20)
PERSONS = [row // 2 for row in range(ROWS)]


def silent() -> nn.Module:
    """A linear classifier that starts at zero, so that rows with opposite inputs cancel."""
    net = nn.Linear(3, 2, bias=False)
    nn.init.zeros_(net.weight)
    return net


TRAININGS: dict[str, dict[str, Any]] = {
    "norms in float32": {"rule": NSGD(1.0, 0.0), "steps": 1},
    "no term for places that cancel": {
        "rule": Flat(1.0),
        "unit": PERSONS,
        "rows_per_unit": 2,
        "steps": 1,
    },
    "w e in float32": {"rule": Flat(2e-14), "steps": 1},
    "sums in float32": {"rule": Flat(0.1), "steps": 9},
    "sums rounded to float32 before the noise": {"rule": Flat(0.1), "steps": 9},
}


def report(name: str, seed: int) -> Any:
    crowd = 1 << 14 if name.startswith("sums") else 0
    train = partial(train_network, model=silent, **TRAININGS[name])
    return replay(train, tensors(seed), crowd=crowd, slack=1e-9, first_only=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_in_the_arithmetic_are_found(name):
    assert report(name, 0).passed
    with mutant(name):
        assert [seed for seed in SEEDS if report(name, seed).passed] == []
