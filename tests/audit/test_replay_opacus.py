"""The adapter for Opacus, on classes of its shape: no test may depend on what is installed.

`benchmarks/replay_power.py --opacus` runs the library itself.
"""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from winsor.audit import replay
from winsor.audit.replaying.opacus import opacus_adapter
from winsor.core.contract import ConfigurationError

ROWS, RATE = 24, 0.5


class Sampler:
    """Poisson batches, from torch's own generator."""

    def __init__(self, steps):
        self.steps = steps

    def __iter__(self):
        for _ in range(self.steps):
            yield (torch.rand(ROWS) < RATE).nonzero().ravel().tolist()


class Optimizer:
    """Clips, sums, adds noise, divides by the expected size, steps."""

    def __init__(self, params, max_grad_norm=1.0):
        self.params = params
        self.max_grad_norm = max_grad_norm
        self.noise_multiplier = 1.0
        self.expected_batch_size = ROWS * RATE

    def clip_and_accumulate(self, rows):
        norms = rows.double().norm(dim=1).clamp_min(self.max_grad_norm).float()
        self.params[0].summed_grad = (rows * (self.max_grad_norm / norms)[:, None]).sum(0)

    def add_noise(self):
        for p in self.params:
            std = self.noise_multiplier * self.max_grad_norm
            p.grad = p.summed_grad + std * torch.randn_like(p.summed_grad)

    def scale_grad(self, rows):
        self.params[0].grad /= self.expected_batch_size

    def step(self, rows):
        self.clip_and_accumulate(rows)
        self.add_noise()
        self.scale_grad(rows)
        for p in self.params:
            p.data -= 0.5 * p.grad


class RealisedSize(Optimizer):
    """Divides by the rows that happen to be there."""

    def scale_grad(self, rows):
        self.params[0].grad /= max(1, len(rows))


class Adaptive(Optimizer):
    """An adaptive norm from a noisy count, divided by the realised size, as AdaClip does."""

    unclipped_num: float | torch.Tensor = 0.0

    def clip_and_accumulate(self, rows):
        super().clip_and_accumulate(rows)
        self.sample_size = max(1, len(rows))
        self.unclipped_num = (rows.norm(dim=1) <= self.max_grad_norm).sum().float()

    def add_noise(self):
        super().add_noise()
        self.unclipped_num = self.unclipped_num + torch.randn(())

    def step(self, rows):
        super().step(rows)
        fraction = float(self.unclipped_num) / self.sample_size
        self.max_grad_norm *= 2.0 ** (0.5 - fraction)


def training(optimizer):
    def train(dataset):
        x, y = dataset.tensors
        weights = torch.nn.Parameter(torch.zeros(x.shape[1]))
        private = optimizer([weights])
        for batch in Sampler(steps=4):
            rows = ((x[batch] @ weights.detach() - y[batch])[:, None] * x[batch]).clamp(-1e9, 1e9)
            private.step(rows)
        return weights

    return train


def replayed(optimizer):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=generator)
    dataset = TensorDataset(x, x.sum(1))
    return replay(training(optimizer), dataset, adapters=[opacus_adapter(Optimizer, Sampler)])


def test_a_fixed_divisor_passes():
    report = replayed(Optimizer)
    report.assert_passed()
    assert report.releases == 4 and report.largest_share > 0.9


def test_a_division_by_the_realised_size_is_found():
    report = replayed(RealisedSize)
    (first, *_) = report.findings
    assert first.kind == "around the door" and first.neighbour == "removed" and first.step == 1


def test_an_adaptive_norm_that_divides_by_the_realised_size_is_found():
    kinds = {(finding.kind, finding.part) for finding in replayed(Adaptive).findings}
    assert ("claim", "clipping norm") in kinds
    assert ("shift", "count") in kinds  # the count moves by 1, and 1/2 is accounted for


def test_without_opacus_the_adapter_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    monkeypatch.setitem(sys.modules, "opacus.optimizers", None)
    with pytest.raises(ConfigurationError, match="opacus must be installed"):
        opacus_adapter()
