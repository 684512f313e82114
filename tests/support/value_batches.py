"""What value clipping sums over a batch, and batches that no float survives."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from winsor.contrib.value.engine import ForwardEngine
from winsor.gradients import trainable_parameters


def contribution(rule, model, x, y, state=None):
    """The rule's sum over rows as one flat vector."""
    parameters = trainable_parameters(model)
    engine = ForwardEngine(model, parameters)
    engine.attach()
    engine.recording(True)
    state = rule.init(parameters, 8.0) if state is None else state
    losses = F.cross_entropy(model(x), y, reduction="none")
    sums = rule.contributions(engine.view(losses), state)
    engine.detach()
    return torch.cat([g.flatten() for g in sums["grad"].values()]).double()


def hostile_batch():
    """Rows of all sizes, and the ones no float survives; the last row is the one to remove."""
    torch.manual_seed(9)
    x = torch.randn(8, 12) * torch.tensor([1e-6, 1, 1e3, 1e6, 1, 1, 1, 1.0])[:, None]
    x[4] = float("nan")
    x[5, 0] = float("inf")
    x[6] = 1e30
    return x, torch.arange(8) % 3


LAST = [0.0, 1.0, 1e4, 1e12, 1e20, 1e30, float("inf"), float("nan")]
