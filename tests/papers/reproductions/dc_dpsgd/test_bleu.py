"""Corpus BLEU against values worked out elsewhere and by hand."""

from __future__ import annotations

import math

import pytest
from winsor_papers.reproductions.dc_dpsgd.bleu import corpus_bleu

from winsor.core.contract import ConfigurationError


def split(*parts: str) -> list[str]:
    return " ".join(parts).split()


HYP_1 = split(
    "It is a guide to action which ensures that the military always obeys the commands",
    "of the party",
)
REFS_1 = [
    split(
        "It is a guide to action that ensures that the military will forever heed Party commands"
    ),
    split(
        "It is the guiding principle which guarantees the military forces always being under the",
        "command of the Party",
    ),
    split("It is the practical guide for the army always to heed the directions of the party"),
]
HYP_2 = split("he read the book because he was interested in world history")
REFS_2 = [split("he was interested in world history because he read the book")]


def test_value_of_the_example_that_nltk_documents() -> None:
    assert corpus_bleu([HYP_1], [REFS_1]) == pytest.approx(0.5045666840058485, rel=1e-12)
    assert corpus_bleu([HYP_1, HYP_2], [REFS_1, REFS_2]) == pytest.approx(
        0.5920778868801042, rel=1e-12
    )


def test_a_perfect_candidate_scores_one_and_a_foreign_one_zero() -> None:
    assert corpus_bleu([HYP_2], [[HYP_2]]) == pytest.approx(1.0)
    assert corpus_bleu([["x"] * 5], [[HYP_2]]) == 0.0


def test_short_candidates_pay_the_brevity_penalty() -> None:
    # five of eleven words, all n-grams right: only exp(1 - 11/5) is left
    assert corpus_bleu([HYP_2[:5]], [[HYP_2]]) == pytest.approx(math.exp(1 - 11 / 5))


def test_the_closest_reference_counts_and_ties_go_to_the_shorter() -> None:
    candidate = list("abcde")
    references = [list("abcdexy"), list("abc")]  # both two away
    assert corpus_bleu([candidate], [references]) == pytest.approx(1.0)


def test_repeated_words_count_as_often_as_in_one_reference() -> None:
    candidate = ["the", "the", "the", "the", "cat", "sat", "on", "mats"]
    reference = ["the", "cat", "sat", "on", "mats", "and", "the", "dog"]
    matched = (6, 4 / 7, 3 / 6, 2 / 5)
    expected = math.exp(sum(map(math.log, (matched[0] / 8, *matched[1:]))) / 4)
    assert corpus_bleu([candidate], [[reference]]) == pytest.approx(expected)


@pytest.mark.parametrize(("candidates", "references"), [([], []), ([["a"]], []), ([["a"]], [[]])])
def test_every_candidate_needs_a_reference(candidates: list, references: list) -> None:
    with pytest.raises(ConfigurationError, match="references must hold at least one sentence"):
        corpus_bleu(candidates, references)
