"""Rules that are wrong after the release: the battery must fail each of them, for the right reason.

Every one of them bounds its sums as it claims, and would print "certified".
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from rule_battery import (
    check_after_reads_released_values_only,
    check_bound_add_remove,
    check_bound_replace,
    check_events_independent_of_data,
    check_finite,
    check_gradient_carries_the_release,
    check_noise_is_as_claimed,
    check_permutation_invariant,
)
from selfaudit.mistakes import LeakyQuantile

from winsor.rules.flat import Flat

BEFORE = (
    check_bound_add_remove,
    check_bound_replace,
    check_finite,
    check_permutation_invariant,
    check_events_independent_of_data,
    check_noise_is_as_claimed,
)


def copied(tree):
    return {name: leaf.clone() for name, leaf in tree.items()}


class RawSums(Flat):
    """Keeps its raw sums in its state and returns them."""

    def bounded(self, sums, state):
        state["raw"] = copied(sums["grad"])
        return super().bounded(sums, state)

    def after(self, released, state):
        return released.with_grad(state.pop("raw")), state


class RawSumsHidden(Flat):
    """The same, without touching its state."""

    raw: ClassVar[dict] = {}

    def bounded(self, sums, state):
        self.raw.update(copied(sums["grad"]))
        return super().bounded(sums, state)

    def after(self, released, state):
        return released.with_grad(dict(self.raw)), state


class RawNorm(RawSumsHidden):
    """Uses the noisy gradient, at the length of the exact one."""

    def after(self, released, state):
        length = sum(leaf.square().sum() for leaf in self.raw.values()).sqrt()
        grad = {name: leaf * length for name, leaf in released.values["grad"].items()}
        return released.with_grad(grad), state


class RawNextStep(RawSumsHidden):
    """Behaves in `after`, and adds the raw sums of the last step to the next."""

    def contributions(self, view, state):
        sums = super().contributions(view, state)
        if state.get("step", 0):
            sums["grad"] = {name: leaf + self.raw[name] for name, leaf in sums["grad"].items()}
        return sums

    def after(self, released, state):
        return released, {**state, "step": 1}


@pytest.mark.parametrize("rule", [RawSums(1.0), RawSumsHidden(1.0), RawNorm(1.0), RawNextStep(1.0)])
def test_raw_sums_used_after_the_release_are_found(rule):
    for check in BEFORE:
        check(rule)  # nothing that looks before the release can know
    with pytest.raises(AssertionError, match="uses more than was released"):
        check_after_reads_released_values_only(rule)


def test_state_that_follows_unreleased_counts_is_found():
    with pytest.raises(AssertionError, match="next state differs"):
        check_after_reads_released_values_only(LeakyQuantile(1.0))


class Constant(Flat):
    """Returns a gradient without noise, though it looks at nothing private."""

    def after(self, released, state):
        grad = {name: leaf * 0 + 1 for name, leaf in released.values["grad"].items()}
        return released.with_grad(grad), state


def test_a_gradient_without_the_released_noise_is_found():
    with pytest.raises(AssertionError, match="do not change with what was released"):
        check_gradient_carries_the_release(Constant(1.0))


class Halved(Flat):
    """Honest post-processing."""

    def after(self, released, state):
        grad = {name: leaf / 2 for name, leaf in released.values["grad"].items()}
        return released.with_grad(grad), {**state, "seen": state.get("seen", 0) + 1}


@pytest.mark.parametrize("rule", [Flat(1.0), Halved(1.0)])
def test_post_processing_passes(rule):
    check_after_reads_released_values_only(rule)
    check_gradient_carries_the_release(rule)
