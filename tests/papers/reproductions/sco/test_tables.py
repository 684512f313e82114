"""Paper 2's tables at a size of seconds; verdicts on numbers made up to have them."""

from __future__ import annotations

import pytest
from winsor_papers.reproductions.reproduction import Line, Measured, Request
from winsor_papers.reproductions.sco.rates import RateExperiment
from winsor_papers.reproductions.sco.tables import (
    printed_noise_epsilon,
    rates_of,
    rates_verdict,
    theorem_6,
    theorem_6_verdict,
)

TINY = RateExperiment(sizes=(1000, 8000), seeds=2, steps=4, groups=4, signals=(1.0,))


def test_rates_have_theory_and_slopes():
    said = []
    found = rates_of(TINY, range(1, 3), (2,), Request(say=said.append))
    simple, one_mean, iterative, from_zero, median = found.lines
    assert one_mean.published is None and one_mean.certified.mean < 0
    assert simple.printed == iterative.printed == median.printed == "-0.500 (theory)"
    assert simple.certified.seeds == 2
    assert simple.certified.half_width is not None
    assert -1.0 < simple.certified.mean < 0.0
    # the noise of (12) is sound, and more than epsilon asks for
    assert simple.published is not None
    assert 0 < simple.published_certifies < TINY.epsilon / 2
    # (27) with Theorem 6 at every step: a published line of its own, far below its claim here
    assert iterative.published is not None
    assert 0 <= iterative.published_certifies < TINY.epsilon / 100
    assert from_zero.published is None and median.published is None
    assert float(iterative.extra["updates per gradient"]) > 1
    assert simple.extra["updates per gradient"] == median.extra["updates per gradient"] == ""
    assert said == ["p = 2, repetition 1", "p = 2, repetition 2"]
    assert found.settings["repetitions"] == 2


def test_repetitions_are_independent():
    one = rates_of(TINY, range(1, 2), (2,), Request()).lines[0].certified.mean
    other = rates_of(TINY, range(2, 3), (2,), Request()).lines[0].certified.mean
    assert one != other


def test_printed_noise_is_more_than_needed():
    assert printed_noise_epsilon(RateExperiment(epsilon=1.0, delta=1e-5)) < 0.5


def line(slope, method="iterative", risk=2.0, half=0.1):
    return Line(
        {"p": "2", "method": method, "a record is": "added"},
        printed="-0.5 (theory)",
        certified=Measured(slope, half, 5),
        extra={"risk": f"{risk} ± 0.1"},
    )


def test_the_verdict_counts_slopes_near_the_theory():
    """A steeper slope does not contradict an upper bound; a flatter or a blurred one is told."""
    steep, near = line(-0.9), line(-0.45, "simple", 1.0)
    told = rates_verdict([steep, near], "risk")
    assert told.startswith("Rate reproduced: 2 of 2")
    assert "could have been seen 0.20 to 0.20" in told
    assert "2 times that of simple" in told
    flat = rates_verdict([steep, line(-0.2, "simple", 1.0)], "risk")
    assert flat.startswith("Rate not reproduced at our size: 1 of 2") and "1 are flatter" in flat
    blurred = rates_verdict([steep, line(-0.5, "simple", 1.0, half=2.0)], "risk")
    assert blurred.startswith("Rate undecided") and "1 too uncertain" in blurred


def test_both_relations_stand_beside_each_other():
    found = rates_of(TINY, range(1, 2), (2,), Request(), ("simple", "iterative"), both=True)
    assert [line.label["a record is"] for line in found.lines] == ["added"] * 2 + ["replaced"] * 2
    added, replaced = (found.lines[at].extra["risk at n = 8,000"] for at in (0, 2))
    assert added != replaced  # replacing moves a mean twice as far, so the noise is twice as large


def test_theorem_6_is_false_for_many_groups_and_useless_for_few():
    found = theorem_6(Request())
    few, _, many = found.lines
    assert few.published.mean > few.certified.mean
    assert many.published.mean == pytest.approx(0.212, abs=1e-3)
    assert many.certified.mean == pytest.approx(0.413, abs=1e-3)
    assert found.verdict.startswith("Does not hold: it claims less than the truth for 1,000,000")
    assert theorem_6_verdict([few]).startswith("No gain")
