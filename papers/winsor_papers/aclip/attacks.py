"""AClipped-dpSGD under attack: the others pull the mean one way, one record the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dp_accounting.dp_event import GaussianDpEvent

from winsor.audit.suite import Audit, Prepared
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch
from winsor_papers.aclip.claim import AclipRun
from winsor_papers.attack import ADD, DELTA, attack
from winsor_papers.neighbouring import AuditSetting, RuleExperiment, worst
from winsor_papers.records import LINE


def aclip_audits() -> Iterator[Audit]:
    for epsilon in (4.38, 2.0):
        name = f"AClip, sensitivity lambda, epsilon {epsilon:g}"
        yield Audit(name, partial(_aclip_attack, epsilon), 1_000_000, 1_000_000)


def _aclip_attack(epsilon: float) -> Prepared:
    run = AclipRun(epsilon, DELTA, sampling_probability=1.0, steps=1)
    experiment = aclip_experiment(run)
    law = GaussianDpEvent(run.noise_multiplier)
    return attack(experiment, run.claim(), experiment.records.name, law)


def aclip_experiment(run: AclipRun) -> RuleExperiment:
    """The certified rule with exactly the published noise, on its worst pair."""
    return worst(run.rule, AuditSetting(Gaussian(run.noise_multiplier), FullBatch(10), ADD), LINE)
