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

import statistic_battery
import torch
from winsor_papers.neighbouring import NOMINAL, AuditSetting, RuleExperiment, canary, pairs, worst
from winsor_papers.records import MODEL, Parts

from selfaudit.drawing import CorrelatedExperiment, CorrelatedTraining, UnitTraining
from selfaudit.means import (
    AveragedMeanExperiment,
    CalledMeanExperiment,
    ClippedMeanExperiment,
    RadiusExperiment,
)
from selfaudit.networks import value_records
from selfaudit.ranges import RangeExperiment
from selfaudit.statistics import StatisticExperiment
from selfaudit.tables import SUMS, TableExperiment
from selfaudit.trainings import TrainingExperiment
from selfaudit.transcripts import RandomRuleExperiment, TranscriptExperiment
from winsor import rules
from winsor.audit.claims import USUAL_DELTA, gaussian_mu
from winsor.audit.suite import Audit, Prepared, certified
from winsor.core.contract import Neighbouring
from winsor.core.noise.banded import BandedGaussian
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.protocol import Mechanism
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler
from winsor.rules.coordinates import L1
from winsor.rules.flat import Flat
from winsor.rules.rule import Rule, dry_run

EPSILON = 4.0
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
SINGLE = 1 / gaussian_mu(EPSILON, USUAL_DELTA)
"""Noise multiplier of one full-batch release at the claimed epsilon."""


def honest_audits() -> list[Audit]:
    """All audits whose claims are certified: a violation of any is a bug in winsor."""
    families = (
        _rules, _samplers, _stateful, _networks, _means, _tables, _statistics, _training,
    )  # fmt: skip
    return [audit for family in families for audit in family()]


# ---------------------------------------------------------------------------------------- rules


def _rules() -> Iterator[Audit]:
    for rule in rules.all_examples():
        for relation in (ADD, REPLACE):
            if relation is ADD and _rests_on_coins(rule):
                prepare: Callable[[], Prepared] = partial(_secret_coins, rule)
                yield Audit(f"{title(rule)}, secret coins", prepare, 20_000, 1_500)
                continue
            prepare = partial(full_batch, rule, relation)
            yield Audit(f"{title(rule)}, {short(relation)}", prepare)


def full_batch(
    rule: Rule, relation: Neighbouring = ADD, mechanism: Mechanism | None = None
) -> Prepared:
    """One release of the rule on the pair of datasets that moves it most."""
    mechanism = mechanism or Gaussian(SINGLE)
    experiment = worst(rule, AuditSetting(mechanism, FullBatch(NOMINAL), relation))
    return certified(experiment, experiment.records.name)


def _secret_coins(rule: Rule) -> Prepared:
    records = next(pairs(ADD))  # a canary whose other batch is empty
    setting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD)
    return certified(RandomRuleExperiment(rule, records, setting), records.name)


def _rests_on_coins(rule: Rule) -> bool:
    """Whether the event itself, not only the value, is that of a random shift."""
    return any(part.sensitivity.mixture is not None for part in _parts(rule).values())


def _parts(rule: Rule) -> Parts:
    """What the rule releases for an audit-sized problem."""
    return dry_run(rule, {name: torch.zeros(shape) for name, shape in MODEL.items()}, NOMINAL)


# ------------------------------------------------------------------------------------- samplers


