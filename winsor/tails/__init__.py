"""Know your tails: fits, guidance from the theorems, plots."""

from __future__ import annotations

from winsor.tails.fit import Estimate, TailFit, fit
from winsor.tails.verdict import TailClass, Verdict

__all__ = ["Estimate", "TailClass", "TailFit", "Verdict", "fit"]
