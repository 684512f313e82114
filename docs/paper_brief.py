"""A verdict in a few words, for the overview; whole ones stand on the page of each paper.

What is left out are the sizes: measured and claimed differences, the smallest ones that could have
been seen, and lists of pairs. Verdicts are computed with the tables
(`papers/winsor_papers/reproductions/verdicts.py`) and kept with them as text, so it is text that is
cut here; `tests/test_docs.py` holds it to every kept verdict.
"""

from __future__ import annotations

import re

SIZES = re.compile(r" \((?:measured|smallest detectable)[^()]*\)")
SEEN = re.compile(r" \([^()]*;? ?smallest detectable difference[^()]*\)")
PAIRS = re.compile(r" \((?:k|split|theta|p) .*\)(?=; the published noise)")
ONE = re.compile(r" in 1 of 1 [a-z ]+?(?=[.,;(]| \(|$)")
NONE = re.compile(r", 0 are flatter, 0 too uncertain")
SLOPE = re.compile(r"; smallest gap in a slope that could have been seen [\d.]+ to [\d.]*\d")
ASIDE = re.compile(r", of which the paper says nothing|, which is not the paper's")

_CURVES = ("figure-1", "figure-2-features", "figure-3", *(f"figure-b{k}" for k in range(1, 5)))
CURVES = {("aclip", name) for name in _CURVES}
"""Curves of runs that a table of the same paper judges: what they add is on its page alone."""


def brief(verdict: str) -> str:
    """Words and counts."""
    for pattern in (SIZES, SEEN, SLOPE, NONE, PAIRS, ONE, ASIDE):
        verdict = pattern.sub("", verdict)
    return verdict
