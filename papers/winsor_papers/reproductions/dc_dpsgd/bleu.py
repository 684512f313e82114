"""Corpus BLEU-4 with several references, without smoothing.

    BLEU = min(1, exp(1 - r/c)) * exp( mean over n = 1..4 of log p_n )

    p_n   n-grams of all candidates that occur in a reference, each counted at most as often as in
          the reference that has it most often, over all n-grams of all candidates
    c, r  total length of the candidates, and of the references closest in length (ties: shorter)

0 when some p_n is 0. It is a statistic of a corpus: averages of sentence scores are something else.

References
----------
Papineni, Roukos, Ward, Zhu: BLEU: a method for automatic evaluation of machine translation, ACL
2002, section 2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from winsor.core.contract import ConfigurationError

Tokens = Sequence[str]


def corpus_bleu(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """BLEU in [0, 1] of ``candidates``, each against its own ``references``."""
    if not candidates or len(candidates) != len(references) or not all(references):
        raise ConfigurationError(
            "references must hold at least one sentence for each of the candidates, and there must "
            f"be candidates. Got {len(candidates)} and {len(references)} instead."
        )
    matched, total = [0] * 4, [0] * 4
    length = reference_length = 0
    for candidate, own in zip(candidates, references, strict=True):
        length += len(candidate)
        sizes = (len(reference) for reference in own)
        reference_length += min(sizes, key=lambda size: (abs(size - len(candidate)), size))
        for n in range(1, 5):
            counts = _ngrams(candidate, n)
            allowed: Counter[tuple[str, ...]] = Counter()
            for reference in own:
                allowed |= _ngrams(reference, n)
            matched[n - 1] += sum((counts & allowed).values())
            total[n - 1] += sum(counts.values())
    if min(matched) == 0:
        return 0.0
    precision = sum(math.log(m / t) for m, t in zip(matched, total, strict=True)) / 4
    return math.exp(min(0.0, 1 - reference_length / length) + precision)


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
