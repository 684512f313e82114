"""A real network on which bounds that are not quite bounds fail.

Each hidden matrix stretches the first coordinate three times and the others not at all. A canary
along the first coordinate is stretched at every layer, so that its gradient is as long as certified
spectral norms say; a power iteration that has not converged sees mostly the other coordinates.
"""

from __future__ import annotations

import torch
from torch import nn

from winsor.audit.records import ModelRecords

WIDTH = 8
STRETCH = 3.0


def stretching_network() -> nn.Module:
    """Two hidden layers diag(3, 1, ..., 1) with ReLU, and two opposite logits."""
    hidden = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    head = nn.Linear(WIDTH, 2)
    with torch.no_grad():
        for layer in hidden:
            layer.weight.copy_(torch.eye(WIDTH))
            layer.weight[0, 0] = STRETCH
        head.weight.zero_()
        head.weight[:, 0] = torch.tensor([0.5, -0.5])
        for layer in (*hidden, head):
            layer.bias.zero_()
    return nn.Sequential(hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), head)


def value_records(length: float = 10.0, others: int = 4) -> ModelRecords:
    """A misclassified record along the stretched coordinate, among records that are learnt."""
    canary = torch.zeros(1, WIDTH)
    canary[0, 0] = length
    common = torch.zeros(others, WIDTH)
    common[:, 0] = length  # the right label: loss and gradient are nearly zero
    wrong, right = torch.ones(1, dtype=torch.long), torch.zeros(others, dtype=torch.long)
    name = "misclassified record along the top singular vectors"
    return ModelRecords(name, stretching_network(), (common, right), (canary, wrong))
