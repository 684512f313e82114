"""What a `Bound` carries, and all papers side by side."""

from __future__ import annotations

import json

import pytest
from winsor_papers import theory as th
from winsor_papers.theory.bound import stated

from winsor.core.contract import ConfigurationError

FACTS = th.Circumstances(n=60_000, d=1000, epsilon=1.0, delta=1e-6, steps=2000, theta=1.5)


def test_a_bound_sums_its_terms_and_sorts_its_conditions():
    bound = stated(
        "paper 0, (1)",
        "a + b",
        {"a": 1.0, "b": 2.0},
        order=True,
        assumed=("convex",),
        conditions=[(True, "n is large", "n is small"), (False, "d is small", "d is large")],
        notes=("misprint",),
    )
    assert float(bound) == 3.0
    assert bound.checked == ("n is large",)
    assert bound.warnings == ("misprint", "d is large")
    assert bound.is_order and "constant taken as 1" in bound.source
    assert "d is large" in str(bound)
    assert json.loads(json.dumps(bound.to_json()))["assumed"] == ["convex"]


def test_a_formula_that_overflows_says_so():
    assert "overflows" in stated("s", "f", {"a": float("inf")}).warnings[0]


def test_promises_name_source_and_assumptions():
    found = th.promises(FACTS)
    assert [int(p.bound.source[6]) for p in found if p.bound] == sorted(
        int(p.bound.source[6]) for p in found if p.bound
    )
    assert {p.bound.source[6] for p in found if p.bound} == set("12345")
    for promise in found:
        assert promise.bound is not None and promise.bound.assumed
        assert promise.bound.value > 0


def test_a_theorem_that_does_not_apply_is_a_refusal_not_an_error():
    by_name = {p.name: p for p in th.promises(th.Circumstances(30, 1e5, 1.0, 1e-3, p=1.5))}
    assert "at least 2" in by_name["simple clipping, full batch"].refusal
    assert "More rows" in by_name["averaged clipping, free"].refusal
    assert by_name["DP-SGD, one threshold"].bound is not None


def test_a_tail_heavier_than_a_theorem_allows_is_warned_about():
    def warned(theta: float) -> set[str]:
        found = th.promises(th.Circumstances(6e4, 100, 1.0, 1e-6, theta=theta))
        return {p.name for p in found if p.bound and any("heavier" in w for w in p.bound.warnings)}

    assert warned(0.5) == set()
    assert warned(0.8) == {"DP-SGD without clipping"}
    assert len(warned(1.5)) == 2


def test_nonsense_is_refused():
    with pytest.raises(ConfigurationError, match="n must"):
        th.Circumstances(n=0, d=10, epsilon=1.0, delta=1e-5)


def test_everything_public_has_a_source_in_its_docstring():
    for name in th.__all__:
        value = getattr(th, name)
        assert value.__doc__, name
