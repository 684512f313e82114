"""The curve test: honest mechanisms pass, a ten per cent lie is caught, bounds are tight."""

import numpy as np
import pytest
from scipy.stats import norm

from winsor.audit.claims import gaussian_claim, gaussian_mu, invert, point_claim
from winsor.audit.curve import ABSENT, MOST_THRESHOLDS, Roc, choose_thresholds, curve_test, measure
from winsor.core.contract import ConfigurationError


class Shift:
    """A unit Gaussian that one record moves by mu."""

    def __init__(self, mu, seed=0):
        self.mu, self.seed = mu, seed

    def scores(self, dataset, runs, part):
        noise = np.random.default_rng([self.seed, dataset, part]).standard_normal(runs)
        return noise + self.mu * dataset


MU = gaussian_mu(4.0, 1e-5)


def test_honest_mechanisms_raise_no_alarm_in_200_tests():
    alarms = sum(
        curve_test(Shift(MU, seed), gaussian_claim(MU), 4_000).violated for seed in range(200)
    )
    assert alarms == 0


def test_ten_per_cent_too_little_noise_is_caught_in_every_one_of_20_repeats():
    caught = [
        curve_test(Shift(MU / 0.9, seed), gaussian_claim(MU), 100_000).violated
        for seed in range(20)
    ]
    assert all(caught)


def test_an_alarm_is_as_rare_as_alpha_says_at_the_edge_of_the_claim():
    """Also where thresholds sit in the tail, where counts are few and bounds are exact."""
    claim = point_claim(1.0, 1e-3)
    alarms = sum(
        curve_test(Shift(0.3, seed), gaussian_claim(0.3), 2_000, alpha=0.2).violated
        for seed in range(100)
    )
    assert alarms <= 20
    assert not curve_test(Shift(1e-9), claim, 5_000).violated


@pytest.mark.parametrize(("epsilon", "at_least"), [(1, 0.9), (4, 3.7), (8, 7.5)])
def test_lower_bounds_of_a_full_batch_gaussian_are_tight(epsilon, at_least):
    mu = gaussian_mu(epsilon, 1e-5)
    verdict = curve_test(Shift(mu), gaussian_claim(mu), 2_000_000)
    assert not verdict.violated
    assert at_least <= verdict.roc.gaussian_epsilon(1e-5) <= epsilon
    assert verdict.roc.epsilon(1e-5) <= epsilon


def test_inversion_finds_the_noise():
    verdict = curve_test(Shift(MU), gaussian_claim(MU), 200_000)
    noise = invert(lambda s: gaussian_claim(1 / s), verdict.roc.refutes, 0.1, 10.0)
    assert 1 / MU <= noise <= 1.05 / MU
    roc = Roc(np.array([0.0]), np.array([0.99]), np.array([1e-6]), 100, 1e-4)
    assert invert(lambda s: gaussian_claim(1 / s), roc.refutes, 1.0, 10.0) == 1.0
    nothing = Roc(np.array([0.0]), np.array([0.0]), np.array([1.0]), 100, 1e-4)
    assert invert(lambda s: gaussian_claim(1 / s), nothing.refutes, 1.0, 10.0) == 10.0
    assert nothing.mu() == 0.0 and nothing.epsilon(1e-5) == 0.0


def test_bounds_hold_for_the_true_rates():
    thresholds = np.array([0.0, 1.5])
    roc = measure(Shift(1.0), thresholds, 20_000)
    assert (roc.true_positive < norm.sf(thresholds - 1)).all()
    assert (roc.false_positive > norm.sf(thresholds)).all()
    assert (norm.sf(thresholds - 1) - roc.true_positive < 0.03).all()


def test_violation_in_the_reverse_direction_counts():
    """A mechanism may betray absence only: a rare output that presence rules out."""

    class Vanishing:
        def scores(self, dataset, runs, part):
            uniform = np.random.default_rng([dataset, part]).random(runs)
            return np.where((uniform < 0.05) & (dataset == ABSENT), -1.0, 1.0)

    verdict = curve_test(Vanishing(), gaussian_claim(0.1), 20_000)
    assert verdict.violated
    assert verdict.roc.epsilon(1e-5) > 4


def test_infinite_scores_are_evidence_and_nan_is_refused():
    class Certain:
        value = np.inf

        def scores(self, dataset, runs, part):
            return np.full(runs, self.value if dataset else -self.value)

    assert curve_test(Certain(), gaussian_claim(3.0), 5_000).violated
    broken = Certain()
    broken.value = np.nan
    with pytest.raises(ConfigurationError, match="NaN"):
        curve_test(broken, gaussian_claim(3.0), 5_000)


def test_thresholds_come_from_the_pilot_and_are_few():
    rng = np.random.default_rng(0)
    absent, present = rng.standard_normal(2_000), 1 + rng.standard_normal(2_000)
    thresholds = choose_thresholds(absent, present, gaussian_claim(1.0), 8_000, 1e-5)
    assert 1 <= len(thresholds) <= MOST_THRESHOLDS
    with pytest.raises(ConfigurationError, match="thresholds"):
        measure(Shift(1.0), np.zeros(MOST_THRESHOLDS + 1), 100)


def test_the_pilot_is_never_counted():
    """Part 0 is the pilot's; the runs that are counted have other parts."""
    seen = []

    class Watched(Shift):
        def scores(self, dataset, runs, part):
            seen.append((dataset, part, runs))
            return super().scores(dataset, runs, part)

    curve_test(Watched(1.0), gaussian_claim(1.0), 10_000)
    assert [(dataset, part) for dataset, part, _ in seen] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert sum(runs for dataset, _, runs in seen if dataset == 0) == 10_000


def test_too_few_runs_are_refused():
    with pytest.raises(ConfigurationError, match="runs"):
        curve_test(Shift(1.0), gaussian_claim(1.0), 50)
