"""Published claims that fail, how far they fail, and that the certified ones beside them stand."""

import numpy as np
import pytest
import torch
from winsor_papers.aclip.attacks import aclip_experiment
from winsor_papers.aclip.claim import AclipRun
from winsor_papers.all_attacks import published_audits
from winsor_papers.dc_dpsgd.attacks import RankInstance
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.sco.attacks import ShuffledGroups, _smallest_normal
from winsor_papers.value.attacks import PrintedValue

from winsor.audit.claims import certified_claim
from winsor.audit.curve import ABSENT, PRESENT, curve_test
from winsor.audit.suite import run
from winsor.core.contract import Neighbouring

AUDITS = {audit.name: audit for audit in published_audits()}
ADD = Neighbouring.ADD_OR_REMOVE_ONE


def verdict(part, quick=True):
    (name,) = [name for name in AUDITS if part in name]
    return run(AUDITS[name], quick)


def test_aclip_at_noise_lambda_is_published_as_4_38_and_measured_above_5_5():
    run_ = AclipRun(4.38, 1e-5, sampling_probability=1.0, steps=1)
    assert run_.noise_std == pytest.approx(run_.max_mean_norm, rel=0.01)
    row = verdict("AClip, sensitivity lambda, epsilon 4.38")
    assert row.violated and row.claimed_epsilon == 4.38
    assert row.lower_bound > 5.5


def test_aclip_is_refuted_without_assuming_that_the_noise_is_gaussian():
    experiment = aclip_experiment(AclipRun(4.38, 1e-5, sampling_probability=1.0, steps=1))
    claim = certified_claim(experiment.history, ADD)
    result = curve_test(experiment, claim, 1_000_000)
    assert result.roc.epsilon(1e-5) > 5.5
    assert not result.violated  # against 2 lambda, what winsor certifies


def test_dc_dpsgd_public_code_noise_is_far_above_its_claim():
    assert verdict('"public code", budget 1+1').lower_bound > 5 * 2
    row = verdict('"public code", budget 4+4')
    assert row.violated and row.lower_bound > 3 * 8


@pytest.mark.parametrize(("split", "fails"), [("2+6", True), ("1+7", True), ("4+4", False)])
def test_dc_dpsgd_printed_noise_fails_for_uneven_splits(split, fails):
    row = verdict(f'"two noises", budget {split}')
    assert row.violated is fails
    assert row.claimed_epsilon == 8


def test_the_rank_attack_does_not_violate_what_is_certified():
    instance = RankInstance(DcDpsgdRun(2.0, 6.0, batch=100, records=100, steps=1))
    door = instance.setting.door(bytes(32))
    door.release(0, instance.outcome(ABSENT, 0))
    claim = certified_claim(door.ledger.history(), ADD)
    assert not curve_test(instance, claim, 200_000).violated


def test_the_real_rank_rule_draws_the_law_that_the_attack_assumes():
    instance = RankInstance(DcDpsgdRun(2.0, 6.0, batch=20, records=20, steps=1))
    sums = np.array(
        [float(instance.outcome(PRESENT, draw)["grad"].value["weight"]) for draw in range(1_500)]
    )
    absent = float(instance.outcome(ABSENT, 0)["grad"].value["weight"])
    assert sorted({round(float(s) - absent, 3) for s in sums}) == [0.1, 1.9]
    assert (sums - absent > 1).mean() == pytest.approx(instance.in_tail, abs=0.02)


def test_value_clipping_with_the_mean_loss_is_violated():
    row = verdict("Algorithm 3 with f(w)")
    assert row.violated and row.lower_bound > 2 * row.claimed_epsilon


def test_the_printed_scale_leaves_a_row_longer_than_the_claimed_bound():
    from winsor.gradients.rows import RowsView

    gradients = torch.zeros(1000, 1)
    gradients[-1] = 2.5
    view = RowsView({"weight": gradients}, gradients[:, 0].square() / 2)
    total = PrintedValue(1.0).contributions(view, {})["grad"]["weight"]
    assert float(total) == pytest.approx(2.5)


def test_shuffling_a_million_groups_amplifies_nothing():
    row = verdict("Theorem 6")
    assert row.violated
    assert row.claimed_epsilon == pytest.approx(0.212, abs=1e-3)
    assert row.lower_bound > 0.35


def test_the_smallest_of_many_normals_has_its_law():
    uniform = np.random.default_rng(0).random(20_000)
    direct = np.random.default_rng(1).standard_normal((20_000, 50)).min(1)
    ours = _smallest_normal(uniform, 50)
    assert ours.mean() == pytest.approx(direct.mean(), abs=0.02)
    assert ours.std() == pytest.approx(direct.std(), abs=0.02)
    scores = ShuffledGroups(0.01, 1_000, size=10_000).scores(ABSENT, 100, 0)
    assert (scores < 0).all()  # always the group at -R


def test_modelmix_is_not_violated_by_this_attack():
    assert not verdict("ModelMix").violated
