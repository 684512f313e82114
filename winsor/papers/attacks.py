"""Attacks on published claims: which of them fail, and by how much.

Each attack runs the real rule with the noise that the paper adds, in two neighbouring worlds chosen
against the paper's argument, and measures a lower bound on epsilon. VIOLATED means that the bound
exceeds the claim (or that the claim fails at its own point), with the audit's confidence; *not
violated by this attack* means no more than it says. Every claim is read in the way most favourable
to its paper, as documented beside it.

All of them are one step on the full batch: what breaks is the sensitivity, not the composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, MixtureOfGaussiansDpEvent
from scipy.special import ndtri_exp
from torch import Tensor
from winsor_reproductions.sco.rates import theorem_6_claim, theorem_6_rho

from winsor.accounting.widened.gaussian import MixedGaussianDpEvent
from winsor.audit.adversaries import worst
from winsor.audit.claims import point_claim
from winsor.audit.curve import ABSENT, PRESENT
from winsor.audit.records import LINE, GradientRecords, Parts, chosen, stacked
from winsor.audit.suite import Audit, Prepared
from winsor.audit.worlds import STACK, Floats, Likelihoods, RuleExperiment, Setting, in_noise_units
from winsor.contract import Bounded, Neighbouring, Released, Sensitivity, Tree
from winsor.contrib.modelmix.audit_worlds import MixingExperiment
from winsor.grads.view import Need, View
from winsor.ledger.ledger import Ledger
from winsor.means.groups import Groups
from winsor.mechanisms.gaussian import Gaussian
from winsor.papers.aclip.claim import AclipRun
from winsor.papers.dc_dpsgd.claim import DcDpsgdRun
from winsor.papers.modelmix.claim import modelmix_claim
from winsor.papers.published import PublishedClaim
from winsor.papers.value.claim import ValueRun, as_printed
from winsor.randomness import stream
from winsor.release.prepaid import PrepaidDoor
from winsor.rules.rule import State, Sums
from winsor.rules.wgc import WeakGrowth
from winsor.sampling.samplers import FullBatch

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
DELTA = 1e-5


def published_audits() -> list[Audit]:
    """One audit per published claim."""
    return [*_dc_dpsgd(), *_aclip(), *_value(), *_shuffling(), *_modelmix()]


def _prepared(
    experiment: object,
    claim: PublishedClaim,
    adversary: str,
    law: DpEvent | None,
    relation: Neighbouring = ADD,
) -> Prepared:
    """``law`` is the exact law of the instance, if it has a name."""
    point = point_claim(claim.published_epsilon, claim.delta, str(claim))
    history = None if law is None else [(law, 1)]
    return Prepared(
        experiment,  # type: ignore[arg-type]
        point,
        adversary,
        history,
        relation,
        delta=claim.delta,
        published=True,
    )


# ------------------------------------------------------------------------------------- DC-DPSGD


@dataclass(frozen=True, eq=False)
class RankInstance:
    """Everybody holds -L e, the target +L e; all traces have one law, so ranks are uniform.

    The target is in the tail with probability k/(n+1), and then pushes another record out. The sums
    of both cases come from the real rank rule; which case a run gets is drawn from that law, since
    calling the rule millions of times would change nothing (a test compares the two).
    """

    run: DcDpsgdRun
    seed: int = 0

    @property
    def records(self) -> GradientRecords:
        z = torch.full((1, 1), 1e3)
        return GradientRecords("ranked", -z.expand(self.run.batch, 1), z[:0], z, LINE)

    @property
    def setting(self) -> Setting:
        """The certified rule with exactly the published noise."""
        noise = Gaussian(self.run.noise_multiplier("rank"))
        return Setting(noise, FullBatch(self.run.batch), ADD, seed=self.seed)

    @property
    def in_tail(self) -> float:
        return round(self.run.tail_fraction * self.run.batch) / (self.run.batch + 1)

    def outcome(self, world: int, draw: int) -> Parts:
        """The real rule's output with the tie-breaking keys of one draw."""
        records, rule = self.records, self.run.rule("rank")
        rule = type(rule)(rule.c1, rule.c2, selection="rank", rank_by="norm", seed=self.seed)
        state = {**records.start(rule, self.run.batch), "step": draw}
        everyone = np.ones(records.count(world), dtype=bool)
        return records.output(rule, world, everyone, state)

    @cached_property
    def _table(self) -> Parts:
        """Absent; present and in the tail; present and not."""
        outcomes = [self.outcome(PRESENT, draw) for draw in range(400)]
        sums = [float(outcome["grad"].value["weight"]) for outcome in outcomes]
        cases = [outcomes[int(np.argmax(sums))], outcomes[int(np.argmin(sums))]]
        return stacked([self.outcome(ABSENT, 0), *cases])

    @cached_property
    def _likelihoods(self) -> Likelihoods:
        weights = np.array([[1.0, 0.0, 0.0], [0.0, self.in_tail, 1 - self.in_tail]])
        return Likelihoods.of(self._table, self.setting.mechanism.std(self._table), weights)

    @property
    def law(self) -> DpEvent:
        run, p = self.run, self.in_tail
        shifts = (2 * run.c1 - run.c2, run.c2)
        return MixtureOfGaussiansDpEvent(run.noise_std, shifts, (p, 1 - p))

    def scores(self, world: int, runs: int, part: int) -> Floats:
        pieces = []
        for start in range(0, runs, STACK):
            key = self.setting.key(world, part, start)
            count = min(STACK, runs - start)
            which = np.zeros(count, dtype=np.int64)
            if world == PRESENT:
                outside = stream(key, "rank", 0).random(count) >= self.in_tail
                which = 1 + outside.astype(np.int64)
            released = self.setting.door(key).release(0, chosen(self._table, which))
            pieces.append(self._likelihoods.ratio(in_noise_units(released)))
        return np.concatenate(pieces)


