"""ModelMix under attack: the record saturates every coordinate it may, afresh at each step."""

from __future__ import annotations

from collections.abc import Iterator

from winsor.audit.suite import Audit, Prepared
from winsor.contrib.modelmix.mixed_gaussian import MixedGaussianDpEvent
from winsor_papers.attack import DELTA, attack
from winsor_papers.modelmix.claim import modelmix_claim
from winsor_papers.modelmix.experiment import MixingExperiment


def modelmix_audits() -> Iterator[Audit]:
    yield Audit("ModelMix, Corollary 4.1", _modelmix_attack, 200_000, 50_000)


def _modelmix_attack() -> Prepared:
    experiment = MixingExperiment(10.0, 0.5, p=4)
    ((event, steps),) = experiment.history
    assert isinstance(event, MixedGaussianDpEvent)
    claim = modelmix_claim(event, steps, DELTA)
    return attack(experiment, claim, "saturated coordinates, crafted at every step", None)
