"""The audits of ways of drawing: strong enough, and of what really runs."""

import numpy as np
from selfaudit.drawing import CorrelatedExperiment, CorrelatedTraining, banded_matrix
from selfaudit.honest import ADD, calibrated
from winsor_papers.neighbouring import AuditSetting

from winsor.audit.claims import certified_claim
from winsor.audit.curve import curve_test
from winsor.core.noise.banded import BandedGaussian, inverse_column
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import Poisson

CYCLIC = CyclicPoisson(4, 4, 0.1)


def experiment(noise_multiplier):
    mechanism = BandedGaussian.of_bands(noise_multiplier, 4)
    return CorrelatedExperiment(AuditSetting(mechanism, CYCLIC, ADD, 12))


def test_the_matrix_is_that_of_the_noise():
    matrix = banded_matrix((0.8, 0.5, 0.3), 6)
    assert np.allclose(np.linalg.inv(matrix)[:, 0], inverse_column((0.8, 0.5, 0.3), 6))
    assert np.allclose(np.diag(matrix), 0.8)


def test_correlated_noise_that_is_ten_per_cent_low_is_found():
    stated = calibrated(Poisson(4, 0.4), 3, ADD)
    claim = certified_claim(experiment(stated).history, ADD)
    assert not curve_test(experiment(stated), claim, 200_000).violated
    assert curve_test(experiment(0.9 * stated), claim, 200_000).violated


def test_what_is_audited_is_what_a_ledger_of_such_a_run_holds():
    history = experiment(1.0).history
    ((event, count),) = history
    assert count == 3
    ((paid, _),) = CorrelatedTraining(1.0, q=0.2).history
    assert event == paid


def test_a_record_stays_in_its_group():
    sampler = CyclicPoisson(12, 3, 0.2)
    key = bytes(32)
    for row in range(12):
        seen = {step % 3 for step in range(120) if row in sampler.indices(key, step)}
        assert seen <= {sampler.group_of(key, row)}
