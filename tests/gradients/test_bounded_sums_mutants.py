"""The property test finds every mistake in the arithmetic, and finds nothing without one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arithmetic_mutants import MUTANTS, mutant
from hostile_rows import COUNT, Case, case, outcome

from winsor.rules import NSGD, Flat

MOST = 150


def cases(name: str):
    """Cases as the benchmark draws them, with what a mistake needs drawn more often."""
    for seed in range(MOST):
        one = replace(case(seed), warm=False)
        if name == "norms in float32":
            yield replace(one, family="underflowing", rule=NSGD(2.0, 0.0), engine="ghost")
        elif name == "w e in float32":
            yield replace(one, family="balanced", rule=Flat(1e-5), engine="ghost")
        elif name == "no term for places that cancel":
            yield replace(one, family="opposed", unit=(2,), rule=Flat(1.0), engine="ghost")
        else:
            kinds = ("linear", "linear without bias", "embedding")[seed % 3 :][:1]
            yield Case(seed, kinds, Flat(1.0), "ghost", COUNT - seed % 2, "plain", "plain")


def found(name: str) -> int | None:
    """The number of the first case above 1."""
    return next((i for i, one in enumerate(cases(name)) if outcome(one).move > 1), None)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_found(name):
    with mutant(name):
        assert found(name) is not None


@pytest.mark.parametrize("name", MUTANTS)
def test_the_same_cases_are_within_the_bound_without_it(name):
    with mutant(name):
        last = found(name)
    assert last is not None
    for _, one in zip(range(last + 1), cases(name), strict=False):
        assert outcome(one).move <= 1
