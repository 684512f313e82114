"""One rounding for a product and a sum, against rational arithmetic, on both paths."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from winsor.core.arithmetic import fused


def exact(total, x, factor):
    pairs = zip(total.tolist(), x.tolist(), strict=True)
    return np.array([float(Fraction(t) - Fraction(factor) * Fraction(v)) for t, v in pairs])


@pytest.mark.parametrize("subtract", [fused.subtract_multiple, fused.exact_subtract_multiple])
@pytest.mark.parametrize("size", [0, 1, 2, 15, 63, 64, 65, 200, 1003])
@pytest.mark.parametrize("spread", [0, 8, 40])
def test_results_are_rounded_once(subtract, size, spread):
    rng = np.random.default_rng(size + spread)
    total, x = (
        rng.standard_normal(size) * 2.0 ** rng.integers(-spread, spread + 1, size) for _ in "ab"
    )
    factor = float(rng.standard_normal())
    expected = exact(total, x, factor)
    subtract(total, x, factor)
    assert np.array_equal(total, expected)


@pytest.mark.parametrize("subtract", [fused.subtract_multiple, fused.exact_subtract_multiple])
def test_cancellation_and_ties_are_rounded_once(subtract):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4096)
    factor = 1 / 3
    total = x * factor  # what is left is the product's rounding error
    total[::3] += 2.0**-40
    total[1::3] = 0.0
    x[::7] = 1.0 + 2.0**-52
    expected = exact(total, x, factor)
    subtract(total, x, factor)
    assert np.array_equal(total, expected)


def test_both_paths_agree_on_a_long_vector(monkeypatch):
    rng = np.random.default_rng(1)
    total, x = rng.standard_normal((2, 50_001))
    one, other = total.copy(), total.copy()
    fused.subtract_multiple(one, x, 0.31)
    monkeypatch.setattr(fused, "axpy_fuses", lambda: False)
    fused.subtract_multiple(other, x, 0.31)
    assert np.array_equal(one, other)
    assert not np.array_equal(one, total - 0.31 * x)  # two roundings are another result
