"""Every deliberately wrong mechanism is flagged, also by the quick audit."""

import pytest

from winsor.audit.mutants import mutants
from winsor.audit.suite import run
from winsor.contrib.modelmix import audits as modelmix

MUTANTS = {audit.name: audit for audit in [*mutants(), *modelmix.mutants()]}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_flagged(name):
    row = run(MUTANTS[name], quick=True)
    assert row.violated, row
    assert row.margin > 0