def _dc_dpsgd() -> Iterator[Audit]:
    settings = (
        ("two noises", 2.0, 6.0),
        ("two noises", 1.0, 7.0),
        ("two noises", 4.0, 4.0),
        ("per record", 4.0, 4.0),
        ("public code", 1.0, 1.0),
        ("public code", 4.0, 4.0),
    )
    for reading, trace, gradient in settings:
        name = f'DC-DPSGD, noise read as "{reading}", budget {trace:g}+{gradient:g}'
        quick = 2_000_000 if trace == 2 else 500_000  # 2+6 exceeds its claim by 11 % only
        yield Audit(name, partial(_rank_attack, reading, trace, gradient), 4_000_000, quick)


def _rank_attack(reading: str, trace: float, gradient: float) -> Prepared:
    run = DcDpsgdRun(trace, gradient, batch=100, records=100, steps=1, reading=reading)
    instance = RankInstance(run)
    adversary = "the target outranks another record and pushes it out of the tail"
    return _prepared(instance, run.claim(), adversary, instance.law)


# ----------------------------------------------------------------------------------------- AClip


def _aclip() -> Iterator[Audit]:
    for epsilon in (4.38, 2.0):
        name = f"AClip, sensitivity lambda, epsilon {epsilon:g}"
        yield Audit(name, partial(_aclip_attack, epsilon), 1_000_000, 1_000_000)


def _aclip_attack(epsilon: float) -> Prepared:
    run = AclipRun(epsilon, DELTA, sampling_probability=1.0, steps=1)
    experiment = aclip_experiment(run)
    law = GaussianDpEvent(run.noise_multiplier)
    return _prepared(experiment, run.claim(), experiment.records.name, law)


def aclip_experiment(run: AclipRun) -> RuleExperiment:
    """The certified rule with exactly the published noise, on its worst pair."""
    return worst(run.rule, Setting(Gaussian(run.noise_multiplier), FullBatch(10), ADD), LINE)


# -------------------------------------------------------------------------------- value clipping


@dataclass(frozen=True)
class PrintedValue:
    """Algorithm 3 with f(w), as if its rows were bounded by C. Least squares on x = 1."""

    max_grad_norm: float = 1.0

    needs = Need.LOSSES | Need.WEIGHTED_SUM
    couples_rows = True

    def init(self, parameters: Tree, expected_size: float) -> State:
        return {}

    def contributions(self, view: View, state: State) -> Sums:
        if not view.size:
            return {"grad": view.total()}
        growth = WeakGrowth(2.0)  # f = r^2/2 and |grad f|^2 = r^2 = 2 f
        return {"grad": as_printed(view, growth, self.max_grad_norm)}

    def bounded(self, sums: Sums, state: State) -> dict[str, Bounded]:
        claimed = Sensitivity.per_sample(self.max_grad_norm, "as published: rows bounded by C")
        return {"grad": Bounded(sums["grad"], claimed)}

    def after(self, released: Released, state: State) -> tuple[Tree, State]:
        return released.values["grad"], state


