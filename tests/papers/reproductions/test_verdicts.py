"""Verdicts: the word follows from the interval, the claim and the setting; power is stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from winsor_papers.reproductions.reproduction import Measured
from winsor_papers.reproductions.verdicts import (
    Comparison,
    Difference,
    difference,
    judged,
    leading_number,
    printed_gap,
    sentence,
    standing,
)


@pytest.mark.parametrize(
    ("mean", "half", "claimed", "own", "word"),
    [
        (2.0, 1.0, 1.0, True, "reproduced"),
        (2.0, 1.0, 9.0, True, "reproduced"),  # ahead, though by less than printed
        (0.0, 1.0, 1.5, True, "contradicted"),  # the interval excludes the printed gap
        (0.0, 1.0, 1.5, False, "not reproduced at our size"),
        (0.0, 1.0, 0.5, True, "undecided"),  # holds the claim and zero
        (0.0, 1.0, None, True, "undecided"),
        (-2.0, 1.0, None, True, "contradicted"),
        (-2.0, 1.0, None, False, "not reproduced at our size"),
        (5.0, None, 1.0, True, "undecided"),  # one seed
        (math.nan, 1.0, 1.0, True, "undecided"),  # a run that diverged
    ],
)
def test_the_word(mean, half, claimed, own, word):
    assert judged(Difference(mean, half, 1.0), claimed, own) == word


@given(
    mean=st.floats(-10, 10), half=st.floats(0.0, 10), claimed=st.none() | st.floats(0, 10),
    own=st.booleans(),
)  # fmt: skip
def test_contradiction_needs_the_papers_setting_and_an_interval_without_the_claim(
    mean, half, claimed, own
):
    word = judged(Difference(mean, half, 1.0), claimed, own)
    if word == "contradicted":
        assert own
        assert mean + half <= (claimed or 0.0)
    if word == "reproduced":
        assert mean > half


def test_the_interval_is_welchs():
    rng = np.random.default_rng(0)
    first, second = rng.normal(3, 1, 5), rng.normal(1, 2, 8)
    found = difference(Measured.of(first.tolist()), Measured.of(second.tolist()))
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(expected.low)
    assert found.mean + found.half_width == pytest.approx(expected.high)


def test_the_detectable_difference_is_found_four_times_in_five():
    """Over many repetitions at that very difference, about 80 per cent have an interval above 0."""
    rng = np.random.default_rng(1)
    seeds, trials = 10, 2000
    detectable = (stats.t.ppf(0.975, 18) + stats.t.ppf(0.8, 18)) * math.sqrt(2 / seeds)
    hits = 0
    for _ in range(trials):
        ours = Measured.of((rng.normal(0, 1, seeds) + detectable).tolist())
        found = difference(ours, Measured.of(rng.normal(0, 1, seeds).tolist()))
        hits += found.mean > found.half_width
    assert 0.77 < hits / trials < 0.85


def test_more_seeds_detect_less():
    few, many = (Measured.of([0.0, 1.0, 2.0] * n) for n in (1, 4))
    assert difference(many, many).detectable < difference(few, few).detectable
    same = Measured.of([1.0, 1.0])
    assert difference(same, same) == Difference(0.0, 0.0, 0.0)


def test_a_margin_allows_to_be_behind():
    ours, theirs = Measured(88.0, 0.1, 3), Measured(90.0, 0.1, 3)
    assert Comparison("d", ours, theirs, margin=4.0).word == "reproduced"
    assert Comparison("d", ours, theirs, margin=1.0).word == "not reproduced at our size"
    assert Comparison("d", theirs, ours, smaller_is_better=True).gain.mean == -2.0


def test_the_sentence_states_counts_and_power():
    high, low, one = Measured(60.0, 1.0, 3), Measured(50.0, 1.0, 3), Measured(55.0, None, 1)
    told = sentence(
        [Comparison("a", high, low, 3.0), Comparison("b", low, high, 3.0, own_setting=True)],
        "data sets",
        " points",
    )
    assert told.startswith("Reproduced in 1, contradicted in 1 of 2 data sets (measured -10 to +10")
    assert "claimed +3" in told and "smallest detectable difference" in told
    assert "no difference could have been detected" in sentence([Comparison("c", one, low)])
    assert sentence([]).startswith("No verdict")


def test_printed_figures():
    assert leading_number("97.65±0.09") == 97.65
    assert leading_number("73.26 ± 0.16") == 73.26
    assert leading_number("GC - 2") is leading_number(None) is None
    assert printed_gap("98.72±0.02", "97.65±0.09") == pytest.approx(1.07)
    assert printed_gap("98.72", None) is None


def test_a_measured_number_reads_what_it_writes():
    assert Measured.read(str(Measured(0.5, 0.25, 3)), 3) == Measured(0.5, 0.25, 3)
    assert Measured.read("7", 1) == Measured(7.0, None, 1)


def test_of_what_no_paper_claims_it_is_said_who_is_ahead() -> None:
    high, low = Measured(10.0, 0.5, 5), Measured(5.0, 0.5, 5)
    pairs = [Comparison("a", high, low), Comparison("b", low, high), Comparison("c", low, low)]
    told = standing(pairs, "data sets", " points")
    assert told.startswith("Ahead in 1, behind in 1, undecided in 1 of 3 data sets (measured -5")
    assert "smallest detectable difference" in told
    assert standing([], "data sets") == "No verdict: there are no data sets."
