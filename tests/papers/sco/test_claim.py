"""Theorem 6 as a published claim: weaker than the truth needs for few groups, false for many."""

from __future__ import annotations

import pytest
from winsor_papers.sco.claim import (
    largest_epsilon,
    parallel_history,
    theorem_6_claim,
    theorem_6_rho,
)

from winsor.core.accounting.spending import account
from winsor.core.contract import ConfigurationError, Neighbouring


@pytest.mark.parametrize(("k", "claimed", "true"), [(1000, 6.714, 0.4755), (10**6, 0.2123, 0.4129)])
def test_theorem_6_at_its_largest_epsilon(k, claimed, true):
    """Weaker than parallel composition for small k, unsound for large k.

    docs/privacy.md, "Heavy-tailed means and full-batch descent".
    """
    epsilon = largest_epsilon(k, 1e-5)
    assert epsilon == pytest.approx(claimed, rel=1e-3)
    rho = theorem_6_rho(epsilon, 1e-5, k)
    certified = account(parallel_history(rho), 1e-5, Neighbouring.REPLACE_ONE)
    assert certified.epsilon == pytest.approx(true, rel=1e-3)
    claim = theorem_6_claim(0.9 * rho, 1e-5, k)
    assert theorem_6_rho(claim.published_epsilon, 1e-5, k) == pytest.approx(0.9 * rho)
    assert "published, not certified" in str(claim)
    with pytest.raises(TypeError):
        claim < certified.epsilon  # noqa: B015
    with pytest.raises(ConfigurationError, match="rho must be at most"):
        theorem_6_claim(1.1 * rho, 1e-5, k)
