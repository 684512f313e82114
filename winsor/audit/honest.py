"""Every mechanism of winsor, each with the adversary that hurts it most. All must pass.

Rules are discovered, not listed: a new file in `winsor/rules` is audited without a change here.
Noise is calibrated so that each audit's claimed epsilon is 4 (the rules under replace-one: their
add/remove noise, hence a larger claim).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from dp_accounting import dp_event

from winsor import rules
from winsor.audit.adversaries import NOMINAL, canary, directions, worst
from winsor.audit.claims import USUAL_DELTA, gaussian_mu
from winsor.audit.curve import PRESENT
from winsor.audit.mean_worlds import (
    CalledMeanExperiment,
    ClippedMeanExperiment,
    GroupMeansExperiment,
    RadiusExperiment,
)
from winsor.audit.records import MODEL, GradientRecords, Parts, dimension
from winsor.audit.suite import Audit, Prepared, certified
from winsor.audit.training_worlds import TrainingExperiment
from winsor.audit.transcripts import RandomRuleExperiment, TranscriptExperiment
from winsor.audit.value_worlds import value_records
from winsor.audit.worlds import RuleExperiment, Setting
from winsor.contract import Neighbouring
from winsor.contrib.modelmix.audit_worlds import MixingExperiment, exact_step_claim
from winsor.mechanisms.gaussian import Gaussian
from winsor.mechanisms.laplace import Laplace
from winsor.rules.flat import Flat
from winsor.rules.l1 import L1
from winsor.rules.rule import Rule
from winsor.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler
from winsor.tails.monitor import PrivateMonitor

EPSILON = 4.0
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
SINGLE = 1 / gaussian_mu(EPSILON, USUAL_DELTA)
"""Noise multiplier of one full-batch release at the claimed epsilon."""


def honest_audits() -> list[Audit]:
    """All audits whose claims are certified: a violation of any is a bug in winsor."""
    families = (_rules, _samplers, _stateful, _networks, _mixing, _means, _training)
    return [audit for family in families for audit in family()]


# ---------------------------------------------------------------------------------------- rules


def _rules() -> Iterator[Audit]:
    for rule in (*rules.all_examples(), PrivateMonitor(Flat(1.0))):
        for relation in (ADD, REPLACE):
            if relation is ADD and _rests_on_coins(rule):
                prepare: Callable[[], Prepared] = partial(_secret_coins, rule)
                yield Audit(f"{title(rule)}, secret coins", prepare, 20_000, 1_500)
                continue
            prepare = partial(_full_batch, rule, relation)
            yield Audit(f"{title(rule)}, {short(relation)}", prepare)


def _full_batch(rule: Rule, relation: Neighbouring) -> Prepared:
    experiment = worst(rule, Setting(Gaussian(SINGLE), FullBatch(NOMINAL), relation))
    return certified(experiment, experiment.records.name, relation)


def _secret_coins(rule: Rule) -> Prepared:
    records = _lonely_canary()
    setting = Setting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)
    return certified(RandomRuleExperiment(rule, records, setting), records.name, ADD)


def _rests_on_coins(rule: Rule) -> bool:
    """Whether the event itself, not only the value, is that of a random shift."""
    parts = _parts(rule)
    return any(part.sensitivity.mixture is not None for part in parts.values())


def _parts(rule: Rule) -> Parts:
    """What the rule releases for an audit-sized problem."""
    records = _lonely_canary()
    return records.output(rule, PRESENT, np.ones(1, dtype=bool), records.start(rule, NOMINAL))


def _lonely_canary() -> GradientRecords:
    nobody = torch.zeros((0, dimension(MODEL)))
    z = 1e6 * directions(MODEL)["one-hot"][None]
    return GradientRecords("canary, other batch empty", nobody, nobody, z)


# ------------------------------------------------------------------------------------- samplers


def _samplers() -> Iterator[Audit]:
    long = partial(_many_steps, 0.05, 200, ADD)
    yield Audit("Poisson q=0.05, 200 steps", long, 100_000, 50_000)
    yield Audit("Poisson q=0.2, 20 steps, replace", partial(_many_steps, 0.2, 20, REPLACE))
    drawn = partial(_real_sampler, Poisson(NOMINAL, 0.3), ADD)
    yield Audit("Poisson q=0.3, 3 steps, sampler's own draws", drawn, 20_000, 4_000)
    yield Audit("fixed size 2 of 5, 10 steps", partial(_fixed_size, 10))
    drawn = partial(_real_sampler, FixedSize(5, 2), REPLACE)
    yield Audit("fixed size 2 of 5, 3 steps, sampler's own draws", drawn, 20_000, 4_000)
    yield Audit("full batch, 8 steps, gradients turned round", _turning)
    yield Audit("Laplace noise, L1 clipping, full batch", partial(_laplace, FullBatch(NOMINAL), 1))
    sampled = partial(_laplace, Poisson(NOMINAL, 0.2), 10)
    yield Audit("Laplace noise, L1 clipping, Poisson q=0.2, 10 steps", sampled)


def _many_steps(q: float, steps: int, relation: Neighbouring) -> Prepared:
    sampler = Poisson(NOMINAL, q)
    multiplier = calibrated(sampler, steps, relation)
    setting = Setting(Gaussian(multiplier), sampler, relation, steps)
    experiment = RuleExperiment(Flat(1.0), canary(relation), setting)
    return certified(experiment, "Dirac canary at every step", relation)


def _real_sampler(sampler: Sampler, relation: Neighbouring) -> Prepared:
    steps = 3
    setting = Setting(Gaussian(calibrated(sampler, steps, relation)), sampler, relation, steps)
    records = canary(relation, silent=4)
    experiment = RuleExperiment(Flat(1.0), records, setting, real_sampler=True)
    return certified(experiment, "Dirac canary among silent records", relation)


def _fixed_size(steps: int) -> Prepared:
    sampler = FixedSize(5, 2)
    setting = Setting(Gaussian(calibrated(sampler, steps, REPLACE)), sampler, REPLACE, steps)
    experiment = RuleExperiment(Flat(1.0), canary(REPLACE, silent=4), setting)
    return certified(experiment, "Dirac canary against its opposite", REPLACE)


def _turning() -> Prepared:
    steps = 8
    setting = Setting(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    experiment = RuleExperiment(Flat(1.0), canary(ADD), setting, alternating=True)
    return certified(experiment, "crafted gradient, turned round at every step", ADD)


def _laplace(sampler: Sampler, steps: int) -> Prepared:
    setting = Setting(Laplace(0.5), sampler, ADD, steps)
    experiment = RuleExperiment(L1(1.0), canary(ADD), setting)
    return certified(experiment, "Dirac canary at every step", ADD)


def calibrated(sampler: Sampler, steps: int, relation: Neighbouring) -> float:
    """The noise multiplier at which per-sample clipping claims the audit's epsilon."""
    from winsor.accounting import calibrate

    def event_of(multiplier: float) -> dp_event.DpEvent:
        mechanism, rule = Gaussian(multiplier), Flat(1.0)
        parts = rule.bounded({"grad": {}}, {})
        return sampler.amplify(mechanism.event(parts), relation)

    return calibrate.noise_multiplier(event_of, steps, EPSILON, USUAL_DELTA, relation)


