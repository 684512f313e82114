"""Know your tails: fits, guidance from the theorems, plots."""

from __future__ import annotations

from winsor.tails.fit import Estimate, TailFit, fit
from winsor.tails.guide import Advice, Setting, advise
from winsor.tails.verdict import TailClass, Verdict

__all__ = ["Advice", "Estimate", "Setting", "TailClass", "TailFit", "Verdict", "advise", "fit"]
