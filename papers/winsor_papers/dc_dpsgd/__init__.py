"""Paper 1 (DC-DPSGD): Algorithm 1 as printed, what it claims, and the attack on the claim."""

from __future__ import annotations

from winsor_papers.dc_dpsgd.algorithm import Algorithm1, PublishedRun
from winsor_papers.dc_dpsgd.claim import DcDpsgdRun
from winsor_papers.dc_dpsgd.rows import ModelRows

__all__ = ["Algorithm1", "DcDpsgdRun", "ModelRows", "PublishedRun"]