# ----------------------------------------------------------------- state, networks, mixing, means


def _stateful() -> Iterator[Audit]:
    for rule in rules.all_examples():
        if "count" in _parts(rule):
            name = f"{title(rule)}, 2 steps with its state"
            yield Audit(name, partial(_transcript, rule), 2_000, 300)


def _transcript(rule: Rule) -> Prepared:
    steps = 2
    setting = Setting(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    experiment = TranscriptExperiment(rule, worst(rule, setting).records, setting)
    return certified(experiment, experiment.records.name, ADD)


def _networks() -> Iterator[Audit]:
    for rule in rules.all_examples():
        if type(rule).__name__ == "Value":
            yield Audit(f"{title(rule)}, a real network", partial(_network, rule))


def _network(rule: Rule) -> Prepared:
    records = value_records()
    setting = Setting(Gaussian(SINGLE), FullBatch(records.count(0)), ADD)
    return certified(RuleExperiment(rule, records, setting), records.name, ADD)


def _mixing() -> Iterator[Audit]:
    settings = {
        "full batch, 20 steps, one coordinate": MixingExperiment(2.0, 0.5, p=1, q=1.0, steps=20),
        "q=0.2, 10 steps, one coordinate": MixingExperiment(10.0, 0.5, p=1),
        "q=0.2, 10 steps, 4 coordinates": MixingExperiment(10.0, 0.5, p=4),
        "Laplace, q=0.2, 10 steps, one coordinate": MixingExperiment(10.0, 0.5, noise="laplace"),
    }
    for name, experiment in settings.items():
        yield Audit(f"ModelMix, {name}", partial(_mixed, experiment), 100_000, 20_000)
    for noise in ("gaussian", "laplace"):
        for how, tau, multiplier in (("widely", 0.3, 0.35), ("narrowly", 0.1, 1.0)):
            single = MixingExperiment(tau, multiplier, q=1.0, steps=1, noise=noise)
            name = f"ModelMix, {noise}, {how} mixed, exact law of one step"
            yield Audit(name, partial(exact_step, single))


def _mixed(experiment: MixingExperiment) -> Prepared:
    return certified(experiment, "saturated coordinates, crafted at every step", ADD, points=8)


def exact_step(experiment: MixingExperiment) -> Prepared:
    adversary = "saturated coordinate"
    return Prepared(experiment, exact_step_claim(experiment), adversary)


def _means() -> Iterator[Audit]:
    for relation in (ADD, REPLACE):
        suffix = short(relation)
        yield Audit(f"clipped mean, {suffix}", partial(_clipped_mean, relation))
        called = partial(_called_mean, relation, None)
        yield Audit(f"clipped mean as called, {suffix}", called, 20_000, 2_500)
        called = partial(_called_mean, relation, 4)
        yield Audit(f"iterative mean as called, partition, {suffix}", called, 20_000, 2_500)
        grouped = partial(_group_means, relation)
        yield Audit(f"iterative mean, Poisson groups, {suffix}", grouped, 20_000, 3_000)
        yield Audit(f"private radius, {suffix}", partial(_radius, relation), 20_000, 3_000)


def _single(relation: Neighbouring) -> float:
    """Multiplier, over the add/remove shift, of a release that a replaced record moves twice."""
    return SINGLE * (2.0 if relation is REPLACE else 1.0)


def _clipped_mean(relation: Neighbouring) -> Prepared:
    experiment = ClippedMeanExperiment(_single(relation), relation)
    return certified(experiment, "one record far outside the ball", relation)


def _called_mean(relation: Neighbouring, groups: int | None) -> Prepared:
    experiment = CalledMeanExperiment(EPSILON, relation, groups)
    return certified(experiment, "one record far outside the ball", relation)


def _group_means(relation: Neighbouring) -> Prepared:
    multiplier = calibrated(Poisson(NOMINAL, 0.25), 4, relation)
    experiment = GroupMeansExperiment(multiplier, relation)
    return certified(experiment, "the whole transcript of group means", relation)


def _radius(relation: Neighbouring) -> Prepared:
    steps = RadiusExperiment.radius.steps
    experiment = RadiusExperiment(_single(relation) * steps**0.5, relation)
    return certified(experiment, "one record inside every radius, all counts", relation)


def _training() -> Iterator[Audit]:
    yield Audit("the whole training loop, Poisson q=0.5", _loop, 10_000, 1_500)


def _loop() -> Prepared:
    experiment = TrainingExperiment(calibrated(Poisson(NOMINAL, 0.5), 1, ADD))
    return certified(experiment, "Dirac canary among silent records", ADD)


# ---------------------------------------------------------------------------------------- names


def short(relation: Neighbouring) -> str:
    return "add/remove" if relation is ADD else "replace"


def title(rule: Any) -> str:
    """The rule with the settings that are not default: its repr without the noise."""
    if not dataclasses.is_dataclass(rule):
        return repr(rule)
    told = []
    for field in dataclasses.fields(rule):
        value, default = getattr(rule, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            told.append(title(value))
        elif value != default and field.name != "seed":
            told.append(f"{field.name}={title(value)}")
    return f"{type(rule).__name__}({', '.join(told)})"
