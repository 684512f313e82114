"""Reproductions: one module per paper, with what the paper claims and what can be certified.

What a paper claims and winsor could not prove is a `PublishedClaim`. It prints itself as such and
refuses to be used as a number: a normal run never reports one.
"""

from __future__ import annotations

from winsor.papers.published import PublishedClaim

__all__ = ["PublishedClaim"]
