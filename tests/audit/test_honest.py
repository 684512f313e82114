"""Every certified claim stands up to its worst adversary. A new rule is picked up by itself."""

import math

import pytest
from selfaudit import modelmix_audits as modelmix
from selfaudit.honest import honest_audits

from winsor import rules
from winsor.audit.suite import run

ALL = [*honest_audits(), *modelmix.honest()]
AUDITS = {audit.name: audit for audit in ALL}


@pytest.mark.parametrize("name", AUDITS)
def test_certified_claims_are_not_violated(name):
    row = run(AUDITS[name], quick=True)
    assert not row.violated, row
    assert 0 <= row.lower_bound <= row.claimed_epsilon < math.inf


def test_no_two_audits_share_a_name():
    assert len(AUDITS) == len(ALL)


def test_every_rule_is_audited():
    for name in rules.all_rules():
        assert any(audit.startswith(f"{name}(") for audit in AUDITS), name
