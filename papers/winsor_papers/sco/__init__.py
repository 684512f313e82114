"""Paper 2 (heavy-tailed DP-SCO): its claims, its runs as printed, and the attack on Theorem 6."""

from __future__ import annotations

from winsor_papers.sco.claim import theorem_6_claim
from winsor_papers.sco.published import PublishedMean, Theorem3, Theorem7, theorem_6_mean

__all__ = ["PublishedMean", "Theorem3", "Theorem7", "theorem_6_claim", "theorem_6_mean"]
