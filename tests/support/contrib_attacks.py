"""Attacks on the arithmetic of winsor.contrib: what a row moves, and what low bits tell."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import winsor
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.contrib.modelmix.update import MixingUpdate
from winsor.contrib.value.engine import ForwardEngine
from winsor.contrib.value.value import Value
from winsor.gradients import trainable_parameters
from winsor.rules.rule import Rule

LR, SIZE, TAU = 0.5, 16, 2.0**-6
"""Mixing a quarter as wide as the noise: 2^24 units of the grid, as many as weights of 24 bits."""


def candidates(dtype: torch.dtype) -> tuple[int, int]:
    """Count the mixing weights of one coordinate whose part of the first step, taken out of the
    released iterate, leaves a point of the noise's grid; and all that there are."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2, dtype=dtype), torch.randn(80, 4, dtype=dtype)
    old, apply = float(model.weight[0, 0].detach()), MixingUpdate.apply
    with mock.patch.object(MixingUpdate, "apply", autospec=True, side_effect=apply) as seen:
        private = winsor.make_private(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR), steps=1, seed=0,
            dataset=torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=SIZE,
            rule=winsor.rules.Flat(1.0), noise_multiplier=1.0, delta=1e-3, mechanism=ModelMix(TAU),
        )  # fmt: skip
        for rows, labels in private.batches():
            private.step(F.cross_entropy(model(rows), labels, reduction="none"))
    new = float(model.weight[0, 0].detach())
    step = seen.call_args.args[1].std["grad"] * 2.0**-26 * LR / SIZE  # of the grid, public
    if hasattr(MixingUpdate, "_drawn"):  # whole numbers of the grid; points are whole numbers
        half = round(TAU * LR * 1.0005 / step / 2)
        mixed, offset = torch.arange(-half, half + 1, dtype=torch.float64) * step, 0.0
    else:  # before: 24 bits of the width; points are halves
        weights = torch.arange(2**24, dtype=torch.float64) / 2**24 - 0.5
        mixed, offset = weights * (TAU * LR * 1.0005), 0.5
    point = (old + mixed - new) / step + offset
    rounding = 2 * max(abs(old), abs(new)) * torch.finfo(dtype).eps / step
    return int(((point - point.round()).abs() <= rounding).sum()), len(mixed)


def forward_sum(rule: Rule, model: nn.Module, x: Tensor, e: Tensor) -> Tensor:
    """Return the rule's sum over rows of losses <model(x), e>, whose output-gradients are e."""
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters)
    engine.attach()
    engine.recording(True)
    losses = (model(x).flatten(1) * e).sum(1)
    sums = rule.contributions(engine.view(losses), rule.init(parameters, 8.0))["grad"]
    engine.detach()
    return torch.cat([g.double().flatten() for g in sums.values()])


def underflow() -> float:
    """The move by a convolution's row whose squared inputs underflow in float32, over C."""
    model = nn.Sequential(nn.Conv2d(1, 1, 3, bias=False), nn.Conv2d(1, 1, 3, bias=False))
    nn.init.constant_(model[0].weight, 0.04)
    nn.init.constant_(model[1].weight, 1.0)
    x, e = torch.full((1, 1, 8, 8), 1e-23), torch.full((1, 16), 1e17)
    return float(forward_sum(Value(1e-7, form="forward"), model, x, e).norm()) / 1e-7


def dropout(form: str, seeds: int = 40) -> tuple[float, int]:
    """The largest move of a row beside one that is not finite, on a device whose random state is
    not restored, over C; and how many masks were drawn."""
    passes, largest = [], 0.0
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.8), nn.Linear(8, 3))
        model[1].register_forward_hook(lambda *_: passes.append(1))
        x, e = torch.randn(2, 4) * 10, torch.randn(2, 3) * 10
        x[1] = float("nan")
        with mock.patch("torch.set_rng_state"):
            largest = max(largest, float(forward_sum(Value(1.0, form=form), model, x, e).norm()))
    return largest, len(passes)
