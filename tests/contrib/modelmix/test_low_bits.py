"""What the low bits of a released iterate tell about the secret mixing weight: nothing."""

from __future__ import annotations

import pytest
import torch
from contrib_attacks import candidates
from torch import nn

from winsor.contrib.modelmix.mechanism import MixedGaussian, MixedLaplace, ModelMix
from winsor.contrib.modelmix.update import MOST_UNITS, MixingUpdate, halves_of
from winsor.core.accounting.lattice import LEAST_BITS
from winsor.core.contract import Released, UnsoundRelease
from winsor.core.noise.source import NoiseOfStep, NoiseSource
from winsor.core.randomness import new_key
from winsor.rules import L1, Flat
from winsor.rules.rule import dry_run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_mixing_weight_remains_possible(dtype):
    left, all_of_them = candidates(dtype)
    assert left == all_of_them > 2**24


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("size", [1.0, 2.0**20, 2.0**49])
def test_the_release_is_read_as_the_very_number_of_units_that_was_drawn(law, size):
    """The noise is on a grid of 2^-28 here, its points halfway between whole numbers of it."""
    gaussian = law == "gaussian"
    mix, rule = ModelMix(0.1, noise=law), Flat(1.0) if gaussian else L1(1.0)
    mechanism = (MixedGaussian if gaussian else MixedLaplace)(1.1, mix, 4.0)
    parts = dry_run(rule, {"w": torch.zeros(500)}, 4.0)
    std = mechanism.std(parts)["grad"]
    scale = std if gaussian else std / 2**0.5
    grid = scale * 2.0**-28
    parts["grad"].value["w"] += torch.arange(500) * (size * grid)
    noise = NoiseOfStep(NoiseSource(7), 0, {"grad": 28})
    value = mechanism.add_noise(parts, {"grad": std}, noise)["grad"]["w"]
    assert value.dtype == torch.float64
    drawn = torch.floor(value / grid).long()  # exact: the noise has no part below the grid
    assert torch.equal((drawn.double() + 0.5) * grid, value)
    read = torch.floor(value / (scale * 2.0**-LEAST_BITS)).long()
    assert torch.equal(read, drawn >> 2)


def test_a_release_of_fewer_digits_is_refused():
    weight = nn.Parameter(torch.zeros(3))
    mixing = MixingUpdate(
        {"w": weight}, torch.optim.SGD([weight], lr=0.1), None, 4.0, ModelMix(0.1), new_key(seed=1)
    )
    released = Released({"grad": {"w": torch.ones(3)}}, {"grad": 1.0}, 0, mixing.seal)
    with pytest.raises(UnsoundRelease, match="float64"):
        mixing.apply(released)
    assert torch.equal(weight, torch.zeros(3))


def test_mixing_is_at_least_as_wide_as_asked_for():
    width = torch.tensor([0.0, 1e-9, 1.0, 3.0000001, 1e300], dtype=torch.float64)
    halves = halves_of(width, 1e-3).double()
    assert ((2 * halves[:-1] + 1) * 1e-3 >= width[:-1]).all()
    assert ((2 * halves[:-1] - 2) * 1e-3 < width[:-1]).all()
    assert halves[-1] == MOST_UNITS
    assert halves_of(width, 0.0).tolist() == [0, *[int(MOST_UNITS)] * 4]