def _samplers() -> Iterator[Audit]:
    long = partial(sampled, Poisson(NOMINAL, 0.05), 200, ADD)
    yield Audit("Poisson q=0.05, 200 steps", long, 100_000, 50_000)
    replaced = partial(sampled, Poisson(NOMINAL, 0.2), 20, REPLACE)
    yield Audit("Poisson q=0.2, 20 steps, replace", replaced)
    drawn = partial(sampled, Poisson(NOMINAL, 0.3), 3, ADD, silent=4, real_sampler=True)
    yield Audit("Poisson q=0.3, 3 steps, sampler's own draws", drawn, 20_000, 4_000)
    fixed = partial(sampled, FixedSize(5, 2), 10, REPLACE, silent=4)
    yield Audit("fixed size 2 of 5, 10 steps", fixed)
    drawn = partial(sampled, FixedSize(5, 2), 3, REPLACE, silent=4, real_sampler=True)
    yield Audit("fixed size 2 of 5, 3 steps, sampler's own draws", drawn, 20_000, 4_000)
    yield Audit("full batch, 8 steps, gradients turned round", partial(turning, 8))
    rounds = calibrated(Poisson(NOMINAL, 0.4), 3, ADD)
    banded = partial(correlated, CyclicPoisson(NOMINAL, 4, 0.1), 12, 4, rounds)
    yield Audit("correlated noise, 4 bands, 12 cyclic steps", banded, 400_000, 200_000)
    yield Audit("Laplace noise, L1 clipping, full batch", partial(_laplace, FullBatch(NOMINAL), 1))
    laplace = partial(_laplace, Poisson(NOMINAL, 0.2), 10)
    yield Audit("Laplace noise, L1 clipping, Poisson q=0.2, 10 steps", laplace)


def sampled(
    sampler: Sampler,
    steps: int,
    relation: Neighbouring,
    mechanism: Callable[[float], Mechanism] = Gaussian,
    silent: int = 0,
    real_sampler: bool = False,
) -> Prepared:
    """Steps of per-sample clipping on a canary, perhaps among ``silent`` records."""
    noise = mechanism(calibrated(sampler, steps, relation))
    setting = AuditSetting(noise, sampler, relation, steps)
    records = canary(relation, silent)
    experiment = RuleExperiment(Flat(1.0), records, setting, real_sampler=real_sampler)
    where = "among silent records" if silent else "at every step"
    return certified(experiment, f"{records.name} {where}")


