"""A real network on which bounds that are not quite bounds fail.

Each hidden matrix stretches the first coordinate three times and the others not at all. A canary
along the first coordinate is stretched at every layer, so that its gradient is as long as certified
spectral norms say; a power iteration that has not converged sees mostly the other coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from winsor_papers.records import Mask, Parts

from winsor.audit.curve import PRESENT
from winsor.contrib.value.engine import ForwardEngine
from winsor.gradients import Engine, Need, make_engine, trainable_parameters
from winsor.rules.rule import Rule, State, no_rows

WIDTH = 8
STRETCH = 3.0


@dataclass(frozen=True, eq=False)
class ModelRecords:
    """Rows (inputs, labels) for a classifier, seen through a real engine.

    The record in question comes last and is added. Rules that bound gradients from the forward
    pass need them.
    """

    name: str
    model: nn.Module
    common: tuple[Tensor, Tensor]
    present: tuple[Tensor, Tensor]

    def count(self, dataset: int) -> int:
        return len(self.common[1]) + (len(self.present[1]) if dataset == PRESENT else 0)

    def start(self, rule: Rule, expected_size: float) -> State:
        return rule.init(dict(trainable_parameters(self.model)), expected_size)

    def output(self, rule: Rule, dataset: int, batch: Mask, state: State) -> Parts:
        parameters = trainable_parameters(self.model)
        if not batch.any():
            return rule.bounded(rule.contributions(no_rows(parameters), state), state)
        pairs = zip(self.common, self.present, strict=True)
        inputs, labels = (torch.cat([a, b] if dataset == PRESENT else [a]) for a, b in pairs)
        chosen = torch.from_numpy(batch)
        engine = _engine(self.model, rule.needs)
        engine.attach()
        engine.recording(True)
        try:
            losses = F.cross_entropy(self.model(inputs[chosen]), labels[chosen], reduction="none")
            view = engine.view(losses)
            return rule.bounded(rule.contributions(view, state), state)
        finally:
            engine.recording(False)
            engine.detach()


def _engine(model: nn.Module, needs: Need) -> Engine:
    """The engine that training would choose for a rule with these needs; bounds from the forward
    pass are audited as such, also on models of linear layers, where training takes the norms."""
    parameters = trainable_parameters(model)
    if Need.FORWARD in needs:
        return ForwardEngine(model, parameters)
    return make_engine(model, parameters, "auto", needs)


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