def _value() -> Iterator[Audit]:
    yield Audit("Value clipping, Algorithm 3 with f(w)", _value_attack, 1_000_000, 200_000)


def _value_attack() -> Prepared:
    run = ValueRun(4.0, DELTA, sampling_probability=1.0, steps=1)
    n, residual = 1000, 2.5

    def squared(rows: Tensor) -> Tensor:
        return rows[:, 0].square() / 2

    z = torch.full((1, 1), residual)
    name = "one record with a large loss among many that fit"
    records = GradientRecords(name, z.new_zeros((n, 1)), z[:0], z, LINE, squared)
    setting = Setting(Gaussian(run.noise_multiplier), FullBatch(n), ADD)
    experiment = RuleExperiment(PrintedValue(), records, setting)
    law = GaussianDpEvent(run.noise_multiplier / residual)
    return _prepared(experiment, run.claim(), name, law)


# ------------------------------------------------------------------------- shuffled group means


@dataclass(frozen=True, eq=False)
class ShuffledGroups:
    """k noisy group means in random order; group 1 sits at -R, all others at +R.

    The smallest mean ignores the order, and it is group 1's. The first mean is released by the real
    prepaid door; of the k - 1 others only the smallest matters, drawn from its exact law.
    """

    rho: float
    k: int
    size: int = 100_000
    radius: float = 1.0
    seed: int = 0

    def scores(self, world: int, runs: int, part: int) -> Floats:
        setting = Setting(Gaussian(1.0), FullBatch(1), REPLACE, seed=self.seed)
        key = setting.key(world, part)
        groups = Groups(self.k * self.size, self.k, "partition", REPLACE)
        door = PrepaidDoor(Ledger({}), REPLACE, key)
        sensitivity = groups.sensitivity(self.radius)
        # (19): rho = (2R/m)^2 / (2 s^2), and s is the multiplier times R/m.
        mechanism = Gaussian(math.sqrt(2 / self.rho))
        receipt = door.pay(mechanism, groups.sampler, sensitivity, 1, (runs,))
        # One record of group 1 at +R instead of -R moves its mean by 2R/m.
        mean = -self.radius + (2 * self.radius / self.size if world == PRESENT else 0.0)
        first = receipt.release(np.full(runs, mean))
        uniform = stream(key, "others", 0).random(runs)
        others = self.radius + receipt.std * _smallest_normal(uniform, self.k - 1)
        return np.minimum(first, others)


def _smallest_normal(uniform: Floats, count: int) -> Floats:
    """The smallest of ``count`` standard normals: P(min > x) = P(z > x)^count."""
    return -np.asarray(ndtri_exp(np.log(uniform) / count))


def _shuffling() -> Iterator[Audit]:
    name = "Heavy-tailed DP-SCO, Theorem 6, 1,000,000 shuffled groups"
    yield Audit(name, _shuffling_attack, 8_000_000, 4_000_000)


def _shuffling_attack() -> Prepared:
    k = 1_000_000
    rho = theorem_6_rho(0.212, DELTA, k)
    law = GaussianDpEvent(1 / math.sqrt(2 * rho))
    adversary = "the smallest group mean, which no order can hide"
    claim = theorem_6_claim(rho, DELTA, k)
    return _prepared(ShuffledGroups(rho, k), claim, adversary, law, REPLACE)


# -------------------------------------------------------------------------------------- ModelMix


def _modelmix() -> Iterator[Audit]:
    yield Audit("ModelMix, Corollary 4.1", _modelmix_attack, 200_000, 50_000)


def _modelmix_attack() -> Prepared:
    experiment = MixingExperiment(10.0, 0.5, p=4)
    ((event, steps),) = experiment.history
    assert isinstance(event, MixedGaussianDpEvent)
    claim = modelmix_claim(event, steps, DELTA)
    return _prepared(experiment, claim, "saturated coordinates, crafted at every step", None)
