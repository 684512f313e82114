"""Every deliberately wrong mechanism is flagged, also by the quick audit."""

from functools import partial

import pytest
from selfaudit import modelmix_audits as modelmix
from selfaudit.mutants import mutants
from selfaudit.training_mutants import mistaken
from torch import nn

from winsor.audit.suite import Audit, run

MUTANTS = {audit.name: audit for audit in [*mutants(), *modelmix.mutants()]}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_flagged(name):
    row = run(MUTANTS[name], quick=True)
    assert row.violated, row
    assert row.margin > 0


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.linear(x)


def test_a_training_without_the_mistake_is_not_flagged():
    honest = Audit("plain", partial(mistaken, Plain, "one huge record among silent ones"), 400, 150)
    assert not run(honest, quick=True).violated
