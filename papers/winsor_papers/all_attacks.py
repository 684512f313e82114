"""Every published claim with the attack that its argument overlooks."""

from __future__ import annotations

from winsor.audit.suite import Audit
from winsor_papers.aclip.attacks import aclip_audits
from winsor_papers.dc_dpsgd.attacks import dc_dpsgd_audits
from winsor_papers.modelmix.attacks import modelmix_audits
from winsor_papers.sco.attacks import sco_audits
from winsor_papers.value.attacks import value_audits


def published_audits() -> list[Audit]:
    """One audit per published claim."""
    return [
        *dc_dpsgd_audits(),
        *aclip_audits(),
        *value_audits(),
        *sco_audits(),
        *modelmix_audits(),
    ]
