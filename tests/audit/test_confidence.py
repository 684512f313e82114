"""Clopper-Pearson: exact tails, and coverage at every true probability."""

import numpy as np
import pytest
from scipy.stats import binom

from winsor.audit.curve import lower, upper
from winsor.core.contract import ConfigurationError


@pytest.mark.parametrize("n", [1, 7, 60])
@pytest.mark.parametrize("alpha", [0.3, 0.05, 1e-6])
def test_bounds_are_the_probabilities_at_which_the_count_has_tail_alpha(n, alpha):
    k = np.arange(n + 1)
    low, high = lower(k, n, alpha), upper(k, n, alpha)
    assert np.allclose(binom.sf(k[1:] - 1, n, low[1:]), alpha, rtol=1e-6)
    assert np.allclose(binom.cdf(k[:-1], n, high[:-1]), alpha, rtol=1e-6)
    assert low[0] == 0 and high[-1] == 1


@pytest.mark.parametrize("p", [0.0, 0.003, 0.2, 0.5, 0.97, 1.0])
def test_each_bound_is_wrong_with_probability_at_most_alpha(p):
    n, alpha = 40, 0.05
    k = np.arange(n + 1)
    mass = binom.pmf(k, n, p)
    assert mass[lower(k, n, alpha) > p].sum() <= alpha
    assert mass[upper(k, n, alpha) < p].sum() <= alpha


@pytest.mark.parametrize(("k", "n", "alpha"), [(-1, 5, 0.1), (6, 5, 0.1), (0, 0, 0.1), (1, 5, 0.0)])
def test_impossible_counts_are_refused(k, n, alpha):
    with pytest.raises(ConfigurationError, match="must"):
        lower(k, n, alpha)
