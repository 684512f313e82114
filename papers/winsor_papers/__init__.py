"""What papers claim and winsor could not prove, and the attacks that try to refute it.

One folder per paper: ``claim.py`` has the paper's own formula, as a `PublishedClaim` (it prints
itself as such and refuses to be used as a number: a normal run never reports one), ``attacks.py``
the audits, which ``all_attacks.py`` gathers for ``winsor audit published``. Theorems are in
``theory/``, the papers' tables and figures in ``reproductions/``, and ``fidelity/`` says where each
element of a paper is. winsor imports nothing of this package: it plugs in by entry points.
"""

from __future__ import annotations

from winsor_papers.published import PublishedClaim

__all__ = ["PublishedClaim"]