def turning(steps: int, kind: type[AuditSetting] = AuditSetting) -> Prepared:
    """A record that turns its gradient round finds noise that is not fresh at every step."""
    setting = kind(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    experiment = RuleExperiment(Flat(1.0), canary(ADD), setting, alternating=True)
    return certified(experiment, "crafted gradient, turned round at every step")


def _laplace(sampler: Sampler, steps: int) -> Prepared:
    setting = AuditSetting(Laplace(0.5), sampler, ADD, steps)
    experiment = RuleExperiment(L1(1.0), canary(ADD), setting)
    return certified(experiment, "Dirac canary at every step")


def calibrated(sampler: Sampler, steps: int, relation: Neighbouring) -> float:
    """The noise multiplier at which per-sample clipping claims the audit's epsilon."""
    from winsor.planning.run import PlannedRun

    parts = Flat(1.0).bounded({"grad": {}}, {})
    run = PlannedRun(sampler, parts, "gaussian", relation, USUAL_DELTA, steps)
    return run.noise_for(EPSILON)


# ------------------------------------------------------------------------- state, networks, means


def _stateful() -> Iterator[Audit]:
    for rule in rules.all_examples():
        if "count" in _parts(rule):
            name = f"{title(rule)}, 2 steps with its state"
            yield Audit(name, partial(transcript, rule), 2_000, 300)


def transcript(rule: Rule) -> Prepared:
    """Two steps of a rule whose state follows its releases."""
    steps = 2
    setting = AuditSetting(Gaussian(SINGLE * steps**0.5), FullBatch(NOMINAL), ADD, steps)
    records = worst(rule, setting).records
    return certified(TranscriptExperiment(rule, records, setting), records.name)


def _networks() -> Iterator[Audit]:
    for rule in rules.all_examples():
        if rule.needs_network:
            yield Audit(f"{title(rule)}, a real network", partial(network, rule))


def network(rule: Rule) -> Prepared:
    """A rule that bounds gradients from the forward pass, on the network that tests it most."""
    records = value_records()
    setting = AuditSetting(Gaussian(SINGLE), FullBatch(records.count(0)), ADD)
    return certified(RuleExperiment(rule, records, setting), records.name)


def _means() -> Iterator[Audit]:
    far = "one record far outside the ball"
    for relation in (ADD, REPLACE):
        suffix = short(relation)
        # over the add/remove shift, of a release that a replaced record moves twice
        single = SINGLE * (2.0 if relation is REPLACE else 1.0)
        clipped = partial(certified, ClippedMeanExperiment(single, relation), far)
        yield Audit(f"clipped mean, {suffix}", clipped)
        called = partial(certified, CalledMeanExperiment(EPSILON, relation), far)
        yield Audit(f"clipped mean as called, {suffix}", called, 20_000, 2_500)
        averaged = partial(certified, AveragedMeanExperiment(EPSILON, relation), "mean flip")
        yield Audit(f"averaged mean as called, {suffix}", averaged, 20_000, 2_500)
        for grouping in ("partition", "poisson"):
            called = partial(certified, CalledMeanExperiment(EPSILON, relation, 4, grouping), far)
            name = f"iterative mean as called, {grouping}, {suffix}"
            yield Audit(name, called, 20_000, 2_500)
        search = RadiusExperiment(single * RadiusExperiment.radius.steps**0.5, relation)
        counted = partial(certified, search, "one record inside every radius, all counts")
        yield Audit(f"private radius, {suffix}", counted, 20_000, 3_000)


def _tables() -> Iterator[Audit]:
    for name in SUMS:
        for relation in (ADD, REPLACE):
            released = TableExperiment(name, SINGLE * 2.0, relation)
            prepare = partial(certified, released, "the record that moves the sum most")
            yield Audit(f"sums of a table: {name}, {short(relation)}", prepare, 20_000, 2_500)
    for relation in (ADD, REPLACE):
        ranges = RangeExperiment(SINGLE * 2**0.5, relation)
        prepare = partial(certified, ranges, "a record that is no indicator, both rounds")
        yield Audit(f"ranges of the columns left, {short(relation)}", prepare, 10_000, 1_000)


def _statistics() -> Iterator[Audit]:
    for statistic in statistic_battery.examples():
        for relation in (ADD, REPLACE):
            setting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), relation)
            released = StatisticExperiment(statistic, setting)
            prepare = partial(certified, released, "the row that moves the sum most")
            yield Audit(f"{statistic!r}, {short(relation)}", prepare)


def _training() -> Iterator[Audit]:
    yield Audit("the whole training loop, Poisson q=0.5", _loop, 10_000, 1_500)

    yield Audit(
        "the whole training loop, correlated noise, 2 bands", _correlated_loop, 10_000, 1_500
    )
    yield Audit("the whole training loop, a person with 50 rows", units, 10_000, 1_500)


def _loop() -> Prepared:
    experiment = TrainingExperiment(calibrated(Poisson(NOMINAL, 0.5), 1, ADD))
    return certified(experiment, "Dirac canary among silent records")


def _correlated_loop() -> Prepared:
    experiment = CorrelatedTraining(calibrated(Poisson(NOMINAL, 0.5), 1, ADD))
    return certified(experiment, "Dirac canary whose group is known")


def units(**changes: Any) -> Prepared:
    experiment = UnitTraining(calibrated(Poisson(NOMINAL, 0.5), 1, ADD), **changes)
    return certified(experiment, "a person with 50 loud rows among silent persons")


def correlated(sampler: Sampler, steps: int, bands: int, noise_multiplier: float) -> Prepared:
    """Noise of several bands over a record that speaks whenever it is drawn."""
    noise = BandedGaussian.of_bands(noise_multiplier, bands)
    setting = AuditSetting(noise, sampler, ADD, steps)
    return certified(CorrelatedExperiment(setting), "C times the releases, visits enumerated")


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
